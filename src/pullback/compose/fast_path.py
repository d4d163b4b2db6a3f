"""The short way from a call to the node that serves it.

What a call is (its tensors' layouts, its plain values, whether gradients are recorded, autocast) is
looked up in a table, and whether all around the program is as it was is asked in a microsecond;
then the node runs. Every call that no node serves, and every moment that is not ordinary
(transforms, forward mode, modes, someone who watches), takes the general way, which is always
right. How often each path was taken is counted.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, get_default_dtype, is_grad_enabled, nn
from torch.compiler import is_dynamo_compiling

from pullback.capture.environment import State, steady_state
from pullback.capture.modes import autocast_now, autocast_off
from pullback.capture.patch import is_watched
from pullback.capture.trees import tensors_in
from pullback.derive.returned import record_of
from pullback.function.slots import has_autocast, is_ordinary_moment
from pullback.run import backends_of
from pullback.run.making import Nodes
from pullback.run.node import MISS
from pullback.run.paths import KEYWORD, SUBCLASS, TRANSFORM, Paths

CALLS = 1024  # how many are kept in the table
_TENSORS = (Tensor, nn.Parameter)
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device)

Entry = Callable[..., Any]


def key_of(args: tuple[Any, ...]) -> Any:
    """What a call is, as something to look it up by; None if it is nothing simple."""
    key: list[Any] = [get_default_dtype(), is_grad_enabled(), has_autocast() and autocast_now()]
    return tuple(key) if _extend(key, args) else None


def _extend(key: list[Any], args: Any) -> bool:
    """Add what the arguments are; False if one of them is nothing simple."""
    for arg in args:
        kind = arg.__class__
        if kind in _TENSORS:
            try:
                key += (arg.shape, arg.stride(), arg.dtype, arg.requires_grad, arg.device)
            except RuntimeError:  # nested and sparse tensors have no strides
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


class FastPath:
    """The table of one composition.

    `make` gives the entry for a call, a function of its arguments, and the path that it takes in
    words; or None where the call has to go the general way, which is `general`.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        make: Callable[[tuple[Any, ...]], tuple[Entry, str] | None],
        general: Callable[..., Any],
        paths: Paths,
    ) -> None:
        self.program = program
        self.make = make
        self.general = general
        self.paths = paths
        self._signature = _signature(program)
        self._state: State | None = None
        # What asks whether all is as it was, and the entries that hold while it is, with the counts
        # of their paths.
        self._now: tuple[Callable[[], bool], dict[Any, tuple[Entry, list[int]]]] = _NOTHING
        # The same for the entry that was used last, if it sees for itself whether a call fits.
        self._last: tuple[Callable[[], bool], Entry, Any, list[int]] | None = None
        self._lock = threading.RLock()

    def make_call(self) -> Callable[..., Any]:
        """A function that makes a call, Dynamo reading the program itself."""
        program, general = self.program, self.general

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return program(*args, **kwargs)
            if is_watched():
                return general(*args, **kwargs)
            if kwargs:
                placed = self._placed(args, kwargs)
                if placed is None:
                    return self._uncompiled(KEYWORD, args, kwargs)
                args = placed
            last = self._last
            if last is not None and last[2] is get_default_dtype() and last[0]():
                outputs = last[1](*args)
                if outputs is not MISS:
                    last[3][0] += 1
                    return outputs
            if not is_ordinary_moment():
                return self._uncompiled(TRANSFORM, args, {})
            key = key_of(args)
            if key is None:
                return self._uncompiled(SUBCLASS, args, {})
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
        """Look for every entry anew."""
        with self._lock:
            self._now, self._last = _NOTHING, None

    def _uncompiled(self, reason: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.paths.is_told:
            self.paths.uncompiled(reason)
        return self.general(*args, **kwargs)

    def _placed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """A call by positions alone; None if that cannot be."""
        try:
            bound = self._signature.bind(*args, **kwargs) if self._signature else None
        except TypeError:
            return None  # the general way says what is wrong
        return None if bound is None or bound.kwargs else bound.args

    def _look(self, key: Any, args: tuple[Any, ...]) -> tuple[Entry, list[int]]:
        """The entry for a call that is not in the table, or after a change around the program."""
        with self._lock:
            if not self._now[0]():
                state, holds = steady_state(self.program)
                table = self._now[1] if state == self._state else {}
                self._state, self._now = state, (holds, table)
            holds, table = self._now
            found = table.get(key)
            if found is None:
                made = self.make(args) or (self.general, "run the general way, op by op")
                found = made[0], self.paths.tally(made[1])
                if len(table) >= CALLS:
                    table.clear()
                table[key] = found
            is_checking = getattr(found[0], "checks_calls", False)
            self._last = (holds, found[0], get_default_dtype(), found[1]) if is_checking else None
            return found


_NOTHING: Any = (lambda: False, {})


def _signature(program: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(program)
    except (TypeError, ValueError):
        return None


# ---- nodes ----


def with_fast_path(
    derived: Any,
    general: Callable[..., Any],
    backend: str,
    failed: Callable[[tuple[Any, ...], Exception], None] = lambda args, error: None,
    *,
    verify: bool = True,
) -> tuple[Callable[..., Any], Nodes]:
    """The short way to a derived Function whose general way is `general`, and its nodes.

    Where a call cannot be captured, `failed` is told, and the general way is taken. Compiled nodes
    are compared with their recipes, unless `verify` is False.
    """
    known = record_of(derived)
    name, module = derived.__name__, derived.__module__
    nodes = Nodes(name, module, known, backends_of(backend), verifies=verify)

    def make(args: tuple[Any, ...]) -> tuple[Entry, str] | None:
        try:
            recipe, tensors = known.recipes.find(args)
        except Exception as error:
            failed(args, error)
            return None
        row = recipe.captured.row(recipe.captured.linked(tensors))
        with autocast_off():
            found = nodes.find(recipe, row)
        if found is None:
            return None
        return _entry(recipe.captured, found.node, args, general), found.path

    light = FastPath(known.program, make, general, nodes.paths)
    nodes.await_backends(light.forget)
    return light.make_call(), nodes


def _entry(captured: Any, node: Entry, args: tuple[Any, ...], general: Entry) -> Entry:
    """A function of the arguments of a call that runs its node."""
    held = tuple(one.tensor for one in captured.inputs if one.tensor is not None)
    around = tuple((one.tensor, one.needs) for one in captured.closures)
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    is_nested = any(isinstance(arg, (list, tuple, dict)) for arg in args)
    give = _giving(captured)
    given = tensors_in(args)
    is_idle = any(a is not b for a, b in zip(given, captured.linked(given), strict=True))
    casts = has_autocast()
    is_bare = not held and give is None and not is_idle and not casts
    if is_bare and len(places) == len(args):
        return node

    def entry(*args: Any) -> Any:
        for tensor, needs in around:
            if tensor.requires_grad is not needs:
                return general(*args)
        given = tensors_in(args) if is_nested else [args[place] for place in places]
        outputs = node(*(captured.linked(given) if is_idle else given), *held)
        return outputs if give is None or outputs is MISS else give(outputs)

    def without_casts(*args: Any) -> Any:
        with autocast_off():  # the graph has its casts in it
            return entry(*args)

    return without_casts if casts else entry


def _giving(captured: Any) -> Callable[[Any], Any] | None:
    """How a node's outputs become what the program returns; None if they are that already."""
    spec, outputs = captured.out_spec, captured.outputs
    is_single = captured.joint.output_count == 1
    in_order = [o.index for o in outputs if o.returned] == list(range(len(outputs)))
    if in_order and (spec.is_leaf() if is_single else spec.type is tuple and _is_flat(spec)):
        return None
    if is_single:
        return lambda output: captured.give((output,))
    return captured.give  # type: ignore[no-any-return]


def _is_flat(spec: Any) -> bool:
    return all(child.is_leaf() for child in spec.children())
