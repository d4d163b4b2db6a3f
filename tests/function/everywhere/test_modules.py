"""Modules that use a Function are pickled, copied and trained like any other."""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

import pullback as pb
from tests.function.everywhere.compare import assert_equal, leaves, weighed
from tests.function.everywhere.functions import ENTRIES, wave


class Swish(pb.Function):
    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * torch.sigmoid(slope * x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.slope * x)
        return {"x": grad * gate * (1 + ctx.slope * x * (1 - gate))}


class Steep(Swish):
    """A Function derived from a Function, with a forward of its own."""

    @staticmethod
    def forward(ctx, x, slope):
        return Swish.forward(ctx, x, 2 * slope)


class Activation(nn.Module):
    """Holds the Function as a class, its bound `apply`, and a number that goes with it."""

    def __init__(self, function: type, slope: float) -> None:
        super().__init__()
        self.function = function
        self.apply_function = function.apply
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.slope) + self.apply_function(x, 2 * self.slope)


def plain_swish(x: Tensor, slope: float) -> Tensor:
    return x * torch.sigmoid(slope * x)


class PlainActivation(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return plain_swish(x, self.slope) + plain_swish(x, 2 * self.slope)


def network(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), activation, nn.Linear(8, 2)).double()


def pickled(module: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(module))


def saved(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def after_use(module: nn.Module) -> nn.Module:
    """A deep copy of a module that has run, and whose parameters hold gradients."""
    pull(module)
    module.zero_grad()
    return copy.deepcopy(module)


def pull(module: nn.Module) -> tuple[Tensor, list[Tensor]]:
    x = leaves([wave(3, 4)])[0]
    out = module(x)
    weighed(out).backward()
    return out.detach(), [x.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("function", [Swish, Steep])
@pytest.mark.parametrize("duplicate", [pickled, saved, copy.deepcopy, after_use])
def test_duplicate_of_module_gives_same_gradients(duplicate, function):
    slope = 1.5
    twin = duplicate(network(Activation(function, slope)))
    plain = network(PlainActivation(slope if function is Swish else 2 * slope))

    assert_equal(pull(twin), pull(plain))


@pytest.mark.parametrize("function", [Swish, Steep])
def test_function_class_is_pickled_by_name(function):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


def test_bound_apply_survives_pickling():
    apply = pickle.loads(pickle.dumps(Swish.apply))
    (x,) = leaves([wave(3)])

    assert_equal(apply(x, 1.5), plain_swish(x, 1.5))


def test_module_with_function_loads_state_dict():
    module, twin = network(Activation(Swish, 1.5)), network(Activation(Swish, 1.5))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    twin.load_state_dict(module.state_dict())

    assert_equal(pull(twin), pull(module))


# ---- a training loop ----

CURVES = {
    "saves-input": lambda x: x * x,
    "saves-output": torch.sigmoid,
    "saves-intermediate": lambda x: x * torch.sigmoid(x),
    "keeps-intermediate-on-ctx": torch.sin,
    "writes-its-rules": torch.tanh,
    "is-opaque": torch.erf,
}


class Elementwise(nn.Module):
    def __init__(self, f) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x)


def losses(f, steps: int = 60, compiled: bool = False) -> list[float]:
    """The loss of each step of fitting `sin(3x)` with `f` as the activation."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1, 16), Elementwise(f), nn.Linear(16, 16), Elementwise(f), nn.Linear(16, 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).unsqueeze(1)
    target = (3 * x).sin()
    run = torch.compile(model, backend="aot_eager") if compiled else model
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (run(x) - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


@pytest.mark.quick(4)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", CURVES)
def test_training_follows_plain_loss_curve(name, compiled):
    curve = losses(ENTRIES[name].build(pb.Function), compiled=compiled)

    assert curve == pytest.approx(losses(CURVES[name]), rel=1e-7)
    assert curve[-1] < 0.5 * curve[0]


# ---- subclasses of subclasses ----


class Halved(Swish):
    """Only the backward is new."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(ctx.slope * x)
        return {"x": 0.5 * grad * gate * (1 + ctx.slope * x * (1 - gate))}


class Steeper(Halved):
    """Only the forward is new."""

    @staticmethod
    def forward(ctx, x, slope):
        return Swish.forward(ctx, x, 2 * slope)


class Unchanged(Steeper):
    pass


SLOPES = {Halved: 1.5, Steeper: 3.0, Unchanged: 3.0}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("function", SLOPES)
def test_descendant_overrides_only_what_it_defines(function, compiled):
    (x,) = leaves([wave(3, 4)])

    def call(y: Tensor) -> Tensor:
        return function.apply(y, 1.5)

    out = (torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call)(x)
    (actual,) = torch.autograd.grad(weighed(out), x)

    plain = plain_swish(x, SLOPES[function])
    (expected,) = torch.autograd.grad(weighed(plain), x)
    assert_equal(out, plain)
    assert_equal(actual, 0.5 * expected)


class Doubled(Swish):
    @staticmethod
    def backward(ctx, grad):
        return {"x": 2 * Swish.backward(ctx, grad)["x"]}


def test_child_may_call_backward_of_parent():
    (x,) = leaves([wave(3, 4)])
    (actual,) = torch.autograd.grad(weighed(Doubled.apply(x, 1.5)), x)

    (expected,) = torch.autograd.grad(weighed(plain_swish(x, 1.5)), x)
    assert_equal(actual, 2 * expected)


@pytest.mark.parametrize("function", [Swish, Steep, *SLOPES])
def test_node_carries_name_of_descendant(function):
    (x,) = leaves([wave(3)])

    assert type(function.apply(x, 1.5).grad_fn).__name__ == f"{function.__name__}Backward"
    assert issubclass(function, torch.autograd.Function)
