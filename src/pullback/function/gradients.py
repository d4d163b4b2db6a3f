"""What `backward` returned, made into what the engine wants: one gradient per input, or an error.

A user's backward returns one value, a tuple, or a mapping from input name to gradient.
`gradient_row` turns it into the tuple, and checks what the engine would refuse later in words that
do not know the user's names: the number of gradients, their types, shapes and dtypes.

What an input looks like is asked of the next node in the graph, which is slow. So shapes and dtypes
are looked at once per class and cotangent shape; the engine still looks every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from pullback.errors import (
    BackwardArityError,
    BothBackwardAndVjpError,
    GradientDtypeWarning,
    GradientNameError,
    GradientShapeError,
    GradientTypeError,
    MissingBackwardError,
    NonTensorGradientError,
)
from pullback.function.signature import source_place
from pullback.function.slots import get_needs, inputs_like, no_backward, no_vjp
from pullback.function.unwritten import complete, derived

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext
    from pullback.function.info import FunctionInfo


def user_backward(info: FunctionInfo) -> Callable[..., Any]:
    """The backward of a class, under either of its names."""
    cls = info.cls
    backward, vjp = cls.backward, cls.vjp
    if vjp is no_vjp and backward is not no_backward:
        return info.opaque(backward) if info.is_opaque else backward
    if vjp is no_vjp:
        raise MissingBackwardError(
            f"`{info.name}` must define `backward` to be differentiated",
            at=info.signature.place,
            expected="`backward(ctx, *cotangents)`, one cotangent per output",
            got="none" + (info.why and f", and none can be derived: {info.why}"),
            fix="define `backward`, or mark the outputs with `ctx.mark_non_differentiable`",
            torch="You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD.",
        )
    if backward is not no_backward:
        raise BothBackwardAndVjpError(
            f"`{info.name}` must define one of `backward` and `vjp`",
            at=source_place(backward),
            got=f"both; `vjp` at {source_place(vjp)}",
            fix="delete one of them",
            torch="Implementing both 'backward' and 'vjp' for a custom Function is not allowed. "
            "You should only implement one of them.",
        )
    return info.opaque(vjp) if info.is_opaque else vjp


def gradient_row(
    ctx: AutogradContext, result: Any, cotangents: tuple[Any, ...] | None = None
) -> tuple[Any, ...]:
    """One gradient per input from what the user's backward returned.

    Guarantee: for a result that PyTorch accepts, the engine computes from `gradient_row(ctx,
    result)` what it computes from `result`.
    """
    if result.__class__ is not tuple:
        if isinstance(result, Mapping):
            signature, count = ctx._pb_info.signature, len(get_needs(ctx))
            names = tuple(signature.name(i) for i in range(count))
            also = (*signature.names, *signature.keyword_only)
            result = by_name(signature.owner, names, result, also)
        elif not isinstance(result, tuple):
            result = (result,)
    flags = get_needs(ctx)
    if len(result) != len(flags):
        result = _fit(ctx, result, len(flags))
    for position, gradient in enumerate(result):
        if gradient is not None:
            if gradient.__class__ is not Tensor:
                if gradient is derived:
                    return gradient_row(ctx, complete(ctx, result, cotangents), cotangents)
                _require_tensor(ctx, position, gradient)
            if not flags[position] and position in ctx._pb_plain:
                _refuse(ctx, position, gradient)
    return cast("tuple[Any, ...]", result)


def look_at(ctx: AutogradContext, result: tuple[Any, ...]) -> None:
    """Require each gradient's shape, and recommend its dtype, to be its input's."""
    edges = iter([edge for edge in ctx.next_functions if edge[0] is not None])
    for position, needed in enumerate(get_needs(ctx)[: len(result)]):
        node, output = next(edges, (None, 0)) if needed else (None, 0)
        gradient = result[position]
        metadata = inputs_like(node)
        if output < len(metadata) and gradient.__class__ is Tensor and not gradient.is_nested:
            like = metadata[output]
            if not sums_down_to(gradient.shape, like.shape):
                raise _misshapen(ctx, position, gradient, like.shape)
            if gradient.dtype is not like.dtype:
                _warn_dtype(ctx, position, gradient.dtype, like.dtype)


def by_name(
    owner: str, names: tuple[str, ...], gradients: Mapping[Any, Any], also: tuple[str, ...] = ()
) -> tuple[Any, ...]:
    """The gradients of a mapping in the order of `names`; names left out give `None`.

    Names in `also` are parameters that this call did not pass: their gradients go nowhere.
    """
    for name in gradients:
        if name not in names and name not in also:
            raise GradientNameError(
                f"`{owner}.backward` must name inputs of `forward`",
                expected=f"names among ({', '.join(names)})",
                got=repr(name),
                fix="use the parameter names of `forward`, without `ctx`",
            )
    return tuple([gradients.get(name) for name in names])


def _fit(ctx: AutogradContext, result: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """`result` cut to `count` values when the surplus is `None`, else an error."""
    if len(result) > count and all(gradient is None for gradient in result[count:]):
        return result[:count]
    info = ctx._pb_info
    names = ", ".join(info.signature.name(i) for i in range(count))
    raise BackwardArityError(
        f"`{info.name}.backward` must return one value per input of `forward`",
        at=source_place(user_backward(info)),
        expected=f"{count}, for ({names})",
        got=f"{len(result)}",
        fix="return `None` in the place of each input that needs no gradient",
        torch=f"function {info.name}Backward returned an incorrect number of gradients "
        f"(expected {count}, got {len(result)})",
    )


def _require_tensor(ctx: AutogradContext, position: int, gradient: Any) -> None:
    if isinstance(gradient, Tensor):
        return
    info = ctx._pb_info
    raise GradientTypeError(
        f"`{info.name}.backward` must return a tensor or `None` for "
        f"`{info.signature.name(position)}`",
        at=source_place(user_backward(info)),
        got=f"{type(gradient).__name__}",
        fix="return a tuple of tensors and `None`, or a mapping by input name",
        torch=f"expected Variable or None (got {type(gradient).__name__})",
    )


def _refuse(ctx: AutogradContext, position: int, gradient: Tensor) -> None:
    info = ctx._pb_info
    raise NonTensorGradientError(
        f"`{info.name}.backward` must return `None` for `{info.signature.name(position)}`, "
        "which is not a tensor",
        at=source_place(user_backward(info)),
        expected="None",
        got=f"a tensor of shape {list(gradient.shape)}",
        fix="return `None` in its place",
        torch=f"function {info.name}Backward returned a gradient different than None at "
        f"position {position + 1}, but the corresponding forward input was not a Variable",
    )


def _misshapen(
    ctx: AutogradContext, position: int, gradient: Tensor, shape: list[int]
) -> GradientShapeError:
    info = ctx._pb_info
    return GradientShapeError(
        f"`{info.name}.backward` must return a gradient of the shape of "
        f"`{info.signature.name(position)}`",
        at=source_place(user_backward(info)),
        expected=f"{shape}, or a shape that sums down to it",
        got=f"{list(gradient.shape)}",
        fix="reduce or transpose it; check that no two gradients are swapped",
        torch=f"Function {info.name}Backward returned an invalid gradient at index {position} "
        f"- got {list(gradient.shape)} but expected shape compatible with {shape}",
    )


def sums_down_to(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    """Whether the engine takes a gradient of this shape: one that sums down to `target`."""
    if len(shape) < len(target):
        return False
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return all(have == want or want == 1 for have, want in pairs)


def _warn_dtype(ctx: AutogradContext, position: int, got: Any, expected: Any) -> None:
    if got.is_complex and not expected.is_complex:
        return  # the engine refuses it by itself
    if "_fwd_used_autocast" in ctx.__dict__:
        return  # `custom_fwd` cast the inputs: the gradients are of the dtype it cast to
    info = ctx._pb_info
    info.warn_once(
        GradientDtypeWarning(
            f"`{info.name}.backward` must return gradients of their inputs' dtypes",
            at=source_place(user_backward(info)),
            expected=f"{expected}, for `{info.signature.name(position)}`",
            got=f"{got}, which the engine casts",
            fix=f"return it `.to({expected})`, or compute in that dtype",
        )
    )


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor of this dtype can carry a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()
