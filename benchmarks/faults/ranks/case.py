"""What a case across ranks is, and the pieces that the Functions are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class RankCase:
    """One Function that communicates, with the inputs of each rank."""

    name: str
    target: Any
    inputs: Callable[[int], tuple[Any, ...]]
    # In one process, of the gathered inputs; see docs/check-ranks.md.
    reference: Callable[..., Any] | None = None
    placements: Mapping[str, str] = field(default_factory=dict)
    # The rules that name the fault, any of them; empty when the case is sound.
    rules: tuple[str, ...] = ()
    # The convention that the author follows: "sum" of cotangents, "pass" them through, or any.
    convention: str = ""
    # The fewest ranks on which the fault is one, and whether only a reference can tell.
    least: int = 2
    needs_reference: bool = False


class RankCases(list[RankCase]):
    """The cases of one module; `add` names a case by its target."""

    def add(self, target: Any, inputs: Callable[[int], tuple[Any, ...]], **facts: Any) -> None:
        """Append a case; `facts` are the other fields."""
        rules = facts.pop("rule", ())
        rules = (rules,) if isinstance(rules, str) else tuple(rules)
        name = facts.pop("name", target.__name__)
        self.append(RankCase(name, target, inputs, rules=rules, **facts))


# ---- inputs ----


def shard(*shape: int, seed: int = 0, grad: bool = True) -> Callable[[int], Tensor]:
    """Numbers that differ from rank to rank."""

    def made(rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * seed + rank + 1)
        return torch.randn(*shape, generator=generator).requires_grad_(grad)

    return made


def one(*shape: int, seed: int = 0, grad: bool = True) -> Callable[[int], Tensor]:
    """Numbers that are the same on all ranks."""

    def made(rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(77 + seed)
        return torch.randn(*shape, generator=generator).requires_grad_(grad)

    return made


def inputs(*makers: Any) -> Callable[[int], tuple[Any, ...]]:
    """The arguments of a rank, from what makes each."""
    return lambda rank: tuple(make(rank) if callable(make) else make for make in makers)


def pairs(rank: int) -> Any:
    """The group of two ranks that this one belongs to."""
    size = dist.get_world_size()
    groups = [dist.new_group([i, i + 1]) for i in range(0, size, 2)]
    return groups[rank // 2]


# ---- communication ----


def size(group: Any = None) -> int:
    """How many ranks there are."""
    return dist.get_world_size(group)


def rank_in(group: Any = None) -> int:
    """The number of this rank."""
    return dist.get_rank(group)


def summed(x: Tensor, group: Any = None) -> Tensor:
    """The sum over the ranks, in a tensor of its own."""
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def gathered(x: Tensor, dim: int = 0, group: Any = None) -> Tensor:
    """The values of all ranks, joined."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.cat(parts, dim)


def own(x: Tensor, dim: int = 0, group: Any = None) -> Tensor:
    """This rank's part of what is joined."""
    return x.chunk(size(group), dim)[rank_in(group)].contiguous()


def shifted(x: Tensor, by: int) -> Tensor:
    """What the rank `by` places before this one has."""
    me, n = rank_in(), size()
    got = torch.empty(x.shape, dtype=x.dtype)
    sent = x.contiguous()
    handles = [dist.isend(sent, (me + by) % n), dist.irecv(got, (me - by) % n)]
    for handle in handles:
        handle.wait()
    return got


def exchanged(x: Tensor) -> Tensor:
    """Every rank's rows for this one."""
    out = torch.empty(x.shape, dtype=x.dtype)
    dist.all_to_all_single(out, x.contiguous())
    return out
