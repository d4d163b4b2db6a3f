"""`apply`: from the user's call to PyTorch's C code, by the shortest way that is right.

`apply` is called all day, so its usual path is short: no keyword arguments, no functorch transform,
as many arguments as `forward` has, no watcher. Everything else takes `_apply_slowly`.

A layer above that must see the calls registers itself in `call_watch`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, cast

from torch import Tensor, is_grad_enabled, no_grad
from torch.compiler import is_dynamo_compiling

from pullback.errors import HiddenTensorWarning
from pullback.function import call_watch
from pullback.function.forward import LIST
from pullback.function.info import FunctionInfo, current, info_of
from pullback.function.slots import (
    below_ad_guard,
    torch_apply,
    torchs_own,
    transforms_active,
    unwrap_if_dead,
)
from pullback.function.spread import spread_call
from pullback.function.unwritten import has_rule, lacks_backward, run_plainly, run_traced

_CONTAINERS = frozenset({list, tuple, dict})


def below_autograd() -> AbstractContextManager[Any]:
    """Dispatch below autograd, in-place and view tracking: `AutoDispatchBelowADInplaceOrView`.

    For the kernel of an op whose Autograd entry is a Function: inside the guard, a call of the op
    reaches its backend kernel and not the Function again. While Dynamo traces, nothing dispatches:
    the guard is then `no_grad`, which records as little.

    >>> import torch, pullback as pb
    >>> x = torch.ones(2, requires_grad=True)
    >>> with pb.below_autograd():
    ...     y = 2 * x
    >>> y.requires_grad
    False
    """
    return no_grad() if is_dynamo_compiling() else cast(Any, below_ad_guard())


# ---- apply ----


def _apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    info = cls._pb_info
    if info is None or info.cls is not cls:
        info = info_of(cls)
    if (
        kwargs
        or (info.fixed != -1 and len(args) != info.fixed)
        or transforms_active()
        or (call_watch.current is not None and call_watch.current.is_on())
    ):
        return _apply_slowly(info, args, kwargs)
    for arg in args:
        if not isinstance(arg, Tensor):
            info.is_mixed = True
            if type(arg) in _CONTAINERS:
                return _apply_slowly(info, args, kwargs)
        elif unwrap_if_dead(arg) is not arg:
            return _apply_slowly(info, args, kwargs)
    output = info.raw(*args)
    if output.__class__ is tuple and output and output[-1] is LIST:
        return list(output[:-1])
    return output


def _apply_slowly(info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with keywords, defaults, containers, under a functorch transform, or announced."""
    watch = call_watch.current
    if watch is None or not watch.is_on():
        return _apply_in_general(info, args, kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return _apply_in_general(info, args, kwargs)

    return watch.announce(info.cls, call, args, kwargs)


def _apply_in_general(info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    info = current(info)
    if HiddenTensorWarning not in info.warned and not info.traverses and is_grad_enabled():
        named = {info.signature.name(i): arg for i, arg in enumerate(args)} | kwargs
        for name, arg in named.items():
            if type(arg) in _CONTAINERS and _hides_tensor(arg):
                _warn_hidden(info, name, arg)
    is_whole = not lacks_backward(info.cls)
    if is_whole and transforms_active() and not (info.traverses or _plain_keywords(info, kwargs)):
        if not kwargs.keys() <= set(info.signature.names):
            return torch_apply(info.cls)(*args, **kwargs)
        # PyTorch before 2.13 passes on what it has bound a second time.
        return torch_apply(info.cls)(*info.signature.bind(args, kwargs))
    keywords = info.signature.keywords(kwargs)
    if kwargs or info.fixed != -1:
        args = info.signature.bind(args, kwargs)
    if keywords or info.traverses:
        spread = spread_call(info, args, keywords)
        if spread is not None:
            return spread[0].apply(*spread[1])
    if transforms_active():
        if is_whole or has_rule(info.cls):
            return torch_apply(info.cls)(*args)
        return run_plainly(info.cls, args)
    info.is_mixed |= not all(isinstance(arg, Tensor) for arg in args)
    args = tuple(unwrap_if_dead(a) if isinstance(a, Tensor) else a for a in args)
    output = info.raw(*args)
    if output.__class__ is tuple and output and output[-1] is LIST:
        return list(output[:-1])
    return output


def _plain_keywords(info: FunctionInfo, kwargs: dict[str, Any]) -> bool:
    """Whether keyword-only values are given and none is a tensor, which PyTorch's vmap refuses."""
    given = [kwargs[name] for name in info.signature.keyword_only if name in kwargs]
    return bool(given) and not any(isinstance(value, Tensor) for value in given)


def _hides_tensor(container: Any, depth: int = 3) -> bool:
    """Whether a tensor that requires grad is among the first items inside `container`."""
    values = container.values() if type(container) is dict else container
    return any(
        item.requires_grad
        if isinstance(item, Tensor)
        else depth > 0 and type(item) in _CONTAINERS and _hides_tensor(item, depth - 1)
        for item in islice(values, 100)
    )


def _warn_hidden(info: FunctionInfo, name: str, container: Any) -> None:
    info.warn_once(
        HiddenTensorWarning(
            f"`{info.name}.apply` must be given tensors that need gradients directly",
            at=info.signature.place,
            got=f"one that requires grad inside `{name}`, a {type(container).__name__}: "
            "no gradient will reach it",
            fix="pass it as an argument of its own, or set `traverse_lists = True` on the class",
        )
    )


_apply.__name__ = _apply.__qualname__ = "apply"
apply: Any = classmethod(torchs_own(_apply))


def _apply_plainly(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`apply` of a class without `backward`: Dynamo traces `forward` as the ops that it is."""
    if is_dynamo_compiling():
        return run_traced(cls, args, kwargs)
    return _apply(cls, *args, **kwargs)


_apply_plainly.__name__ = _apply_plainly.__qualname__ = "apply"
apply_plainly: Any = classmethod(_apply_plainly)

OURS = (_apply, _apply_plainly)
