"""`pb.check` takes targets and inputs of every kind, and refuses the rest in plain words."""

import os
import textwrap

import pytest
import torch

import pullback as pb
from pullback.errors import (
    DeclarationError,
    ExamplesError,
    RuleNameError,
    TargetError,
    UnsoundError,
)
from tests.check import functions as f
from tests.check.subjects import normal

X = normal(5)


def message(text):
    return textwrap.dedent(text).strip()


@pytest.mark.parametrize(
    "inputs",
    [(X,), [(X,), (normal(2, 3),)], lambda: (X,), X, lambda: [(X,), (normal(2),)]],
    ids=["tuple", "several", "factory", "tensor", "factory of several"],
)
def test_inputs_may_be_given_in_many_ways(inputs):
    report = pb.check(f.HalfSquare, inputs, select=["gradient"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


@pytest.mark.parametrize(
    "target",
    [f.HalfSquare, f.HalfSquare.apply, lambda x: f.HalfSquare.apply(x)],
    ids=["class", "apply", "callable"],
)
def test_target_may_be_class_or_callable(target):
    report = pb.check(target, (X,), select=["wrong-factor"])

    assert len(report.findings) == 1


def test_sound_function_has_no_finding():
    report = pb.check(f.Square, (X,), select=["gradient", "linearity"])

    assert report.ok
    assert bool(report)
    assert report.tried["runs"] > 0


def test_finding_names_everything():
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    (finding,) = report.findings
    assert finding.subject == "HalfSquare"
    assert finding.place.split(":")[0].endswith("functions.py")
    assert finding.why == "it is 0.5 times the right one everywhere"
    assert float(finding.got) == pytest.approx(0.5 * float(finding.expected), rel=1e-4)


def test_allowed_rule_is_not_tried():
    report = pb.check(f.HalfSquare, (X,), select=["gradient"], allow=["wrong-factor"])

    assert report.ok


def test_assert_sound_raises_with_findings():
    with pytest.raises(UnsoundError) as caught:
        pb.assert_sound(f.HalfSquare, (X,), select=["wrong-factor"])

    text = str(caught.value)
    assert text.startswith("E405 unsound: `HalfSquare` must have no finding")
    assert "G103 wrong-factor (wrong)" in text
    pb.assert_sound(f.Square, (X,), select=["gradient"])


def test_examples_on_the_class_are_taken():
    class WithExamples(f.HalfSquare):
        @staticmethod
        def examples():
            return (torch.ones(3),)

    assert len(pb.check(WithExamples, select=["wrong-factor"]).findings) == 1


def test_examples_that_end_python():
    class Ending(f.HalfSquare):
        @staticmethod
        def examples():
            os._exit(3)

    with pytest.raises(ExamplesError) as caught:
        pb.check(Ending, select=["wrong-factor"])

    assert str(caught.value) == message(
        """
        E403 examples: the examples of `Ending` must be made without an error
          got:      the process in which they were made was lost: it exited with code 3
          fix:      call `test_examples_that_end_python.<locals>.Ending.examples()` in Python
        """
    )


def test_missing_inputs_are_refused():
    with pytest.raises(ExamplesError) as caught:
        pb.check(f.Square)

    assert str(caught.value) == message(
        """
        E403 examples: `Square` must come with inputs to check it with
          expected: a tuple of arguments, or `examples()` on the class that gives one
          got:      none
          fix:      pb.check(Square, (torch.randn(3, 4, requires_grad=True),))
        """
    )


def test_inputs_that_forward_refuses_are_named():
    with pytest.raises(ExamplesError) as caught:
        pb.check(f.Product, (X, normal(4)))

    assert "at:       a: float64[5], b: float64[4]" in str(caught.value)


def test_inputs_of_another_type_are_refused():
    with pytest.raises(
        ExamplesError, match="E403 examples: the inputs of `Square` must be arguments"
    ):
        pb.check(f.Square, {"x": X})


def test_target_that_cannot_be_called_is_refused():
    with pytest.raises(TargetError, match="E401 target: `3` must be something that can be called"):
        pb.check(3, (X,))


def test_unknown_rule_is_refused():
    with pytest.raises(RuleNameError, match="E404 rule-name: `no-such-rule` must be the name"):
        pb.check(f.Square, (X,), select=["no-such-rule"])


def test_unknown_profile_is_refused():
    with pytest.raises(RuleNameError, match="E404 rule-name: `profile` must name a profile"):
        pb.check(f.Square, (X,), profile="slow")


@pytest.mark.parametrize(
    ("declared", "part"),
    [
        ({"surogate": True}, "must be a mapping from what is declared"),
        ("surrogate", "must be a mapping from what is declared"),
        ({"surrogate": "z"}, "must be names of inputs, or True for all"),
        ({"nondeterministic": "much"}, "must be a bound"),
    ],
)
def test_declaration_that_makes_no_sense_is_refused(declared, part):
    class Declared(f.Square):
        declares = declared

    with pytest.raises(DeclarationError, match="E402 declaration: ") as caught:
        pb.check(Declared, (X,))

    assert part in str(caught.value)


def test_function_that_writes_inputs_can_be_checked():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    assert pb.check(Doubled, (X,), select=["gradient", "mutation"]).ok


def test_threads_of_the_caller_are_kept():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pb.check(f.Square, (X,), select=["wrong-factor"], isolate=False)

        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_rules_run_here_when_asked_to():
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"], isolate=False)

    assert len(report.findings) == 1
    assert report.notes == (
        "the rules ran in this process, which a crash or a hang would have ended: asked to",
    )


def test_program_names_the_functions_it_calls():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    (note,) = pb.check(lambda x: Twice.apply(x) + 1, (torch.randn(4),), profile="quick").notes

    assert note == "it calls `Twice`, checked with the arguments that it passes there"
    assert pb.check(Twice, (torch.randn(4),), profile="quick").notes == ()
    assert pb.check(torch.sin, (torch.randn(4),), profile="quick").notes == ()


class Speechless:
    def __repr__(self):
        raise RuntimeError("no words")


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3, None


def test_argument_without_a_repr_is_named_by_its_type():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    report = pb.check(Scaled, (x, Speechless()), select=["wrong-factor"])

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]
    assert report.examples == ("x: float64[3], how: a Speechless",)
