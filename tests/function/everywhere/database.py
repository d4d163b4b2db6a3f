"""The Functions with which PyTorch tests itself, built on any base."""

import ast
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.testing._internal import autograd_function_db as original
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from tests.function.everywhere.compare import (
    Call,
    assert_equal,
    cotangent,
    flat,
    floating,
    gradients,
    leaves,
    loss_of,
)

Check = Callable[[Call, tuple[Tensor, ...]], Any]


class _Rebuild(ast.NodeTransformer):
    """Puts the name `Function` for `torch.autograd.Function`, and leaves out some methods."""

    def __init__(self, without: tuple[str, ...]) -> None:
        self.without = without

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        assert [ast.unparse(base) for base in node.bases] == ["torch.autograd.Function"]
        node.bases = [ast.copy_location(ast.Name("Function", ast.Load()), node.bases[0])]
        node.body = [item for item in node.body if getattr(item, "name", "") not in self.without]
        return node


def rebuilt(base: type, without: tuple[str, ...] = ()) -> ModuleType:
    """The database's module, run again with `base` in the place of `torch.autograd.Function`.

    Dynamo refuses every Function with a `jvp`; `without=("jvp",)` lets the others be compiled.
    """
    tree = _Rebuild(without).visit(ast.parse(inspect.getsource(original)))
    module = ModuleType("_".join((original.__name__, base.__module__.split(".")[0], *without)))
    module.Function = base
    sys.modules[module.__name__] = module  # where Dynamo looks up the names in the code
    exec(compile(tree, original.__file__, "exec"), module.__dict__)
    return module


def operators(module: ModuleType) -> dict[str, OpInfo]:
    return {
        info.name.removesuffix("AutogradFunction"): info for info in module.autograd_function_db
    }


def samples(info: OpInfo, dtype: torch.dtype = torch.float64) -> list[SampleInput]:
    """The operator's sample inputs, the same ones at every call.

    Not by its `sample_inputs`, which looks for the test that asks in the stack, line by line.
    """
    torch.default_generator.manual_seed(0)
    return list(info.sample_inputs_func(info, "cpu", dtype, requires_grad=False))


def problems(info: OpInfo) -> list[tuple[Call, tuple[Tensor, ...]]]:
    """Each sample as a function of its floating tensors alone, and those tensors."""
    return [_problem(info.op, sample) for sample in samples(info)]


def _problem(op: Call, sample: SampleInput) -> tuple[Call, tuple[Tensor, ...]]:
    # Dynamo may not know a bound `apply` of torch 2.15 that it finds in a variable.
    function = getattr(op, "__self__", None)
    call = op if function is None else lambda *args, **kwargs: function.apply(*args, **kwargs)
    arguments = (sample.input, *sample.args)
    places = [i for i, x in enumerate(arguments) if isinstance(x, Tensor) and x.is_floating_point()]

    def f(*tensors: Tensor) -> tuple[Tensor, ...]:
        filled = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return flat(call(*filled, **sample.kwargs))

    return f, tuple(arguments[place] for place in places)


# ---- what is asked of each of them ----


def only_floating(f: Call) -> Call:
    return lambda *xs: floating(f(*xs))


def every(xs: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(xs)))


def tangents(xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(cotangent(x, i) for i, x in enumerate(xs))


def first_order(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradients(f, xs)


def numerical(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradcheck(only_floating(f), leaves(xs))


def numerical_batched(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradcheck(only_floating(f), leaves(xs), check_batched_grad=True)


def numerical_twice(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradgradcheck(only_floating(f), leaves(xs))


def numerical_forward(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradcheck(only_floating(f), leaves(xs), check_forward_ad=True, check_backward_ad=False)


def numerical_forward_over_reverse(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradgradcheck(
        only_floating(f),
        leaves(xs),
        check_fwd_over_rev=True,
        check_rev_over_rev=False,
        check_undefined_grad=False,
    )


def func_grad(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return grad(loss_of(f), argnums=every(xs))(*xs)


def func_grad_of_grad(f: Call, xs: tuple[Tensor, ...]) -> Any:
    def norm(*ys: Tensor) -> Tensor:
        return sum((g * g).sum() for g in func_grad(f, ys))

    return grad(norm, argnums=every(xs))(*xs)


def func_vjp(f: Call, xs: tuple[Tensor, ...]) -> Any:
    outs, pull = vjp(only_floating(f), *xs)
    return outs, pull(tangents(outs))


def func_jvp(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return jvp(only_floating(f), xs, tangents(xs))


def func_jacrev(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return jacrev(only_floating(f), argnums=every(xs))(*xs)


def func_jacfwd(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return jacfwd(only_floating(f), argnums=every(xs))(*xs)


def func_hessian(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return hessian(loss_of(f), argnums=every(xs))(*xs)


def vmap_like_a_loop(f: Call, xs: tuple[Tensor, ...]) -> Any:
    batch = [torch.stack([x, 0.9 * x, 0.8 * x]) for x in xs]
    loop = [f(*sample) for sample in zip(*batch, strict=True)]
    result = vmap(f)(*batch)
    assert_equal(result, tuple(torch.stack(outs) for outs in zip(*loop, strict=True)))
    return result


def vmap_over_last_dim(f: Call, xs: tuple[Tensor, ...]) -> Any:
    batch = [torch.stack([x, 0.9 * x, 0.8 * x], -1) for x in xs]
    loop = [f(*sample) for sample in zip(*(x.unbind(-1) for x in batch), strict=True)]
    result = vmap(f, in_dims=-1)(*batch)
    assert_equal(result, tuple(torch.stack(outs) for outs in zip(*loop, strict=True)))
    return result


def vmap_of_grad(f: Call, xs: tuple[Tensor, ...]) -> Any:
    batch = [torch.stack([x, 0.9 * x, 0.8 * x]) for x in xs]
    return vmap(grad(loss_of(f), argnums=every(xs)))(*batch)


def grad_of_vmap(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return gradients(vmap(only_floating(f)), [torch.stack([x, 0.9 * x, 0.8 * x]) for x in xs])


def jvp_of_grad(f: Call, xs: tuple[Tensor, ...]) -> Any:
    return jvp(grad(loss_of(f), argnums=every(xs)), xs, tangents(xs))


def vmap_of_jvp(f: Call, xs: tuple[Tensor, ...]) -> Any:
    batch = [torch.stack([x, 0.9 * x]) for x in xs]
    return vmap(lambda *ys: jvp(only_floating(f), ys, tangents(ys)))(*batch)


def compiled(f: Call, xs: tuple[Tensor, ...]) -> Any:
    program = torch.compile(f, backend="aot_eager", fullgraph=True)
    result = gradients(program, xs)
    assert_equal(result, gradients(f, xs))
    return result


def compiled_with_breaks(f: Call, xs: tuple[Tensor, ...]) -> Any:
    result = gradients(torch.compile(f, backend="aot_eager"), xs)
    assert_equal(result, gradients(f, xs))
    return result


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        first_order,
        numerical,
        numerical_batched,
        numerical_twice,
        numerical_forward,
        numerical_forward_over_reverse,
        func_grad,
        func_grad_of_grad,
        func_vjp,
        func_jvp,
        func_jacrev,
        func_jacfwd,
        func_hessian,
        vmap_like_a_loop,
        vmap_over_last_dim,
        vmap_of_grad,
        grad_of_vmap,
        jvp_of_grad,
        vmap_of_jvp,
        compiled,
        compiled_with_breaks,
    )
}
