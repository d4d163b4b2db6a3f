"""Running the user's `forward` once more: random states and tensors stay as they were."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pullback.function.slots import DispatchMode


@contextlib.contextmanager
def isolated(args: Sequence[Any], seed: int) -> Iterator[None]:
    """Inside, random numbers come from `seed`, and changing a tensor from outside is an error."""
    generators = [arg for arg in args if isinstance(arg, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    drawn = None if numpy is None else numpy.random.get_state()
    try:
        with torch.random.fork_rng(), _NoChange():
            torch.manual_seed(seed)
            random.seed(seed)
            for generator in generators:
                generator.manual_seed(seed)
            if numpy is not None:
                numpy.random.seed(seed)
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(drawn)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


class _NoChange(DispatchMode):  # type: ignore[misc]
    """Refuses ops that change a tensor which was there before."""

    def __init__(self) -> None:
        DispatchMode.__init__(self)
        self.made: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for position, parameter in enumerate(func._schema.arguments):
            if parameter.alias_info is None or not parameter.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(parameter.name)
            if isinstance(value, torch.Tensor) and self._storage(value) not in self.made:
                raise RuntimeError(f"it changes a tensor in place ({func})")
        output = func(*args, **kwargs)
        if not any(a.alias_info for a in func._schema.arguments):
            for item in output if isinstance(output, (tuple, list)) else (output,):
                if isinstance(item, torch.Tensor):
                    self.made.add(self._storage(item))
        return output

    @staticmethod
    def _storage(tensor: torch.Tensor) -> int:
        return int(tensor.untyped_storage()._cdata)
