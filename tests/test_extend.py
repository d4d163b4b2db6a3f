"""A third-party check is found by entry point, runs and is explained; a broken one is skipped."""

import ast
import json
import re
from pathlib import Path

import pytest

from pullback import extend

ROOT = Path(__file__).resolve().parents[1]
GUIDE = (ROOT / "docs" / "extend.md").read_text("utf-8")

OPS = """
import torch


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp() / (1 + x.exp())
"""

BROKEN = {
    "not_there": (None, "it cannot be loaded: ModuleNotFoundError: No module named"),
    "raising": ("raise ValueError('no licence')", "it cannot be loaded: ValueError: no licence"),
    "empty": ("", "it has no `RULE` that is a `pullback.extend.Rule`"),
    "half": (
        "from pullback.extend import Rule\nRULE = Rule('ACME2', 'half-done', 'acme')",
        "it has no function `check(subject)`",
    ),
    "taken": (
        "from pullback.extend import Rule\nRULE = Rule('G101', 'my-own', 'acme')\n"
        "def check(subject): return iter(())",
        "its code 'G101' is that of pullback.check.rules.gradient.wrong_gradient",
    ),
    "explains": (
        "from pullback.extend import Rule\nRULE = Rule('ACME6', 'all-knowing', 'acme')\n"
        "def check(subject): return iter(())\nEXPLAINS = ['everything']",
        "its `EXPLAINS` must hold `pullback.extend.Cause` only",
    ),
    "profile": (
        "from pullback.extend import Rule\n"
        "RULE = Rule('ACME3', 'no-such', 'acme', profile='slow')\n"
        "def check(subject): return iter(())",
        "its profile must be one of quick, standard, deep, and is 'slow'",
    ),
}

FAILING = """
from pullback.extend import Rule
RULE = Rule('ACME4', 'always-failing', 'acme')
def check(subject):
    raise KeyError('lost')
    yield
"""


@pytest.fixture
def package(tmp_path):
    """A folder with a package of checks, installed as far as entry points go."""
    home = tmp_path / "acme_checks"
    home.mkdir()
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    files = {"__init__": "", "gradient_not_finite": blocks[0], "always_failing": FAILING}
    files |= {name: text for name, (text, _) in BROKEN.items() if text is not None}
    for name, text in files.items():
        (home / f"{name}.py").write_text(text, encoding="utf-8")
    shown = re.search(r"^```toml\n\[.*?\]\n(\S+) = \"(\S+)\"\n```$", GUIDE, re.MULTILINE)
    points = [f"{shown.group(1)} = {shown.group(2)}", "failing = acme_checks.always_failing"]
    points += [f"{name} = acme_checks.{name}" for name in BROKEN]
    info = tmp_path / "acme_checks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-checks\nVersion: 1.0\n")
    text = "\n".join(["[pullback.checks]", *points])
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    (tmp_path / "ops.py").write_text(OPS, encoding="utf-8")
    return tmp_path


def test_third_party_check_reports_and_broken_ones_skip(package, run_python):
    example = ["--example", "torch.tensor([-1.0, 2.0])"]
    select = ["--select", "acme", "--select", "broken", "--select", "wrong-factor"]

    run = run_python(
        "-m", "pullback", "check", "ops.py", "--json", *example, *select, folder=package
    )

    assert run.returncode == 1, run.stderr
    (report,) = json.loads(run.stdout)["reports"]
    (finding,) = report["findings"]
    assert finding["rule"]["name"] == "gradient-not-finite"
    assert finding["rule"]["sentence"] == "Gradients must be finite where forward is"
    assert finding["at"] == "gradient of `x`"
    reasons = {skip["rule"]["name"]: skip["reason"] for skip in report["skips"]}
    assert reasons.pop("always-failing") == "the check itself failed: KeyError: 'lost'"
    assert sorted(reasons) == sorted(BROKEN)
    assert {name: BROKEN[name][1] in reason for name, reason in reasons.items()} == dict.fromkeys(
        BROKEN, True
    )


KNOWING = """
from pullback.extend import At, Cause, Gradient, Rule, text_of

RULE = Rule("ACME5", "acme-knows", "acme")


def check(subject):
    yield subject.finding(RULE, example=subject.base, at=At(Gradient("x")), got="too much")


def shown(context):
    return text_of(context.settings(), context.done(), f"assert not {context.outputs()}.numel()")


REPROS = (shown,)
EXPLAINS = (Cause(frozenset({"gradient-not-finite"}), "acme knows why"),)
"""


def test_third_party_check_brings_repros_and_causes(package, warm_python):
    (package / "acme_checks" / "knowing.py").write_text(KNOWING, encoding="utf-8")
    with (package / "acme_checks-1.0.dist-info" / "entry_points.txt").open("a") as points:
        points.write("\nknowing = acme_checks.knowing\n")
    example = ["--example", "torch.tensor([-1.0, 2.0])"]

    run = warm_python(
        "-m", "pullback", "check", "ops.py", "--json", "--select", "acme", *example, folder=package
    )

    (finding,) = json.loads(run.stdout)["reports"][0]["findings"]
    assert finding["rule"]["name"] == "acme-knows"
    assert finding["facts"]["also"] == "seen as gradient-not-finite (ACME1), since acme knows why"
    assert finding["repro"].endswith("out = Softplus.apply(x)\nassert not out.numel()")


def test_page_of_third_party_check_is_explained(package, warm_python):
    run = warm_python("-m", "pullback", "explain", "acme1", folder=package)

    assert run.stdout.startswith("ACME1 gradient-not-finite (wrong, group acme, from profile ")
    assert "Cannot see\n    Other values at which a gradient is not finite." in run.stdout


# ---- the names ----


def exported():
    """The names that `pullback.extend` has."""
    tree = ast.parse(Path(extend.__file__).read_text("utf-8"))
    return [name.asname for node in tree.body[1:] for name in node.names]


def test_guide_lists_the_names():
    table = GUIDE.partition("## The names")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]

    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(exported())


def test_names_are_few():
    assert len(exported()) <= 36
