"""Process groups among arguments, as they are kept where no group is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupOf:
    """A process group, by its ranks."""

    ranks: tuple[int, ...]
