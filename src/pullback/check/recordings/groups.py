"""Process groups among arguments, as they are kept where no group is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class GroupOf:
    """A process group, by its ranks; `group` is the group itself where it was seen."""

    ranks: tuple[int, ...]
    group: Any = field(default=None, compare=False, repr=False)


def without_group(arg: Any) -> Any:
    """A process group by its ranks, as long as it is there; any other argument as it is."""
    if not dist.is_available() or not isinstance(arg, dist.ProcessGroup):
        return arg
    return GroupOf(tuple(dist.get_process_group_ranks(arg)), arg)


def with_group(arg: Any) -> Any:
    """The group that was seen, in the place of its ranks; any other argument as it is."""
    return arg.group if isinstance(arg, GroupOf) else arg


def by_ranks(arg: Any) -> Any:
    """A group without what cannot leave the process; any other argument as it is."""
    return GroupOf(arg.ranks) if isinstance(arg, GroupOf) else arg
