"""What a class leaves unwritten: its whole backward, or the gradients that `backward` leaves out.

Both are derived from `forward`. This layer says when that is asked for, and runs `forward` as a
plain program; how gradients are derived is known to a layer above, which registers with
`register_derivation`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from torch import Tag, Tensor, is_grad_enabled

from pullback.errors import InternalError, MissingBackwardError, PullbackError
from pullback.function.listening import ListeningContext
from pullback.function.modes import DispatchMode
from pullback.function.signature import codes_of, has_setup_context, source_place, written_function
from pullback.function.slots import (
    get_needs,
    has_tangent,
    no_backward,
    no_jvp,
    no_vjp,
    no_vmap,
    top_transform,
    unseen,
    will_run,
)

if TYPE_CHECKING:
    from pullback.function.context import AutogradContext
    from pullback.function.info import FunctionInfo


@final
class Derived:
    """The type of `derived`, which stands for a gradient that is to be derived."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "pb.derived"

    def __reduce__(self) -> str:
        return "derived"  # a copy is the same one


derived: Final[Any] = Derived()


# ---- who derives ----


class Derivation(Protocol):
    """How what is unwritten is derived: `pullback.derive.missing` is one."""

    def make_call(self, info: FunctionInfo, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The call of a class without `backward`.

        Guarantee: it gives what `plain`, PyTorch's own call, gives, with the derivatives of
        `forward`.
        """

    def pull(
        self,
        info: FunctionInfo,
        args: Sequence[Any],
        cotangents: Sequence[Any],
        places: Sequence[int],
    ) -> list[Tensor | None]:
        """The gradients of `forward` for the inputs at `places`, and no others."""


_derivation: Derivation | None = None


def register_derivation(derivation: Derivation) -> None:
    """Derive by `derivation` from now on: `pullback.derive` says so, once, when it is imported."""
    global _derivation
    _derivation = derivation


@unseen
def derivation() -> Derivation:
    """The registered derivation."""
    if _derivation is None:
        raise InternalError("a derivation must be registered", got="none", fix="import pullback")
    return _derivation


# ---- classes without backward ----


@unseen
def lacks_backward(cls: Any) -> bool:
    """Whether `cls` has a forward, and a backward under neither of its names."""
    return cls.backward is no_backward and cls.vjp is no_vjp


def make_raw(info: FunctionInfo, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a class without `backward`: `plain` until a derivative may be asked for."""
    cls = info.cls
    calls: list[Callable[..., Any]] = []

    def raw(*args: Any) -> Any:
        if not lacks_backward(cls) or not _is_differentiated(cls, args):
            return plain(*args)
        if not calls:
            calls.append(derivation().make_call(info, plain))
        return info.opaque(calls[0])(*args)

    return cast("Callable[..., Any]", unseen(raw))


@unseen
def _is_differentiated(cls: Any, args: Sequence[Any]) -> bool:
    if is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return True
    return cls.jvp is no_jvp and has_tangent(args)


def has_rule(cls: Any) -> bool:
    """Whether `cls` brings a rule of its own for the innermost functorch transform around."""
    if not has_setup_context(cls):
        return False
    rules = {"Vmap": cls.vmap is not no_vmap, "Jvp": cls.jvp is not no_jvp}
    return rules.get(top_transform(), False)


# ---- a backward that leaves some gradients out ----


def leaves_some(cls: Any) -> bool:
    """Whether the text of `backward` mentions `derived`, so that its inputs must be kept."""
    return any(_speaks(written_function(method)) for method in (cls.backward, cls.vjp))


def _speaks(function: Any) -> bool:
    names = {name for code in codes_of(function) for name in code.co_names}
    space = getattr(function, "__globals__", {})
    values = [space.get(name) for name in names]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # still empty
            values.append(cell.cell_contents)
    modules = [v for v in values if isinstance(v, types.ModuleType)] if "derived" in names else []
    return (
        any(value is derived for value in values)
        or any(getattr(module, "derived", None) is derived for module in modules)
        or {"pullback", "derived"} <= names  # imported right there
    )


class _Kept:
    """A tensor argument, by its place among all that was saved."""

    __slots__ = ("is_changed", "place")

    def __init__(self, place: int, is_changed: bool) -> None:
        self.place = place
        self.is_changed = is_changed


def keep_arguments(
    ctx: Any, args: Sequence[Any], saved: Sequence[Any], kept: list[Any]
) -> tuple[Any, ...]:
    """The arguments of a call, tensors by their place: those not in `saved` are put into `kept`."""
    ctx._pb_become_keeping()
    dirty = ctx.dirty_tensors or ()
    row: list[Any] = []
    for arg in args:
        if not isinstance(arg, Tensor):
            row.append(arg)
            continue
        place = next((i for i, one in enumerate((*saved, *kept)) if one is arg), -1)
        if place < 0:
            place = len(saved) + len(kept)
            kept.append(arg)
        row.append(_Kept(place, any(arg is one for one in dirty)))
    return tuple(row)


def complete(
    ctx: AutogradContext, result: Sequence[Any], cotangents: Sequence[Any] | None
) -> tuple[Any, ...]:
    """`result` with the gradients that are left to be derived filled in."""
    wanted = [i for i, g in enumerate(result) if g is derived and _is_needed(ctx, i)]
    if not wanted:
        return filled(result, {})
    if cotangents is None or ctx._pb_arguments is None:
        reason = "`backward` gets `pb.derived` from elsewhere, so the inputs were not kept"
        fix = "write `pb.derived` in `backward` itself"
        info = ctx._pb_info
        raise underivable(info.cls, info.signature.name(wanted[0]), reason, fix)
    return pulled(ctx, result, cotangents, wanted, ctx._pb_all_saved())


def pulled(
    ctx: Any,
    result: Sequence[Any],
    cotangents: Sequence[Any],
    wanted: Sequence[int],
    saved: Sequence[Any],
) -> tuple[Any, ...]:
    """`result` with the gradients of the inputs at `wanted` derived, and `None` for the others.

    `saved` is all that the call saved, its arguments among it.
    """
    info = ctx._pb_info
    name = info.signature.name(wanted[0])
    row = []
    for place, one in enumerate(ctx._pb_arguments):
        if isinstance(one, _Kept) and one.is_changed:
            reason = f"`forward` changes `{info.signature.name(place)}` in place"
            raise underivable(info.cls, name, reason)
        row.append(saved[one.place] if isinstance(one, _Kept) else one)
    try:
        gradients = derivation().pull(info, row, cotangents, wanted)
    except PullbackError:
        raise
    except Exception as error:
        raise underivable(info.cls, name, str(error)) from error
    return filled(result, dict(zip(wanted, gradients, strict=True)))


def filled(result: Sequence[Any], gradients: Mapping[int, Any]) -> tuple[Any, ...]:
    """`result` with `gradients` by position, and `None` in the other places left to be derived."""
    return tuple([gradients.get(i) if g is derived else g for i, g in enumerate(result)])


class NoDraws(DispatchMode):
    """Refuses random ops: run again, they would draw other numbers than forward saw."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if Tag.nondeterministic_seeded in func.tags:
            raise RuntimeError(f"`forward` draws random numbers ({func})")
        return func(*args, **(kwargs or {}))


def _is_needed(ctx: Any, position: int) -> bool:
    """Whether the backward under way needs the gradient of the input at `position`."""
    flags = get_needs(ctx)
    if not flags[position]:
        return False
    edges = [edge for edge in ctx.next_functions if edge[0] is not None]
    place = sum(flags[:position])
    return place >= len(edges) or will_run(edges[place][0])


def underivable(cls: Any, name: str, reason: str, fix: str = "") -> MissingBackwardError:
    """The error for a gradient of the input `name` that is left to be derived and cannot be."""
    return MissingBackwardError(
        f"`{cls.__name__}.backward` must return a gradient for `{name}`, which cannot be derived",
        at=source_place(cls.backward),
        expected="a tensor or `None`",
        got=f"`pb.derived`; {reason}",
        fix=fix or f"compute the gradient of `{name}` in `backward`",
    )


# ---- forward as a plain program ----

_NONE: Mapping[str, Any] = {}


def run_traced(cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of a class without `backward`, for Dynamo: `forward` as it is written."""
    # Plain texts and values: Dynamo cannot look into a Signature.
    names, defaults, keyword_only, is_filled = cls._pb_parameters
    keywords = {name: kwargs[name] for name in kwargs if name in keyword_only}
    last = max([names.index(n) + 1 for n in kwargs if n in names], default=len(args))
    bound = list(args)
    for place in range(len(args), len(names) if is_filled else last):
        name = names[place]
        bound.append(kwargs[name] if name in kwargs else defaults[place])
    return run_plainly(cls, bound, keywords)


def run_plainly(cls: Any, args: Sequence[Any], keywords: Mapping[str, Any] = _NONE) -> Any:
    """What `forward` gives, by ops that a surrounding transform can differentiate, batch or trace.

    As after `apply`, an output marked non-differentiable has no history, and none is an input.
    """
    output, ctx = listen(cls, args, keywords)
    if isinstance(output, (tuple, list)):
        leaves = [_as_output(leaf, args, ctx) for leaf in output]
        return leaves if isinstance(output, list) else tuple(leaves)
    return _as_output(output, args, ctx)


def listen(
    cls: Any, args: Sequence[Any], keywords: Mapping[str, Any] = _NONE
) -> tuple[Any, ListeningContext]:
    """What `forward` gives, and a context that knows what it kept and marked."""
    flags = tuple([isinstance(arg, Tensor) and arg.requires_grad for arg in args])
    plain = tuple([i for i, arg in enumerate(args) if not isinstance(arg, Tensor)])
    ctx = ListeningContext(flags, plain)
    if not has_setup_context(cls):
        return cls.forward(ctx, *args, **keywords), ctx
    output = cls.forward(*args, **keywords)
    cls.setup_context(ctx, (*args, *keywords.values()), output)
    return output, ctx


def _as_output(leaf: Any, args: Sequence[Any], ctx: ListeningContext) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    if any(leaf is tensor for tensor in ctx.get_non_differentiable()):
        return leaf.detach()
    dirty = ctx.get_and_bump_dirty()
    if any(leaf is arg for arg in args) and not any(leaf is tensor for tensor in dirty):
        return leaf.view_as(leaf)
    return leaf
