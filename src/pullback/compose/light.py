"""The short way from a call to the node that serves it.

What a call is (its tensors' layouts and its plain values) is looked up in a table, and whether all
around the program is as it was is asked in a microsecond; then the node runs. Every call that is
not in the table, and every moment that is not plain (transforms, forward mode, autocast, modes,
someone who watches), takes the general way, which is always right.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, get_default_dtype, nn
from torch.compiler import is_dynamo_compiling

from pullback.capture.around import State, steady_state
from pullback.capture.patch import is_watched
from pullback.function.slots import is_plain_moment
from pullback.run import backends_of
from pullback.run.making import Nodes
from pullback.run.node import MISS

CALLS = 1024  # how many are kept in the table
_TENSORS = (Tensor, nn.Parameter)
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device)

Entry = Callable[..., Any]


def key_of(args: tuple[Any, ...]) -> Any:
    """What a call is, as something to look it up by; None if it is nothing simple."""
    key: list[Any] = [get_default_dtype()]
    for arg in args:
        kind = arg.__class__
        if kind in _TENSORS:
            try:
                key += (arg.shape, arg.stride(), arg.dtype, arg.requires_grad, arg.device)
            except RuntimeError:  # nested and sparse tensors have no strides
                return None
            key += (arg.is_neg(), arg.is_conj())
        elif kind is float:
            key += (float, arg, math.copysign(1.0, arg))  # 0.0 and -0.0 are not the same
        elif kind in _PLAIN:
            key += (kind, arg)
        else:
            return None
    return tuple(key)


class Light:
    """The table of one composition.

    `make` gives the entry for a call, a function of its arguments, or None where it has to go the
    general way; `general` is that way.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        make: Callable[[tuple[Any, ...]], Entry | None],
        general: Callable[..., Any],
    ) -> None:
        self.program = program
        self.make = make
        self.general = general
        self._state: State | None = None
        # What asks whether all is as it was, and the entries that hold while it is.
        self._now: tuple[Callable[[], bool], dict[Any, Entry]] = (lambda: False, {})
        # The same for the entry that was used last, if it sees for itself whether a call fits.
        self._last: tuple[Callable[[], bool], Entry, Any] | None = None
        self._lock = threading.RLock()

    def make_call(self) -> Callable[..., Any]:
        """A function that makes a call, Dynamo reading the program itself."""
        program, general = self.program, self.general

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return program(*args, **kwargs)
            if kwargs or is_watched():
                return general(*args, **kwargs)
            last = self._last
            if last is not None and last[2] is get_default_dtype() and last[0]():
                outputs = last[1](*args)
                if outputs is not MISS:
                    return outputs
            if not is_plain_moment():
                return general(*args)
            key = key_of(args)
            holds, table = self._now
            entry = table.get(key)
            if entry is None or not holds():
                entry = self._look(key, args)
            outputs = entry(*args)
            return general(*args) if outputs is MISS else outputs

        return call

    def _look(self, key: Any, args: tuple[Any, ...]) -> Entry:
        """The entry for a call that is not in the table, or after a change around the program."""
        if key is None:
            return self.general
        with self._lock:
            if not self._now[0]():
                state, holds = steady_state(self.program)
                table = self._now[1] if state == self._state else {}
                self._state, self._now = state, (holds, table)
            holds, table = self._now
            entry = table.get(key)
            if entry is None:
                entry = self.make(args) or self.general
                if len(table) >= CALLS:
                    table.clear()
                table[key] = entry
            is_checking = getattr(entry, "checks_calls", False)
            self._last = (holds, entry, get_default_dtype()) if is_checking else None
            return entry


# ---- nodes ----


def lightened(
    derived: Any,
    general: Callable[..., Any],
    backend: str,
    failed: Callable[[tuple[Any, ...], Exception], None] = lambda args, error: None,
) -> tuple[Callable[..., Any], Nodes]:
    """The short way to a derived Function whose general way is `general`, and its nodes.

    Where a call cannot be captured, `failed` is told, and the general way is taken.
    """
    known = derived._pb_derived
    nodes = Nodes(derived.__name__, derived.__module__, known, backends_of(backend))

    def make(args: tuple[Any, ...]) -> Entry | None:
        try:
            recipe, tensors = known.recipes.find(args)
        except Exception as error:
            failed(args, error)
            return None
        row = recipe.captured.row(recipe.captured.linked(tensors))
        node = nodes.find(recipe, row)
        return None if node is None else _entry(recipe.captured, node, args, general)

    return Light(known.program, make, general).make_call(), nodes


def _entry(captured: Any, node: Entry, args: tuple[Any, ...], general: Entry) -> Entry:
    """A function of the arguments of a call that runs its node."""
    held = tuple(one.tensor for one in captured.inputs if one.tensor is not None)
    around = tuple((one.tensor, one.needs) for one in captured.closures)
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
    give = _giving(captured)
    given = [args[place] for place in places]
    is_idle = any(a is not b for a, b in zip(given, captured.linked(given), strict=True))
    if not held and give is None and len(places) == len(args) and not is_idle:
        return node

    def entry(*args: Any) -> Any:
        for tensor, needs in around:
            if tensor.requires_grad is not needs:
                return general(*args)
        row = [args[place] for place in places]
        outputs = node(*(captured.linked(row) if is_idle else row), *held)
        return outputs if give is None or outputs is MISS else give(outputs)

    return entry


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
