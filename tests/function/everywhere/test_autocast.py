"""`custom_fwd` and `custom_bwd` keep working: backward runs in the autocast state of forward."""

import warnings
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd

import pullback as pb
from pullback.errors import PullbackError, PullbackWarning
from tests.function.everywhere.compare import (
    assert_equal,
    gradients,
    leaves,
    second_gradients,
    weighed,
)
from tests.function.everywhere.functions import wave

in_autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
pytestmark = pytest.mark.filterwarnings("ignore::pullback.errors.PullbackWarning")


def product(base: type, states: list, cast_inputs: torch.dtype | None = None) -> type:
    """A matrix product that notes the autocast state in which its methods run."""

    class Product(base):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, x, weight):
            states.append(state())
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            states.append(state())
            x, weight = ctx.saved_tensors
            return grad @ weight.t(), x.t() @ grad

    return Product


def state() -> torch.dtype | None:
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return wave(3, 4).to(dtype), wave(4, 2, start=1.1).to(dtype)


def pull(f, tensors, guard):
    """The output and the gradients, forward under `guard` and backward outside it."""
    xs = leaves(tensors)
    with guard():
        out = f(*xs)
    weighed(out).backward()
    return out.detach(), [x.grad for x in xs]


def test_backward_runs_in_state_of_forward():
    states: list = []
    pull(product(pb.Function, states).apply, inputs(), in_autocast)

    assert states == [torch.bfloat16, torch.bfloat16]


def test_backward_in_autocast_runs_without():
    states: list = []
    xs = leaves(inputs())
    loss = weighed(product(pb.Function, states).apply(*xs))
    with in_autocast():
        loss.backward()

    assert states == [None, None]


def test_autocast_gradients_match_plain_product():
    out, grads = pull(product(pb.Function, []).apply, inputs(), in_autocast)
    expected_out, expected_grads = pull(torch.matmul, inputs(), in_autocast)

    assert out.dtype == torch.bfloat16
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]
    assert_equal(out, expected_out)
    assert_equal(grads, expected_grads)


def test_inputs_are_cast_and_autocast_is_off():
    states: list = []
    function = product(pb.Function, states, cast_inputs=torch.float64)
    out, grads = pull(function.apply, inputs(), in_autocast)
    expected_out, expected_grads = pull(
        lambda x, weight: x.double() @ weight.double(), inputs(), in_autocast
    )

    assert states == [None, None]
    assert out.dtype == torch.float64
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]
    assert_equal(out, expected_out)
    assert_equal(grads, expected_grads)


def test_inputs_are_not_cast_outside_autocast():
    out, grads = pull(product(pb.Function, [], torch.float64).apply, inputs(), nullcontext)

    assert [x.dtype for x in (out, *grads)] == [torch.float32] * 3


@pytest.mark.parametrize("cast_inputs", [None, torch.float32], ids=["as-is", "cast"])
def test_decorated_gradients_match_in_float64(cast_inputs):
    xs = inputs(torch.float64)
    function = product(pb.Function, [], cast_inputs)

    assert_equal(gradients(function.apply, xs), gradients(torch.matmul, xs))
    assert_equal(second_gradients(function.apply, xs), second_gradients(torch.matmul, xs))


def second_under_autocast(f) -> tuple[Tensor, ...]:
    def guarded(*xs: Tensor) -> Tensor:
        with in_autocast():
            return f(*xs)

    return second_gradients(guarded, inputs())


def test_cast_inputs_are_never_silently_wrong_twice():
    """The cast copies are saved, and they are neither inputs nor outputs."""
    function = product(pb.Function, [], torch.float64)
    expected = second_under_autocast(lambda x, weight: x.double() @ weight.double())
    try:
        actual = second_under_autocast(function.apply)
    except PullbackError:
        actual = expected

    # The inputs are float32, and the two ways round their gradients at different places.
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def test_torch_is_silently_wrong_twice():
    function = product(torch.autograd.Function, [], torch.float64)
    expected = second_under_autocast(lambda x, weight: x.double() @ weight.double())

    with pytest.raises(AssertionError, match="not close"):
        assert_equal(second_under_autocast(function.apply), expected)


@pytest.mark.parametrize("cast_inputs", [None, torch.float64], ids=["as-is", "cast"])
def test_decorated_function_earns_no_warning(cast_inputs):
    """The engine casts the gradients of autocast inputs back: that is what autocast is."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", PullbackWarning)
        _, grads = pull(product(pb.Function, [], cast_inputs).apply, inputs(), in_autocast)

    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]


def sine_with_setup(base: type) -> type:
    class Sine(base):
        @staticmethod
        @custom_fwd(device_type="cpu")
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x.cos()

    return Sine


def test_torch_decorators_do_not_know_setup_context():
    """PyTorch puts the state on the first argument of forward, a tensor here, and not on ctx."""
    with pytest.raises(AttributeError, match="_fwd_used_autocast"):
        gradients(sine_with_setup(torch.autograd.Function).apply, [wave(3)])


@pytest.mark.slow
def test_decorated_function_compiles_whole():
    xs = inputs(torch.float64)
    function = product(pb.Function, [])
    compiled = torch.compile(lambda *ys: function.apply(*ys) + 1, backend="aot_eager")

    assert_equal(gradients(compiled, xs), gradients(torch.matmul, xs))
