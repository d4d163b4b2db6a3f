"""The random numbers that ops draw: where they stood, so that a program runs on the same again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Where every generator of random numbers in use stands: that of the CPU, then the others."""

    states: Sequence[Tensor]

    def restore(self) -> None:
        """Let the next numbers be those that came next then."""
        torch.set_rng_state(self.states[0])
        if self.states[1:]:
            torch.cuda.set_rng_state_all(self.states[1:])

    def is_now(self) -> bool:
        """Whether nothing was drawn since."""
        return all(map(torch.equal, self.states, draws_now().states))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the numbers that came next then; afterwards those of now go on."""
        now = draws_now()
        self.restore()
        try:
            yield
        finally:
            now.restore()


def draws_now() -> Draws:
    """Where the generators stand now."""
    cuda: Any = torch.cuda
    return Draws(
        [torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else ())]
    )
