"""The one place where a call of a derived or composed Function is looked up.

What a call is (the layouts of its tensors, its plain values, whether gradients are recorded,
autocast, the default dtype) is one key. The table says what runs such a call, and holds as long as
all that the program reads from outside is as it was, which is asked in a microsecond. What is not
in the table is made: `derive` makes a call of its node, compositions make a node for the backend
that they choose.

Every moment that is not ordinary (transforms, forward mode, modes, someone who watches), and every
call that has no key, takes the general way, which is always right.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, get_default_dtype, is_grad_enabled, nn, strided
from torch.compiler import is_dynamo_compiling

from pullback.capture.environment import Environment, State
from pullback.capture.modes import autocast_now, one_at_a_time
from pullback.capture.patch import is_watched
from pullback.function.slots import has_autocast, is_jit_tracing, is_ordinary_moment

MOST_ENTRIES = 1024  # how many are kept in the table

MISS: Final = object()
"""What an entry that checks its calls returns for one that does not fit; it has done nothing."""

_TENSORS = (Tensor, nn.Parameter)
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device)


# ---- the key ----


def call_key(args: tuple[Any, ...]) -> Any:
    """What a call is, as something to look it up by; None if it is nothing simple."""
    key: list[Any] = [get_default_dtype(), is_grad_enabled(), has_autocast() and autocast_now()]
    return tuple(key) if _extend(key, args) else None


def _extend(key: list[Any], args: Any) -> bool:
    """Add what the arguments are; False if one of them is nothing simple."""
    for arg in args:
        kind = arg.__class__
        if kind in _TENSORS:
            if arg.layout is not strided:
                return False
            try:
                key += (arg.shape, arg.stride(), arg.dtype, arg.requires_grad, arg.device)
            except RuntimeError:  # nested tensors have no strides
                return False
            key += (arg.is_neg(), arg.is_conj())
        elif kind is float:
            key += (float, arg, math.copysign(1.0, arg))  # 0.0 and -0.0 are not the same
        elif kind in _PLAIN:
            key += (kind, arg)
        elif kind in (list, tuple):
            key += (kind, len(arg))
            if not _extend(key, arg):
                return False
        elif kind is dict and all(type(name) is str for name in arg):
            key += (kind, tuple(arg))
            if not _extend(key, arg.values()):
                return False
        else:
            return False
    return True


# ---- the table ----


class CallEntry(NamedTuple):
    """What runs the calls of one key, and how often it did.

    A `run` with an attribute `checks_calls` that is True sees for itself whether a call fits, and
    returns `MISS` for one that does not: it is then tried before a key is computed.
    """

    run: Callable[..., Any]
    tally: list[int]


class Unlisted(Enum):
    """Why a call is not looked up."""

    KEYWORD = auto()  # it has arguments for keyword-only parameters
    MOMENT = auto()  # a transform, forward mode or a mode is active
    VALUE = auto()  # an argument is nothing simple


class CallTable:
    """What runs each call of one program.

    Arguments:
        environment: what the program reads from outside; compilers read the program itself.
        make: gives the entry for a call that is not in the table.
        general: makes any call.
        unlisted: called with the reason why a call is not looked up.
    """

    def __init__(
        self,
        environment: Environment,
        make: Callable[[tuple[Any, ...]], CallEntry],
        general: Callable[..., Any],
        unlisted: Callable[[Unlisted], None] = lambda why: None,
    ) -> None:
        self.environment = environment
        self.make = make
        self.general = general
        self.unlisted = unlisted
        self._signature = signature_if_known(environment.program)
        self._state: State | None = None
        # What asks whether all is as it was, and the entries that hold while it is.
        self._now: tuple[Callable[[], bool], dict[Any, CallEntry]] = _NOTHING
        # The same for the entry that was used last, if it sees for itself whether a call fits.
        self._last: tuple[Callable[[], bool], CallEntry, torch.dtype] | None = None

    def make_call(self) -> Callable[..., Any]:
        """A function that makes a call."""
        program, general = self.environment.program, self.general

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or is_jit_tracing():
                return program(*args, **kwargs)
            if is_watched():
                return general(*args, **kwargs)
            if kwargs:
                placed = self._placed(args, kwargs)
                if placed is None:
                    self.unlisted(Unlisted.KEYWORD)
                    return general(*args, **kwargs)
                args = placed
            last = self._last
            if last is not None and last[2] is get_default_dtype() and last[0]():
                run, tally = last[1]
                outputs = run(*args)
                if outputs is not MISS:
                    tally[0] += 1
                    return outputs
            if not is_ordinary_moment():
                self.unlisted(Unlisted.MOMENT)
                return general(*args)
            key = call_key(args)
            if key is None:
                self.unlisted(Unlisted.VALUE)
                return general(*args)
            holds, table = self._now
            found = table.get(key)
            if found is None or not holds():
                found = self._look(key, args)
            outputs = found[0](*args)
            if outputs is MISS:
                return general(*args)
            found[1][0] += 1
            return outputs

        return call

    def forget(self) -> None:
        """Drop every entry."""
        with one_at_a_time():
            self._now, self._last = _NOTHING, None

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """A call by positions alone; None if that cannot be."""
        try:
            bound = self._signature.bind(*args, **kwargs) if self._signature else None
        except TypeError:
            return None  # the general way says what is wrong
        return None if bound is None or bound.kwargs else bound.args

    def _look(self, key: Any, args: tuple[Any, ...]) -> CallEntry:
        """The entry for a call that is not in the table, or after a guard failed."""
        # What is made captures programs, which may make calls of their own: one lock for all.
        with one_at_a_time():
            if not self._now[0]():
                state, holds = self.environment.state()
                table = self._now[1] if state == self._state else {}
                self._state, self._now = state, (holds, table)
            holds, table = self._now
            found = table.get(key)
            if found is None:
                found = self.make(args)
                if len(table) >= MOST_ENTRIES:
                    table.clear()
                table[key] = found
            is_checking = getattr(found.run, "checks_calls", False)
            self._last = (holds, found, get_default_dtype()) if is_checking else None
            return found


_NOTHING: Any = (lambda: False, {})


def signature_if_known(program: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a program, if Python knows one."""
    try:
        return inspect.signature(program)
    except (TypeError, ValueError):
        return None
