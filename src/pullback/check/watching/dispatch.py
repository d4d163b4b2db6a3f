"""Programs watched operator by operator: how much they compute, and turns between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from pullback.function.modes import DispatchMode
from pullback.function.slots import op_schema
from pullback.judge.example import exact_copy, mapped, tensors_in

# Operators that give another view of memory which is there already.
_VIEWS_OF_NOTHING = ("detach", "alias", "lift_fresh")

_OWN = ("aten", "prim", "prims")  # PyTorch's own operators


class Work(DispatchMode):
    """Counts the operators of a program, the numbers that they write, and those of products.

    `products` counts multiplications of matrix products and convolutions, where the work is far
    more than the numbers written. What an op that is not PyTorch's own computes is not seen.
    """

    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.operators = 0
        self.numbers = 0
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if views_memory(func) or name in _VIEWS_OF_NOTHING:
            return result
        self.operators += 1
        self.numbers += sum(tensor.numel() for tensor in tensors_in(result))
        self.products += _multiplications(name, args, result)
        return result


class _Names(DispatchMode):
    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.overloadpacket.__name__.rstrip("_"))
        return func(*args, **(kwargs or {}))


def names_of_ops(call: Callable[..., Any], args: Sequence[Any]) -> set[str]:
    """The operators that `call(*args)` uses, as far as it gets, those in place by the same name."""
    names = _Names()
    with suppress(Exception), torch.no_grad(), names:
        call(*args)
    return names.seen


def views_memory(func: Any) -> bool:
    """Whether an operator returns memory that it was given, without writing into it."""
    schema = op_schema(func)
    infos = [returned.alias_info for returned in schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def _multiplications(name: str, args: tuple[Any, ...], result: Any) -> int:
    """How many multiplications a product of matrices or a convolution has, 0 for the others."""
    written = sum(tensor.numel() for tensor in tensors_in(result))
    if name in ("mm", "bmm", "mv", "dot"):
        return written * int(args[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv"):
        return written * int(args[1].shape[-1])
    if name == "convolution":
        return written * int(args[1][0].numel())
    if name == "convolution_backward":
        one = int(args[0].numel() * args[2][0].numel())
        return one * sum(bool(asked) for asked in args[-1][:2])
    return 0


@dataclass(frozen=True, slots=True)
class Foreign:
    """A call of an op that is not PyTorch's own: the op, and copies of its arguments.

    `written` names the first argument that it changed though its schema says nothing of it.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    written: str = ""


def foreign_calls(call: Callable[..., Any], args: Sequence[Any]) -> list[Foreign]:
    """The first call of each such op that `call(*args)` makes, as far as it gets."""
    calls = _Calls()
    with suppress(Exception), torch.no_grad(), calls:
        call(*args)
    return list(calls.seen.values())


class _Calls(DispatchMode):
    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.seen: dict[Any, Foreign] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _OWN or func in self.seen:
            return func(*args, **kwargs)
        copies = mapped(args, exact_copy), mapped(kwargs, exact_copy)
        result = func(*args, **kwargs)
        self.seen[func] = Foreign(func, *copies, _written(func, args, copies[0]))
        return result


def _written(func: Any, args: Sequence[Any], before: Sequence[Any]) -> str:
    for argument, now, old in zip(op_schema(func).arguments, args, before, strict=False):
        is_declared = argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(now, torch.Tensor) and not is_declared and not torch.equal(now, old):
            return str(argument.name) if not now.isnan().any() else ""
    return ""


class Turns(DispatchMode):
    """Lets two threads go on in turns, one operator each, so that every race shows at once.

    A thread that waits for a lock cannot give its turn back: after `PATIENCE` all go on freely, and
    so they do after `MOST` turns, since a turn costs more than a small operator.
    """

    PATIENCE = 2.0
    MOST = 3000

    def __init__(self, table: TurnTable, seat: int) -> None:
        DispatchMode.__init__(self)
        self.table = table
        self.seat = seat

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.table.pass_on(self.seat)
        return result


class TurnTable:
    """Whose turn it is."""

    def __init__(self, seats: int) -> None:
        self.condition = threading.Condition()
        self.present = set(range(seats))
        self.turn = 0
        self.left = Turns.MOST

    def await_turn(self, seat: int) -> None:
        """Wait for this thread's turn, so that the order does not hang on who starts first."""
        with self.condition:
            self._wait(seat)

    def pass_on(self, seat: int) -> None:
        """Give the turn to the next thread and wait until it comes back."""
        with self.condition:
            others = sorted(self.present - {seat})
            if not others or self.left <= 0:
                return
            self.left -= 1
            self.turn = next((other for other in others if other > seat), others[0])
            self.condition.notify_all()
            self._wait(seat)

    def _wait(self, seat: int) -> None:
        came = self.condition.wait_for(
            lambda: self.turn == seat or self.present <= {seat} or self.left <= 0,
            Turns.PATIENCE,
        )
        if not came:
            self.left = 0
            self.condition.notify_all()

    def leave(self, seat: int) -> None:
        """This thread has ended: the others go on without it."""
        with self.condition:
            self.present.discard(seat)
            self.turn = min(self.present, default=0)
            self.condition.notify_all()


def in_turns(jobs: list[Callable[[], Any]]) -> list[Any]:
    """What the jobs give, each in a thread of its own, one operator at a time in turns.

    A job that raises gives its exception.
    """
    table = TurnTable(len(jobs))
    results: list[Any] = [None] * len(jobs)

    def work(seat: int) -> None:
        try:
            table.await_turn(seat)
            with Turns(table, seat):
                results[seat] = jobs[seat]()
        except Exception as error:
            results[seat] = error
        finally:
            table.leave(seat)

    threads = [threading.Thread(target=work, args=(seat,)) for seat in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Fill(DispatchMode):
    """Fresh memory holds one number, instead of what was there."""

    MAKERS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

    def __init__(self, value: float) -> None:
        DispatchMode.__init__(self)
        self.value = value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in self.MAKERS and result.numel():
            result.fill_(self.value)
        return result


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory holds NaN, and the largest number in integers, instead of what was there."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    switches: Any = torch.utils.deterministic
    filled = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)
        switches.fill_uninitialized_memory = filled
