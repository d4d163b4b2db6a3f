"""Routes through `torch.func`, forward mode and `make_fx`."""

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.function.everywhere.compare import (
    ROWS,
    Call,
    Tensors,
    assert_equal,
    cotangent,
    flat,
    floating,
    gradients,
    leaves,
    loss_of,
)
from tests.function.everywhere.routes.route import Route


def every(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(tensors)))


def only_floating(f: Call) -> Call:
    return lambda *xs: floating(f(*xs))


def func_grad(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)
    actual = grad(loss_of(f), argnums=every(xs))(*xs)

    assert_equal(actual, gradients(reference, xs))


def func_grad_twice(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)

    def squared_norm(*ys: Tensor) -> Tensor:
        return sum((g * g).sum() for g in grad(loss_of(f), argnums=every(xs))(*ys))

    def expected_norm(*ys: Tensor) -> Tensor:
        first = torch.autograd.grad(loss_of(reference)(*ys), ys, create_graph=True)
        return sum((g * g).sum() for g in first)

    actual = grad(squared_norm, argnums=every(xs))(*xs)

    ys = leaves(xs)
    # Detached inputs alone carry no graph when the gradient is constant.
    norm = expected_norm(*ys)
    expected = (
        torch.autograd.grad(norm, ys, materialize_grads=True)
        if norm.requires_grad
        else tuple(torch.zeros_like(y) for y in ys)
    )
    assert_equal(actual, expected)


def func_vjp(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)
    outs, pull = vjp(only_floating(f), *xs)
    actual = pull(tuple(cotangent(out, i) for i, out in enumerate(outs)))

    assert_equal(outs, floating(reference(*xs)))
    assert_equal(actual, gradients(reference, xs))


def func_jvp(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)
    tangents = tuple(cotangent(x, i) for i, x in enumerate(xs))

    assert_equal(jvp(only_floating(f), xs, tangents), jvp(only_floating(reference), xs, tangents))


def batched(tensors: tuple[Tensor, ...], dim: int) -> tuple[Tensor, ...]:
    """Four variants of each tensor, stacked along `dim`."""
    return tuple(torch.stack([x * s for s in (1.0, 0.9, 0.8, 0.7)], dim) for x in tensors)


def func_vmap(dim: int) -> Route:
    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        batch = batched(tensors(ROWS), dim)
        loop = [flat(reference(*xs)) for xs in zip(*(x.unbind(dim) for x in batch), strict=True)]
        expected = tuple(torch.stack(outs) for outs in zip(*loop, strict=True))

        assert_equal(vmap(lambda *xs: flat(f(*xs)), in_dims=dim)(*batch), expected)

    return Route(run, needs=("transforms", "vmaps"))


def gradient_of_vmap(f: Call, reference: Call, tensors: Tensors) -> None:
    """Reverse mode from outside through a batched call."""
    batch = batched(tensors(ROWS), 0)

    def looped(*ys: Tensor):
        loop = [floating(reference(*xs)) for xs in zip(*ys, strict=True)]
        return tuple(torch.stack(outs) for outs in zip(*loop, strict=True))

    assert_equal(gradients(vmap(only_floating(f)), batch), gradients(looped, batch))


def vmap_of_gradient(f: Call, reference: Call, tensors: Tensors) -> None:
    """Per-sample gradients."""
    batch = batched(tensors(ROWS), 0)
    actual = vmap(grad(loss_of(f), argnums=every(batch)))(*batch)

    loop = [gradients(reference, xs) for xs in zip(*batch, strict=True)]
    assert_equal(actual, tuple(torch.stack(grads) for grads in zip(*loop, strict=True)))


def vmap_of_some(f: Call, reference: Call, tensors: Tensors) -> None:
    """Only the first input has the batch dimension."""
    first, *rest = tensors(ROWS)
    (batch,) = batched((first,), 0)
    in_dims = (0, *(None for _ in rest))
    loop = [floating(reference(x, *rest)) for x in batch]

    assert_equal(
        vmap(only_floating(f), in_dims=in_dims)(batch, *rest),
        tuple(torch.stack(outs) for outs in zip(*loop, strict=True)),
    )


