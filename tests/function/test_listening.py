"""A context that only listens takes every call that a real one takes."""

import inspect

import torch

import pullback as pb
from pullback.function.listening import ListeningContext


def test_every_public_name_is_taken():
    ours = vars(pb.AutogradContext)
    public = [name for name in ours if not name.startswith("_")]
    engine = {"apply", "apply_boxed", "apply_jvp"}  # what only a backward or a jvp is asked
    ctx = ListeningContext((True,), ())

    assert [name for name in public if name not in engine and not hasattr(ctx, name)] == []


def test_calls_take_the_same_arguments():
    for name in ("save_for_backward", "mark_dirty", "mark_non_differentiable"):
        real = inspect.signature(getattr(pb.AutogradContext, name))
        listening = inspect.signature(getattr(ListeningContext, name))

        assert list(real.parameters) == list(listening.parameters)


def test_marks_are_given_back():
    ctx = ListeningContext((True,), ())
    x, y = torch.ones(1), torch.ones(1)
    assert ctx.get_and_bump_dirty() == ()
    assert ctx.get_non_differentiable() == ()
    ctx.mark_dirty(x)
    ctx.mark_non_differentiable(y)

    assert ctx.get_and_bump_dirty() == (x,)
    assert ctx.get_non_differentiable() == (y,)
    assert x._version == 0


def test_saved_tensors_are_empty_as_in_forward():
    ctx = ListeningContext((True,), ())
    ctx.save_for_backward(torch.ones(1))

    assert ctx.saved_tensors == ()
    assert ctx.get_saved_variables() == ()


def test_attributes_and_data_are_plain():
    ctx = ListeningContext((True,), ())
    x = torch.ones(1)
    ctx.kept, ctx.saved_data["x"], ctx.number = x, x, 3
    del ctx.number

    assert ctx.kept is x
    assert ctx.saved_data["x"] is x
    assert not hasattr(ctx, "number")


def test_flags_are_tuple_and_question():
    needs = ListeningContext((True, False, False), plain=(1,)).needs_input_grad

    assert needs == (True, False, False)
    assert [needs(0), needs(1)] == [True, False]
    assert needs([(0, 2)])
    assert not needs([(1, 2)])
    assert not needs([])
