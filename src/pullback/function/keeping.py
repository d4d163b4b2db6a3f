"""`KeepingContext`: what a context becomes when there is more to do than PyTorch does.

Tensors on attributes and in `saved_data` are read back from behind the user's saves, and saved
intermediates get a history when backward is to be differentiated. Within one backward everything
that was saved is unpacked once, so that hooks (offload, checkpoint) see each tensor once. What was
handed to the user lives as long as the user holds it, as in PyTorch: it is unpacked again if it is
asked for after that.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pullback.function.context import AutogradContext
from pullback.function.slots import get_saved_tensors, get_to_save, set_to_save


@dataclass(slots=True)
class BackwardRun:
    """One backward of one context, in one thread.

    `records` says whether saved intermediates get a history; `saved` is what was unpacked, a weak
    reference in the place of what was handed to the user; `is_attached`, whether it has its
    history; `is_handed_over`, whether the user's part of it was given away for good.
    """

    records: bool
    saved: tuple[Any, ...] | None = None
    is_attached: bool = False
    is_handed_over: bool = False

    def found(self, since: int) -> tuple[Any, ...] | None:
        """What was unpacked, if all of it from the place `since` on is still there."""
        if self.saved is None:
            return None
        row = tuple(one() if isinstance(one, weakref.ref) else one for one in self.saved)
        pairs = zip(row[since:], self.saved[since:], strict=True)
        is_gone = any(one is None and isinstance(was, weakref.ref) for one, was in pairs)
        return None if is_gone else row

    def let_go(self, row: tuple[Any, ...], count: int) -> None:
        """Leave the first `count` of what was unpacked to the user."""
        refs = (weakref.ref(one) if isinstance(one, Tensor) else one for one in row[:count])
        self.saved = (*refs, *row[count:])


class KeepingContext(AutogradContext):
    """A context with more to do: attribute tensors, dirty inputs, intermediates with a history."""

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """What `save_for_backward` kept, checked for changes in place since."""
        if self._pb_in_jvp:  # PyTorch gives what `save_for_forward` kept
            return cast("tuple[Tensor | None, ...]", get_saved_tensors(self))
        saved = self._pb_all_saved()
        run = (self._pb_runs or {}).get(threading.get_ident())
        if run is not None and self._pb_info.is_clearing:
            return self._pb_hand_over(run, saved)
        count = len(saved) if self._pb_user_saves is None else self._pb_user_saves
        if run is not None:
            run.let_go(saved, count)
        return saved[:count]

    def _pb_hand_over(self, run: BackwardRun, saved: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        """The user's saves, given away: `clear_saved_tensors_on_access` allows one look."""
        if run.is_handed_over:
            return cast("tuple[Tensor | None, ...]", get_saved_tensors(self))  # raises
        count = len(saved) if self._pb_user_saves is None else self._pb_user_saves
        run.saved, run.is_handed_over = ((None,) * count + saved[count:]), True
        return saved[:count]

    @property
    def saved_variables(self) -> tuple[Tensor | None, ...]:
        """The deprecated name of `saved_tensors`."""
        warnings.warn(
            "'saved_variables' is deprecated; use 'saved_tensors'", DeprecationWarning, stacklevel=2
        )
        return self.saved_tensors

    def apply(self, *cotangents: Any) -> Any:
        """As in every context, the long way; each saved tensor is unpacked at most once."""
        with self._pb_run():
            return self._pb_apply_with_care(cotangents)

    def apply_boxed(self, cotangents: list[Any]) -> Any:
        """As `apply`, with the cotangents in one list."""
        with self._pb_run():
            return AutogradContext.apply_boxed(self, cotangents)

    @contextmanager
    def _pb_run(self) -> Iterator[None]:
        thread = threading.get_ident()
        runs = self.__dict__.setdefault("_pb_runs", {})
        runs[thread] = BackwardRun(records=torch.is_grad_enabled())
        try:
            yield
        finally:
            runs.pop(thread, None)

    def _pb_all_saved(self, since: int = 0) -> tuple[Tensor | None, ...]:
        run = (self._pb_runs or {}).get(threading.get_ident())
        if run is None:  # the node is inspected from outside
            return cast("tuple[Tensor | None, ...]", get_saved_tensors(self))
        saved = run.found(since)
        if saved is None:
            saved = run.saved = get_saved_tensors(self)
            run.is_attached = False
        is_due = run.records and not run.is_attached and torch.is_grad_enabled()
        if is_due and self._pb_origin is not None and saved:
            saved = run.saved = self._pb_origin.attach(self, saved)
            run.is_attached = True
        return cast("tuple[Tensor | None, ...]", saved)

    def __getattr__(self, name: str) -> Any:
        slots = self._pb_slots
        if slots is None or name not in slots:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        place = slots[name]
        return self._pb_tensor_at(place)

    def __delattr__(self, name: str) -> None:
        slots = self._pb_slots
        if slots is None or name not in slots:
            object.__delattr__(self, name)
            return
        place = slots.pop(name)
        if self._pb_kept is not None:
            self._pb_kept[place] = None
        elif (pending := get_to_save(self)) is not None:
            place += self._pb_user_saves or 0
            set_to_save(self, (*pending[:place], None, *pending[place + 1 :]))
