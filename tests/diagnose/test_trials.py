"""A hand-written backward beside the derivative: same inputs, same cotangents, double precision."""

import pytest
import torch
from torch.autograd import Function

from pullback.capture.joint import capture
from pullback.diagnose.trials import Trials, UntriedError
from pullback.function.plain import plain_program
from tests.diagnose import faulty
from tests.diagnose.faulty import row


def trials_of(function, *examples):
    trials = Trials(function, examples)
    trials.add_fresh(capture(plain_program(function), trials.examples, needs=trials.needs))
    return trials


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factors):
        ctx.factors = [float(f) for f in factors]
        return x * ctx.factors[0] * ctx.factors[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors[0], None


def test_first_trial_has_examples_in_double():
    x = torch.tensor([1.0, 2.0])
    trials = Trials(faulty.SquareWithoutTwo, (x,))

    (trial,) = trials.all
    assert torch.equal(trial.tensors[0], x.double())
    assert torch.equal(trial.expected[0], 2 * trial.got[0])


def test_fresh_trials_differ_in_values_and_sizes():
    trials = trials_of(faulty.SquareWithoutTwo, row(4, 3))

    shapes = [tuple(trial.tensors[0].shape) for trial in trials.all]
    assert shapes == [(4, 3), (4, 3), (4, 3), (5, 4)]
    assert all(trial.is_wrong(0) for trial in trials.all)


def test_large_examples_are_tried_small():
    trials = trials_of(faulty.SquareWithoutTwo, row(100, 64))

    first, *others = trials.all
    assert first.is_large
    assert len(others) == 3
    assert not any(trial.is_large for trial in others)


def test_gradient_of_wrong_shape_is_kept():
    trials = Trials(faulty.LinearTransposed, (row(4, 6), row(5, 6)))

    trial = trials.all[0]
    assert trial.misfits == {1}
    assert trial.got[1].shape == (6, 5)
    assert trials.position(1) == 1


def test_names_and_positions_reach_into_arguments():
    trials = Trials(Scale, (row(3), (2.0, 3.0)))

    assert (trials.names, trials.position(0)) == (["x"], 0)


def test_kept_tensors_are_those_saved():
    x = row(5)
    kept = Trials(faulty.TanhWithInput, (x,)).kept()

    assert len(kept) == 1
    assert torch.equal(kept[0], x)


class Raising(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ZeroDivisionError("mine\nand more")


class InSinglePrecision(Function):
    @staticmethod
    def forward(ctx, x):
        return (x.float() * 3).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class NeverTheSame(Function):
    generator = torch.Generator().manual_seed(1)

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand(x.shape, generator=NeverTheSame.generator) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask


def test_equal_examples_are_told_apart_later():
    trials = trials_of(faulty.ProductSwapped, torch.ones(5), torch.ones(5))

    equal = [torch.equal(*trial.tensors) for trial in trials.all]
    assert equal == [True, False, False, False]


def test_held_out_inputs_are_new():
    trials = trials_of(faulty.MeanWithSum, row(4, 4))
    captured = capture(plain_program(faulty.MeanWithSum), trials.examples, needs=trials.needs)

    held = trials.held_out(captured)

    seen = {float(trial.tensors[0][0, 0]) for trial in trials.all}
    shapes = {trial.shapes for trial in held}
    assert seen.isdisjoint(float(trial.tensors[0][0, 0]) for trial in held)
    assert shapes >= {trial.shapes for trial in trials.all}
    assert ((6, 6),) in shapes


def test_held_out_inputs_of_large_examples_are_small():
    trials = trials_of(faulty.SquareWithoutTwo, row(100, 64))
    captured = capture(plain_program(faulty.SquareWithoutTwo), trials.examples, needs=trials.needs)

    held = trials.held_out(captured)

    assert len(held) > 1
    assert not any(trial.is_large for trial in held)


def test_error_of_backward_is_told():
    with pytest.raises(UntriedError) as caught:
        Trials(Raising, (row(3),))

    assert str(caught.value) == "its backward raises: ZeroDivisionError: mine"


def test_forward_must_give_same_outputs_again():
    with pytest.raises(UntriedError, match="other outputs each time"):
        Trials(NeverTheSame, (row(20),))


def test_precision_lost_inside_is_noticed():
    assert Trials(InSinglePrecision, (row(3),)).is_rough
    assert not Trials(faulty.SquareWithoutTwo, (row(3).float(),)).is_rough
