"""Whatever the user gives becomes one subject, and what cannot is refused in one message."""

import pytest
import torch

import pullback as pb
from pullback.emit.subject import subject_of
from pullback.errors import EmitTargetError, ExamplesError, TargetError
from tests.emit.python.cases import (
    NODES,
    Cube,
    Increment,
    Leaning,
    Round,
    Scale,
    Square,
    Unwritten,
    centred,
    row,
    square_sin,
    swish,
)


class WithExamples(Square):
    """Brings its own."""

    @staticmethod
    def examples():
        return [(row(count=7),), (row(count=9),)]


class Plan:
    """As much of a plan as is looked at."""

    best = None

    def __init__(self, function):
        self.function = function


X, Y = row(), row(low=0.3, high=2.0)

KINDS = {
    "torch Function": (lambda: Square, (X,), "Square", "everything"),
    "apply of one": (lambda: Square.apply, (X,), "Square", "everything"),
    "pb Function": (lambda: Cube, (X,), "Cube", "everything"),
    "without backward": (lambda: Unwritten, (X, 2.0), "Unwritten", "auto"),
    "changing its input": (lambda: Increment, (X,), "Increment", "everything"),
    "plain function": (lambda: swish, (X,), "Swish", "auto"),
    "module": (lambda: torch.nn.Linear(5, 2), (X,), "Linear", "auto"),
    "derived": (lambda: pb.derive(swish, X, save="inputs"), None, "Swish", "inputs"),
    "combined": (lambda: pb.combine(square_sin, X, Y), None, "SquareSin", "everything"),
    "hybrid": (
        lambda: pb.hybrid(square_sin, X, Y, groups=[(0, 2)]),
        None,
        "SquareSin",
        "everything",
    ),
    "nested": (lambda: pb.nest(square_sin), (X, Y), "SquareSin", "everything"),
    "planned": (lambda: Plan(pb.combine(square_sin, X, Y)), None, "SquareSin", "everything"),
    "own examples": (lambda: WithExamples, None, "WithExamples", "everything"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_thing_becomes_a_subject(kind):
    make, examples, name, save = KINDS[kind]
    subject = subject_of(make(), examples)

    assert (subject.name, subject.save) == (name, save)
    assert len(subject.specs) == len(subject.captured.inputs)
    assert subject.parts.joint.output_count == 1


def test_own_examples_give_the_first():
    assert subject_of(WithExamples).specs[0].shape == (7,)


def test_examples_given_come_first():
    assert subject_of(WithExamples, (row(count=3),)).specs[0].shape == (3,)
    assert subject_of(pb.derive(swish, X), (row(count=3),)).specs[0].shape == (3,)


def test_flow_is_kept_for_hybrid():
    subject = subject_of(pb.hybrid(square_sin, X, Y, groups=[(0, 2)]))

    assert [*subject.flow.nodes] == [(0, 2)]
    assert [like.low for like in subject.specs] == pytest.approx([-1.5, 0.3])


def test_tensor_of_module_has_its_name():
    inputs = subject_of(Leaning, (X,)).captured.inputs

    assert [one.name for one in inputs] == ["x", "NODES"]
    assert inputs[1].tensor is NODES


def test_surrogates_are_those_declared():
    assert subject_of(Round, (X,)).surrogates == {"x"}
    assert subject_of(lambda a, b: Round.apply(a) * b, (X, Y)).surrogates == {"a", "b"}
    assert subject_of(Square, (X,)).surrogates == frozenset()


def test_doc_is_the_first_paragraph():
    assert subject_of(Scale, (X, 2.0)).doc == "x times a plain number."
    assert subject_of(lambda x: x.sin(), (X,)).doc == ""


# ---- what is refused ----


def test_missing_examples_are_asked_for():
    with pytest.raises(ExamplesError) as raised:
        pb.emit(Square)

    assert str(raised.value) == (
        "E403 examples: `Square` must be emitted with examples of its arguments\n"
        "  expected: examples=(x, ...), or `examples()` on the class that gives them\n"
        "  got:      none\n"
        "  fix:      pb.emit(Square, examples=(torch.randn(3, requires_grad=True),))"
    )


@pytest.mark.parametrize("examples", [[], (), 3.0], ids=repr)
def test_unfit_examples_are_refused(examples):
    with pytest.raises(ExamplesError, match="must be arguments to call it with"):
        subject_of(Square, examples)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TargetError, match="must be a Function class or a function of tensors"):
        subject_of(3)


@pytest.mark.slow
def test_real_plan_is_emitted():
    x, y = X.clone().requires_grad_(), Y.clone().requires_grad_()
    planned = pb.plan(square_sin, x, y, backends=["eager"], budget=2.0, progress=False)
    text = pb.emit(planned, examples=(x, y))
    space = {"__name__": "emitted"}
    exec(text, space)
    space["self_test"]()

    assert text.startswith('"""`SquareSin`: The square of x, times the sine of y.')


def test_plan_of_several_sizes_is_refused():
    function = pb.nest(centred)
    function.composed = "planned"
    with pytest.raises(TargetError, match="must be planned for one size to be emitted"):
        subject_of(Plan(function))


@pytest.mark.parametrize("target", ["cuda", "rust"])
def test_unknown_language_is_refused(target):
    with pytest.raises(EmitTargetError) as raised:
        pb.emit(Square, target, examples=(X,))

    assert str(raised.value) == (
        "E601 emit-target: `target` must be a language that pullback can emit\n"
        '  expected: "python" or "cpp" or "triton"\n'
        f"  got:      {target!r}"
    )
