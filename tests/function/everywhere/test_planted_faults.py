"""The routes are tested too: each notices a gradient or a value that is off by a thousandth."""

import pytest
import torch

from tests.function.everywhere.functions import two
from tests.function.everywhere.known import WRONG
from tests.function.everywhere.routes import ROUTES

VALUES_ONLY = {
    "no_grad",
    "inference_mode",
    "compile_no_grad",
    "export",
    "func_vmap",
    "func_vmap_last_dim",
    "func_vmap_of_some",
}
VALUES_ONLY |= {"strict_export"} & set(ROUTES)
# PyTorch traces through forward here and may never see the backward.
BACKWARD_IS_DROPPED = {"compile_func_grad", "compile_vmap", "export_gradients"}
# PyTorch raises here whatever the Function is.
ALWAYS_RAISES = {"compile_double_backward", "strict_export_gradients"}

# A gradient with a constant factor is the derivative of nothing, but has a right derivative itself.
BLIND_TO_FACTORS = {"gradgradcheck"}

pytestmark = pytest.mark.filterwarnings("ignore")


def sine_product(forward: float = 1.0, backward: float = 1.0, push: float | None = None) -> type:
    """`sin(x) y` with values, gradients and tangents off by the given factors."""

    class SineProduct(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return forward * x.sin() * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return backward * grad * x.cos() * y, backward * grad * x.sin()

    if push is None:
        return SineProduct

    class Pushed(SineProduct):
        @staticmethod
        def jvp(ctx, of_x, of_y):
            x, y = ctx.saved_tensors
            return push * (of_x * x.cos() * y + of_y * x.sin())

    return Pushed


def reference(x, y):
    return x.sin() * y


def marked(names: set[str]) -> list:
    return [
        pytest.param(
            name,
            marks=(pytest.mark.slow, pytest.mark.needs_compiler) if "inductor" in name else (),
        )
        for name in sorted(names)
    ]


PUSHED = {name for name, route in ROUTES.items() if "pushes" in route.needs}
REVERSE = set(ROUTES) - VALUES_ONLY - BACKWARD_IS_DROPPED - ALWAYS_RAISES - PUSHED


@pytest.mark.quick(12)
@pytest.mark.parametrize("route", marked(REVERSE - BLIND_TO_FACTORS))
def test_wrong_gradient_is_noticed(route):
    with pytest.raises(WRONG):
        ROUTES[route].run(sine_product(backward=1.001).apply, reference, two)


@pytest.mark.parametrize("route", marked(PUSHED))
def test_wrong_tangent_is_noticed(route):
    with pytest.raises(WRONG):
        ROUTES[route].run(sine_product(backward=1.001, push=1.001).apply, reference, two)


@pytest.mark.parametrize("route", marked(VALUES_ONLY | BACKWARD_IS_DROPPED))
def test_wrong_value_is_noticed(route):
    with pytest.raises(WRONG):
        ROUTES[route].run(sine_product(forward=1.001, backward=1.001).apply, reference, two)


COMPILING = {name for name in ROUTES if "compile" in name and name != "compile_aot_eager"}
SOUND = REVERSE | PUSHED | VALUES_ONLY


@pytest.mark.parametrize(
    "route",  # `test_every_route` lets sound Functions through the others that compile
    [
        *marked(SOUND - COMPILING),
        *(pytest.param(r, marks=pytest.mark.slow) for r in sorted(SOUND & COMPILING)),
    ],
)
def test_sound_function_is_let_through(route):
    push = 1.0 if route in PUSHED else None
    ROUTES[route].run(sine_product(push=push).apply, reference, two)
