"""What is measured of a candidate: time, saved and peak memory, and the error of its gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler_legacy

from pullback.capture.seeds import normal
from pullback.capture.trees import map_leaves, tensor_leaves
from pullback.plan.precision import Gradients, error_of

ROUND_SECONDS = 0.002  # about how long one candidate runs in one round


class Task:
    """A function and what it is called on; a call runs it forward and backward.

    `leaves` are the tensors to differentiate by. A function that `changes_inputs` gets copies. A
    call returns the gradients.
    """

    __slots__ = ("args", "calls", "changes_inputs", "cotangents", "function", "leaves")

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        leaves: Sequence[Tensor],
        *,
        changes_inputs: bool = False,
    ) -> None:
        self.function = function
        self.args = tuple(args)
        self.leaves = tuple(leaves)
        self.changes_inputs = changes_inputs
        self.cotangents: list[Tensor] | None = None
        self.calls = 0  # in one round; none as long as it was never timed

    def forward(self) -> Any:
        """The output of the function."""
        return self.function(
            *(map_leaves(_copied, self.args) if self.changes_inputs else self.args)
        )

    def __call__(self) -> Gradients:
        linked = _linked(self.forward())
        if not linked or not self.leaves:
            return ()
        if self.cotangents is None:
            self.cotangents = [normal(tensor, 0) for tensor in linked]
        return torch.autograd.grad(linked, self.leaves, self.cotangents, allow_unused=True)


def _linked(returned: Any) -> list[Tensor]:
    """The outputs that have gradients. Few programs return more than one tensor or a tuple."""
    if isinstance(returned, Tensor):
        return [returned] if returned.requires_grad else []
    flat = returned if type(returned) is tuple else tensor_leaves(returned)
    if not all(isinstance(one, Tensor) for one in flat):
        flat = tensor_leaves(returned)
    return [tensor for tensor in flat if tensor.requires_grad]


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


class Meter:
    """Measures tasks on one device.

    On one thread of the CPU its clock counts the time that this thread was at work, which other
    programs do not disturb; otherwise the time that passed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        is_alone = device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if is_alone else time.perf_counter

    def now(self) -> float:
        """Seconds, for budgets."""
        return time.perf_counter()

    def time(self, task: Task) -> float:
        """Seconds for one call of a task, the mean over the calls of a round."""
        if not task.calls:
            task.calls = self._calls_for(task)
        return self._run(task, task.calls)

    def saved(self, task: Task, spared: Sequence[Tensor]) -> int:
        """The bytes that a task keeps between forward and backward, besides those of `spared`."""
        return saved_bytes(task, spared)

    def peak(self, task: Task) -> int | None:
        """The most bytes that a task holds at once."""
        return peak_bytes(task, self.device)

    def error(self, task: Task, exact: Gradients) -> float:
        """How far the gradients of a task are from the exact ones."""
        return error_of(task(), exact)

    def _calls_for(self, task: Task) -> int:
        for _ in range(2):  # the first runs compile
            task()
        each = max(self._run(task, 1), 1e-7)
        if each < ROUND_SECONDS / 8:
            each = max(self._run(task, 4), 1e-7)
        return max(1, int(ROUND_SECONDS / each))

    def _run(self, task: Task, count: int) -> float:
        self._wait()
        start = self._clock()
        for _ in range(count):
            task()
        self._wait()
        return (self._clock() - start) / count

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def measuring() -> Iterator[None]:
    """Record gradients inside, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


# ---- memory ----


def saved_bytes(run: Callable[[], Any], spared: Iterable[Tensor]) -> int:
    """The bytes that `run` keeps for backward, besides the memory of the tensors in `spared`.

    Memory that is kept several times, or through several views, counts once.
    """
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)  # alive until the end, so that no other takes its memory
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    sizes = {_memory(tensor): tensor.untyped_storage().nbytes() for tensor in kept}
    free = {_memory(tensor) for tensor in spared}
    return sum(size for memory, size in sizes.items() if memory not in free)


def _memory(tensor: Tensor) -> tuple[Any, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int | None:
    """The most bytes that `run` holds at once, besides earlier ones; None if not measurable."""
    if device.type == "cuda":
        return _peak_of_cuda(run, device)
    return _peak_of_cpu(run) if device.type == "cpu" else None


def _peak_of_cuda(run: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _peak_of_cpu(run: Callable[[], Any]) -> int | None:
    """By PyTorch's old profiler: the new one starts a thread that stays, and writes to the screen.

    It sees each allocation of this thread, by ops and by compiled code.
    """
    old: Any = profiler_legacy
    try:
        old._enable_profiler_legacy(old.profile(profile_memory=True).config())
    except (
        AttributeError,
        TypeError,
        RuntimeError,
    ):  # another torch version, or a profiler is running
        return None
    try:
        run()
    finally:
        records = old._disable_profiler_legacy()
    peak = 0
    for thread in records:
        held = 0
        for event in thread:
            if event.kind() == "memory_alloc":
                held += event.cpu_memory_usage()
                peak = max(peak, held)
    return peak
