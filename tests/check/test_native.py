"""C++ Functions are checked as ops of their library, from Python and from the command line."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import pullback as pb
from pullback.check.target.target import target_of
from pullback.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).resolve().parent / "native" / "my_ops.cpp"
GUIDE = (ROOT / "docs" / "check-cpp.md").read_text("utf-8")

# The op, how many tensors it takes, and the rules that may speak; the first one must.
BROKEN = {
    "square": (1, ("wrong-factor",)),
    "product": (2, ("cotangent-layout",)),
    "gate": (1, ("leaked-graph", "stale-after-edit")),
}

pytestmark = pytest.mark.needs_compiler


def blocks(kind):
    """The blocks of the guide in one language."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def library(request, run_python, tmp_path_factory):
    """The built library, kept in pytest's cache until its source, the guide or torch changes."""
    build = blocks("py")[0]
    made_of = "\n".join([SOURCE.read_text("utf-8"), build, torch.__version__, sys.version])
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    cache = getattr(request.config, "cache", None)  # absent with `-p no:cacheprovider`
    home = Path(cache.mkdir("native") if cache else tmp_path_factory.mktemp("native")) / key
    built = sorted(home.glob("*/is_built"))
    if built:
        return built[0].with_name("my_ops.so")
    folder = home / str(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(SOURCE, folder)
    if shutil.which("ninja"):
        (folder / "build.py").write_text(build, encoding="utf-8")
        done = run_python("build.py", folder=folder)
    else:
        done = compiled(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "is_built").touch()
    return folder / "my_ops.so"


def compiled(folder):
    """Build without ninja, which the way of the guide needs."""
    from torch.utils.cpp_extension import include_paths, library_paths

    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", "my_ops.cpp"]
    command += [f"-I{path}" for path in include_paths()] + [f"-L{p}" for p in library_paths()]
    command += ["-lc10", "-ltorch_cpu", "-o", "my_ops.so"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def ops(library):
    """The ops of the library, in this process."""
    torch.ops.load_library(str(library))
    return torch.ops.my_ops


def inputs(count):
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(3, 4, generator=generator) for _ in range(count))


# ---- from Python ----


def test_sound_native_function_has_no_finding(ops):
    report = pb.check(ops.swish, (*inputs(1), 1.5))

    assert report.findings == ()
    assert report.examples == ("x: float32[3, 4], beta: 1.5",)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_native_function_is_found(name, ops):
    count, rules = BROKEN[name]

    report = pb.check(getattr(ops, name), inputs(count))

    found = [finding.rule.name for finding in report.findings]
    assert rules[0] in found
    assert set(found) <= set(rules)


def test_gradcheck_alone_misses_layout_and_leak(ops):
    exact = [x.double().requires_grad_() for x in inputs(2)]

    assert torch.autograd.gradcheck(ops.product, exact)
    assert torch.autograd.gradcheck(ops.gate, exact[:1])


def test_wrong_factor_is_named(ops):
    (finding,) = pb.check(ops.square, inputs(1), select=["gradient"]).findings

    assert finding.why == "it is 0.5 times the right one everywhere"
    assert finding.at.startswith("gradient of `x` at ")


def test_layout_finding_names_each_input(ops):
    (finding,) = pb.check(ops.product, inputs(2), select=["layout"]).findings

    assert finding.at.startswith("gradient of `a` at ")
    assert "for `b`" in str(finding)


def test_leak_is_of_the_output(ops):
    (finding,) = pb.check(ops.gate, inputs(1), select=["leaked-graph"]).findings

    assert finding.at.startswith("output 0, after a call")
    assert "not in saved_data" in finding.fix


def test_place_is_where_the_op_is_registered(ops, library, monkeypatch):
    monkeypatch.chdir(library.parent)
    source = SOURCE.read_text("utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(source) if text.startswith("TORCH_LIBRARY("))

    assert target_of(ops.square).place("backward") == f"my_ops.cpp:{line}"


def test_callable_around_native_op_is_seen_through(ops):
    report = pb.check(lambda x: ops.square(x + 1), inputs(1), select=["gradient"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


# ---- from the command line ----


def run(library, *args):
    return CliRunner().invoke(app, ["check", "--load", str(library), *args])


def test_sound_op_ends_with_code_zero(library):
    result = run(library, "torch.ops.my_ops.swish", "--profile", "quick")

    assert result.exit_code == 0
    assert result.stdout.startswith("my_ops.swish: nothing found. ")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_op_ends_with_code_one(name, library):
    count, rules = BROKEN[name]
    examples = ["--example", "torch.linspace(-2, 3, 12).reshape(3, 4)"] * count
    options = ["--profile", "quick", "--json", *examples]

    result = run(library, f"torch.ops.my_ops.{name}", *options)

    (report,) = json.loads(result.stdout)["reports"]
    assert result.exit_code == 1
    assert rules[0] in [finding["rule"]["name"] for finding in report["findings"]]


def test_inputs_of_op_come_from_its_schema(library):
    result = run(library, "torch.ops.my_ops.swish", "--select", "wrong-factor", "--json")

    (report,) = json.loads(result.stdout)["reports"]
    assert report["examples"] == ["x: float32[3, 4], beta: 1.0"]


def test_repro_of_op_fails_without_this_library(library, warm_python, tmp_path):
    result = run(library, "torch.ops.my_ops.square", "--select", "wrong-factor", "--json")

    (report,) = json.loads(result.stdout)["reports"]
    repro = report["findings"][0]["repro"]
    (tmp_path / "repro.py").write_text(repro, encoding="utf-8")
    done = warm_python(str(tmp_path / "repro.py"))
    assert "pullback" not in repro
    assert "AssertionError: expected 8.72, got 4.36" in done.stderr


def test_library_that_cannot_be_loaded_is_refused(tmp_path):
    (tmp_path / "broken.so").write_text("no library", encoding="utf-8")

    result = run(tmp_path / "broken.so", "torch.ops.my_ops.swish")

    assert result.exit_code == 2
    assert "broken.so` must be a library that PyTorch can load" in result.stderr


# ---- what the guide shows ----


def test_shown_functions_are_those_tested():
    source = SOURCE.read_text("utf-8")

    assert blocks("cpp")
    assert [block for block in blocks("cpp") if block.strip() not in source] == []


def test_shown_python_runs(library, warm_python, tmp_path):
    shutil.copy(library, tmp_path / "my_ops.so")
    (tmp_path / "guide.py").write_text("\n".join(blocks("py")[1:]), encoding="utf-8")

    done = warm_python("guide.py", folder=tmp_path)

    assert done.returncode == 0, done.stderr


def test_shown_session_is_what_is_printed(library, monkeypatch):
    monkeypatch.chdir(library.parent)
    (shown,) = (block for block in blocks("text") if block.startswith("$ pullback "))
    typed, _, printed = shown.removeprefix("$ pullback ").partition("\n")

    result = CliRunner().invoke(app, shlex.split(typed))

    assert without_counts(result.stdout) == without_counts(printed)


def without_counts(text):
    return re.sub(r"\d+ rules?, \d+ runs, (.*), [\d.]+ s\.", r"\1", text).strip()
