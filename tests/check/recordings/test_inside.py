"""A check of a program looks into the Functions that it calls, with the arguments they get."""

import torch

import pullback as pb
from pullback.check.options import CheckOptions
from pullback.check.recordings.inside import functions_inside, reports_inside
from pullback.check.runner import checked
from pullback.check.target.target import target_of
from pullback.judge.example import example_of
from tests.check.subjects import normal

X = normal(2, 3)


class Leaky(torch.autograd.Function):
    """Right for a slope of 0.5 only, which is what the program below passes."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, g, 0.5 * g), None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def program(x):
    return Leaky.apply(Doubled.apply(x) + 1, 0.5).sin()


def inside(program, *args):
    found, missing = functions_inside(target_of(program), [example_of(args)])
    return {one.target.name: one.inputs for one in found}, missing


def test_functions_come_with_the_arguments_that_they_get():
    found, missing = inside(program, X)

    assert list(found) == ["Doubled", "Leaky"]
    ((x, slope),) = found["Leaky"]
    assert torch.equal(x, 2 * X + 1)
    assert (x.requires_grad, x.is_leaf, slope) == (True, True, 0.5)
    assert missing == ()


def test_fault_of_a_function_inside_is_found():
    (finding,) = pb.check(program, (X,), profile="quick").of("wrong")

    assert (finding.rule.name, finding.subject) == ("wrong-at-argument", "Leaky")


def test_sound_program_says_what_was_checked():
    report = pb.check(lambda x: Doubled.apply(x).sin(), (X,), profile="quick")

    assert report.of("wrong") == ()
    assert "it calls `Doubled`, checked with the arguments that it passes there" in report.notes


def test_one_fault_is_one_finding():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    (finding,) = pb.check(lambda x: Wrong.apply(x) + 0, (X,), profile="quick").of("wrong")

    assert (finding.rule.name, finding.subject) == ("wrong-factor", "Wrong")


def test_call_that_cannot_be_kept_is_named():
    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, function):
            ctx.function = function
            return function(x)

        @staticmethod
        def backward(ctx, g):
            return 2 * g, None

    _, missing = inside(lambda x: Applied.apply(x, lambda y: 2 * y), X)

    assert [name.rpartition(".")[2] for name in missing] == ["Applied"]


def test_declared_surrogate_of_a_program_is_that_of_what_it_calls():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g

    report = pb.check(
        lambda x: Straight.apply(x), (X,), declares={"surrogate": True}, profile="quick"
    )

    assert report.of("wrong") == ()


def reports(options, options_of=lambda target: {}):
    whole = target_of(program)
    found, _ = functions_inside(whole, [example_of((X,))], options_of)
    return reports_inside(found, whole, options, checked)


def test_no_function_is_begun_when_the_time_is_up():
    assert reports(CheckOptions(seconds=0.0)) == ([], ["Doubled", "Leaky"])


def test_what_is_chosen_for_a_function_by_its_name_holds_for_it_alone():
    def options_of(target):
        return {"allow": ("wrong-factor",)} if target.name == "Leaky" else {}

    found, missing = reports(CheckOptions(select=("wrong-factor",)), options_of)

    assert [report.subject for report in found] == ["Doubled"]
    assert missing == []


def test_what_is_declared_for_a_function_by_its_name_is_its_intent():
    def options_of(target):
        return {"declares": {"surrogate": "x"}} if target.name == "Leaky" else {}

    found, _ = functions_inside(target_of(program), [example_of((X,))], options_of)

    assert [one.target.intent.has_surrogate for one in found] == [False, True]
