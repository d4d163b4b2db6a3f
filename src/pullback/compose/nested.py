"""`nest`: a program as it is written, behind the same door as the other compositions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.derive.traced import traceable
from pullback.function.function import Function
from pullback.function.slots import new_class


def nest(program: Callable[..., Any]) -> Any:
    """A `Function` whose `apply` runs `program` as it is written, node by node.

    It takes no examples and captures nothing, so it serves every program. To whoever records or
    captures a program that calls it, it is transparent: its units are units of that program.

    Law: `apply` is `program`: the same outputs, gradients and errors, first and second order.

    >>> import torch
    >>> F = nest(lambda x: x.sin() ** 2)
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> F.apply(x).backward()
    >>> bool(torch.allclose(x.grad, (2 * x).sin()))
    True
    >>> print(F.explain())
    nested: as written
    """
    return as_written(program, "")


def as_written(program: Callable[..., Any], reason: str) -> Any:
    """`nest(program)`; `reason` says why it is not combined, where that was asked for."""
    program = callable_of(program)
    explained = f"nested: {reason}" if reason else "nested: as written"
    call = composition(program, "nested", lambda *args, **kwargs: program(*args, **kwargs))
    call.explain = staticmethod(lambda: explained)
    return call


def composition(program: Callable[..., Any], how: str, run: Callable[..., Any]) -> Any:
    """A `Function` called as `program` is named, whose `apply` is `run`.

    `how` is "nested" or "hybrid". Dynamo traces `program` itself.
    """

    def forward(ctx: Any, *args: Any) -> Any:
        return program(*args)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    space: dict[str, Any] = {
        "apply": classmethod(apply),
        "forward": staticmethod(forward),
        "program": staticmethod(program),
        "composed": how,
        "_pb_derived": True,
        "is_traceable": False,
        "__doc__": inspect.getdoc(program),
        "__module__": getattr(program, "__module__", __name__),
    }
    return traceable(new_class(class_name(program), Function, space), program)


def class_name(program: Callable[..., Any]) -> str:
    """The name of the class for a program: `LayerNorm` for `layer_norm`."""
    name = getattr(program, "__name__", type(program).__name__)
    name = name if name.isidentifier() else "composed"
    return "".join(part[:1].upper() + part[1:] or "_" for part in name.split("_"))


def callable_of(program: Any) -> Callable[..., Any]:
    """`program`; for the class of a Function, its `apply`."""
    if isinstance(program, type) and issubclass(program, TorchFunction):
        applied: Callable[..., Any] = program.apply
        return applied
    return program  # type: ignore[no-any-return]