def jacobian(transform: Call) -> Call:
    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        xs = tensors(2)
        actual = transform(only_floating(f), argnums=every(xs))(*xs)

        expected = torch.autograd.functional.jacobian(only_floating(reference), xs)
        assert_equal(actual, expected)

    return run


def func_hessian(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(2)
    actual = hessian(loss_of(f), argnums=every(xs))(*xs)

    assert_equal(actual, torch.autograd.functional.hessian(loss_of(reference), xs))


def reverse_hessian(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(2)
    actual = jacrev(jacrev(loss_of(f), argnums=every(xs)), argnums=every(xs))(*xs)

    assert_equal(actual, torch.autograd.functional.hessian(loss_of(reference), xs))


def forward_mode(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)
    tangents = tuple(cotangent(x, i) for i, x in enumerate(xs))

    def push(g: Call) -> list:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x.clone(), t) for x, t in zip(xs, tangents, strict=True)]
            return [tuple(forward_ad.unpack_dual(out)) for out in floating(g(*duals))]

    assert_equal(push(f), push(reference))


def forward_over_reverse(f: Call, reference: Call, tensors: Tensors) -> None:
    """The gradient's own derivative along a tangent: a Hessian-vector product."""
    xs = tensors(ROWS)
    tangents = tuple(cotangent(x, i) for i, x in enumerate(xs))

    def product(g: Call) -> list[Tensor]:
        with forward_ad.dual_level():
            ys = leaves(xs)
            duals = [forward_ad.make_dual(y, t) for y, t in zip(ys, tangents, strict=True)]
            loss = loss_of(g)(*duals) ** 2
            grads = torch.autograd.grad(loss, ys)
            return [forward_ad.unpack_dual(of_y).tangent for of_y in grads]

    assert_equal(product(f), product(reference))


def traced_by_make_fx(f: Call, reference: Call, tensors: Tensors) -> None:
    """A graph of forward and backward together, run on values that it was not traced with."""

    def joint(*xs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss_of(f)(*xs), xs)

    graph = make_fx(joint)(*leaves(tensors(ROWS)))
    fresh = tuple(0.9 * x for x in tensors(ROWS))

    assert_equal(graph(*leaves(fresh)), gradients(reference, fresh))


def traced_symbolically(f: Call, reference: Call, tensors: Tensors) -> None:
    def joint(*xs: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss_of(f)(*xs), xs)

    graph = make_fx(joint, tracing_mode="symbolic")(*leaves(tensors(ROWS)))

    for rows in (ROWS, 5):
        assert_equal(graph(*leaves(tensors(rows))), gradients(reference, tensors(rows)))


PUSHED = ("transforms", "pushes")
BATCHED = ("transforms", "vmaps")

TRANSFORMS = {
    "func_grad": Route(func_grad, needs=("transforms",)),
    "func_grad_twice": Route(func_grad_twice, needs=("transforms",)),
    "func_vjp": Route(func_vjp, needs=("transforms",)),
    "func_jvp": Route(func_jvp, needs=PUSHED),
    "func_vmap": func_vmap(dim=0),
    "func_vmap_last_dim": func_vmap(dim=-1),
    "func_vmap_of_some": Route(vmap_of_some, needs=BATCHED),
    "gradient_of_vmap": Route(gradient_of_vmap, needs=BATCHED),
    "vmap_of_gradient": Route(vmap_of_gradient, needs=BATCHED),
    "func_jacrev": Route(jacobian(jacrev), needs=BATCHED),
    "func_jacfwd": Route(jacobian(jacfwd), needs=(*BATCHED, "pushes")),
    "func_hessian": Route(func_hessian, needs=(*BATCHED, "pushes")),
    "reverse_hessian": Route(reverse_hessian, needs=BATCHED),
    "forward_mode": Route(forward_mode, needs=("pushes",)),
    "forward_over_reverse": Route(forward_over_reverse, needs=("pushes",)),
    "make_fx": Route(traced_by_make_fx),
    "symbolic_make_fx": Route(traced_symbolically),
}
