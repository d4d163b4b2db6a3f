"""A finding and its repro have the same numbers, names and entries."""

import re
import sys

import pytest
import torch

from pullback.check.repro.naming import with_names
from pullback.check.runner import check
from tests.check.subjects import normal

HEAD = """
import torch


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {names}):
        ctx.save_for_backward({names})
        return {forward}

    @staticmethod
    def backward(ctx, gradient):
        {names} = ctx.saved_tensors
        {backward}
"""
LOST = "n = x.shape[0] // 2 * 2; out = gradient * t; out[n:] = 0; return out, gradient * x"

PLANTED = {
    "wrong everywhere": ("x, t", "x * t", "return gradient * t, gradient * x * x", "gradient"),
    "flipped": ("x, t", "x * t", "return -gradient * t, gradient * x", "gradient"),
    "at a size": ("x, t", "x * t", LOST, "shape"),
    "far out": ("x, t", "x.clamp(-3, 3) * t", "return gradient * t, gradient * x", "domain"),
    "cotangent changed": (
        "x, t",
        "x * t",
        "return gradient.mul_(t), gradient / t * x",
        "mutated-cotangent",
    ),
}


@pytest.fixture
def found(request, tmp_path, monkeypatch):
    """The first finding on a planted fault in a module of its own."""
    names, forward, backward, select = PLANTED[request.param]
    text = HEAD.format(names=names, forward=forward, backward=backward)
    (tmp_path / "speaking_op.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("speaking_op")
    inputs = (normal(6), normal(6, seed=1))
    yield check(module.Op, inputs, select=[select], profile="quick").findings[0]
    sys.modules.pop("speaking_op", None)


QUICK = ("wrong everywhere", "at a size")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "found",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PLANTED],
    indirect=True,
)
def test_repro_prints_numbers_of_finding(found, warm_python):
    said = warm_python("-c", found.repro).stderr

    assert found.repro
    numbers = {float(text) for text in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", said)}
    for fact in (found.expected, found.got):
        told = float(fact.partition(",")[0])
        assert any(abs(number - told) <= 1e-3 * abs(told) + 1e-9 for number in numbers)


@pytest.mark.parametrize("found", ["wrong everywhere", "far out"], indirect=True)
def test_repro_tests_the_entry_of_finding(found):
    entry = re.search(r" at (\[[\d, ]+\])", found.at).group(1)

    assert f".grad{entry}" in found.repro


@pytest.mark.parametrize("found", ["wrong everywhere"], indirect=True)
def test_repro_has_the_names_of_user(found):
    assert "t = torch.tensor(" in found.repro
    assert "Op.apply(x, t)" in found.repro


def test_name_that_is_free_is_taken():
    assert with_names("arg1 = 3\nf(arg1.t())", {"arg1": "t"}) == "t = 3\nf(t.t())"


def test_own_name_gives_way():
    text = with_names("g = 1\narg0 = 2\nf(arg0, g)", {"arg0": "g"})

    assert text == "cotangent = 1\ng = 2\nf(g, cotangent)"


def test_name_that_is_needed_stays():
    text = "torch.zeros(1)\narg0 = 2"

    assert with_names(text, {"arg0": "torch"}) == text


# ---- repros that need what came before ----


class Later(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Later.calls += 1
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g if Later.calls < 5 else 3 * g


def test_repro_that_passes_is_not_shown():
    report = check(Later, (normal(4),), select=["gradient"], profile="quick")

    assert [finding.rule.group for finding in report.findings] == ["gradient"]
    assert report.findings[0].repro == ""
