"""The wheel, made from the sdist, installs into an empty environment and works there."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

SMOKE = """
import os, sys, tempfile
from importlib.metadata import entry_points, version

import torch

import pullback as pb

assert pb.__file__.startswith(sys.prefix), pb.__file__
assert version("pullback") == pb.__version__
assert [e.value for e in entry_points(group="pytest11", name="pullback")] == ["_pullback_pytest"]


class Square(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


def program(x, y):
    return Square.apply(x) * torch.sin(y)


x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
assert torch.autograd.gradcheck(pb.derive(program, x, x).apply, (x, x))
assert torch.autograd.gradcheck(pb.combine(program, x, x).apply, (x, x))
assert pb.check(Square, (x,), profile="quick").ok
space = {"__name__": "emitted"}
exec(pb.emit(program, examples=(x, x)), space)
space["self_test"]()
print("works")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist, and with the wheel that is made from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """An environment with the wheel alone; torch and the rest are seen where they are now."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (wheel,) = built.glob("*.whl")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install, wheel], check=True)
    (place,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched last; .pth files there (an editable pullback) are not read.
    seen = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (place / "seen.pth").write_text("\n".join(sorted(seen)), encoding="utf-8")
    return folder


def test_wheel_works_in_clean_environment(environment, tmp_path):
    (tmp_path / "smoke.py").write_text(SMOKE, encoding="utf-8")
    python = environment / "bin" / "python"
    run = subprocess.run(
        [python, "-I", "smoke.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (run.returncode, run.stdout) == (0, "works\n"), run.stderr


@pytest.mark.parametrize("command", [["bin/pullback"], ["bin/python", "-I", "-m", "pullback"]])
def test_command_is_installed(environment, tmp_path, command):
    program, *rest = command
    run = subprocess.run(
        [environment / program, *rest, "explain", "E103"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.stdout.startswith("E103 backward-arity\n"), run.stderr


def test_wheel_holds_the_package_alone(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert "pullback/py.typed" in names
    beside = {path.name for path in (ROOT / "src").glob("*.py")}
    assert beside >= {"_pullback_cli.py", "_pullback_pytest.py", "_pullback_start.py"}
    tops = {name.split("/")[0] for name in names}
    assert tops == {"pullback", *beside, "pullback-0.1.0.dist-info"}


def test_wheel_holds_every_file(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    ours = [path.relative_to(source).as_posix() for path in (source / "pullback").rglob("*.*")]

    assert [name for name in ours if not name.endswith(".pyc") and name not in names] == []


def test_sdist_holds_tests_and_docs(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}

    assert {"README.md", "docs/why.md", "tests/test_tiny.py", "src/pullback/py.typed"} <= names
    assert not any(name.startswith((".ci", ".venv")) for name in names)
