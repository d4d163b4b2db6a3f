"""Running the user's `forward` once more: random states, tensors and Dynamo stay as they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pullback.function.modes import DispatchMode, uncompiled
from pullback.function.slots import op_schema, storage_key

SEED = 20_250_101
"""The seed of random numbers where none is given."""


class TorchState:
    """Where PyTorch's own generators stand: that of the CPU, and those of GPUs in use."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        """Let the next numbers be those that came next then."""
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)

    def is_now(self) -> bool:
        """Whether PyTorch has drawn nothing since."""
        now = TorchState()
        gpus = zip(self._cuda or (), now._cuda or (), strict=False)
        return torch.equal(self._torch, now._torch) and all(torch.equal(a, b) for a, b in gpus)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the numbers that came next then; afterwards those of now go on."""
        now = TorchState()
        self.restore()
        try:
            yield
        finally:
            now.restore()


class RandomState:
    """Where every generator stands that a `forward` may draw from.

    PyTorch's, Python's, NumPy's, and those among its arguments.
    """

    def __init__(self, args: Sequence[Any] = ()) -> None:
        self._torch = TorchState()
        self._generators = [arg for arg in args if isinstance(arg, torch.Generator)]
        self._states = [generator.get_state() for generator in self._generators]
        self._python = random.getstate()
        self._numpy: Any = sys.modules.get("numpy")
        self._drawn = None if self._numpy is None else self._numpy.random.get_state()

    def restore(self) -> None:
        """Put everything back."""
        self._torch.restore()
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.random.set_state(self._drawn)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)

    def seed(self, seed: int) -> None:
        """Let everything draw from `seed` on."""
        seed_torch(seed)
        random.seed(seed)
        for generator in self._generators:
            generator.manual_seed(seed)
        if self._numpy is not None:
            self._numpy.random.seed(seed)


def seed_torch(seed: int) -> None:
    """As `torch.manual_seed`.

    That formats a stack trace for each kind of device that is absent, and keeps it for ever.
    """
    torch.default_generator.manual_seed(seed)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(seed)


@contextlib.contextmanager
def seeded(seed: int = SEED) -> Iterator[None]:
    """Inside, PyTorch draws from `seed`; afterwards, its generators are where they were."""
    before = TorchState()
    try:
        seed_torch(seed)
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def keeping_random_state(args: Sequence[Any] = ()) -> Iterator[RandomState]:
    """Whatever is drawn inside, every generator goes on as if nothing had been."""
    before = RandomState(args)
    try:
        yield before
    finally:
        before.restore()


@contextlib.contextmanager
def drawing_from(seed: int, args: Sequence[Any] = ()) -> Iterator[None]:
    """Inside, random numbers come from `seed`; afterwards, every generator is where it was."""
    with keeping_random_state(args) as state:
        state.seed(seed)
        yield


@contextlib.contextmanager
def isolated(args: Sequence[Any], seed: int) -> Iterator[None]:
    """Inside, random numbers come from `seed`, and changing a tensor from outside is an error."""
    with drawing_from(seed, args), uncompiled(), _NoChange():
        yield


class ChangeInPlaceError(RuntimeError):
    """A program changes a tensor that was there before."""


class _NoChange(DispatchMode):
    """Refuses ops that change a tensor which was there before."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = op_schema(func)
        if schema is None:  # `torch.cond` and the like
            return func(*args, **kwargs)
        for position, parameter in enumerate(schema.arguments):
            if parameter.alias_info is None or not parameter.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(parameter.name)
            if isinstance(value, torch.Tensor) and self._storage(value) not in self.made:
                raise ChangeInPlaceError(f"it changes a tensor in place ({func})")
        output = func(*args, **kwargs)
        if not any(a.alias_info for a in schema.arguments):
            for item in output if isinstance(output, (tuple, list)) else (output,):
                if isinstance(item, torch.Tensor):
                    self.made.add(self._storage(item))
        return output

    @staticmethod
    def _storage(tensor: torch.Tensor) -> int:
        return int(storage_key(tensor))
