"""By which fault the gradients of one input are wrong: what they are made of tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product

import torch
from torch import Tensor

from pullback.check.ranks.consistency import Rows

EXACT = 1e-4  # a factor, or what is left of a sum
MOST_PARTS = 8  # different ones, of which every sum is tried


class RankFault(Enum):
    """What is wrong with a gradient across ranks."""

    UNKNOWN = "unknown"
    MISSING = "missing"
    DOUBLED = "doubled"
    FACTOR = "factor"
    OTHER_RANK = "other rank"
    DIFFERENT = "different"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A fault, and in words what the gradient is instead of what it must be."""

    fault: RankFault
    words: str = ""
    factor: float = 0.0


def diagnosed(rows: Rows, blocks: Sequence[Sequence[int]]) -> Diagnosis:
    """The fault behind wrong gradients."""
    size = len(rows.got)
    block = next(len(b) for b in blocks if any(bool(rows.wrong[r].any()) for r in b) or True)
    got, want = _all(rows.got), _all(rows.want)
    factor = _factor(got, want)
    if factor is not None:
        for number in dict.fromkeys((block, size)):
            if number > 1 and _near(factor, number):
                words = f"each gradient is {number} times what it must be, the number of ranks"
                return Diagnosis(RankFault.FACTOR, words, factor)
            if number > 1 and _near(factor, 1 / number):
                words = f"each gradient is 1/{number} of what it must be, with {number} ranks"
                return Diagnosis(RankFault.FACTOR, words, factor)
    found = _of_parts(rows, blocks) or _of_others(rows, blocks)
    if found is not None:
        return found
    if not rows.is_one_where_it_must:
        words = "the input is one value on all ranks, and its gradients differ between ranks"
        return Diagnosis(RankFault.DIFFERENT, words)
    if factor is not None:
        return Diagnosis(RankFault.UNKNOWN, f"each gradient is {factor:.4g} times what it must be")
    unused = [r for r in range(size) if bool(rows.wrong[r].any()) and not _is_there(rows.want[r])]
    if unused and not rows.placed.is_replicated:
        return Diagnosis(RankFault.UNKNOWN, f"no output depends on the value of {_ranks(unused)}")
    return Diagnosis(RankFault.UNKNOWN)


def _of_parts(rows: Rows, blocks: Sequence[Sequence[int]]) -> Diagnosis | None:
    """What the gradients are as sums of what each rank's outputs add, or of each rank's share."""
    size = len(rows.got)
    kept: list[list[int]] = []
    needed: list[list[int]] = []
    for rank in range(size):
        if rows.placed.is_replicated:
            block = next(b for b in blocks if rank in b)
            every = [rows.own[r] for r in range(size)]
            usual = [r for r in block if _is_there(rows.own[r])]
        else:
            every = [rows.parts[s][rank] for s in range(size)]
            usual = [s for s in range(size) if _is_there(every[s])]
        chosen = _subset(rows.got[rank], every, rank)
        if chosen is None or any(not _is_there(every[s]) for s in chosen):
            return None
        kept.append(chosen)
        needed.append(usual)
    if kept == needed:
        return None
    own = [[r] if n else [] for r, n in enumerate(needed)]  # a rank may have padding alone
    if kept == own and any(len(n) > 1 for n in needed):
        which = "shares" if rows.placed.is_replicated else "cotangents"
        words = f"backward uses this rank's own part alone: the other ranks' {which} are missing"
        return Diagnosis(RankFault.MISSING, words)
    rank = next(r for r in range(size) if kept[r] != needed[r])
    if all(not one for one in kept):
        return None
    if all(set(k) < set(n) or k == n for k, n in zip(kept, needed, strict=True)) and all(
        r in k or not n for r, (k, n) in enumerate(zip(kept, needed, strict=True))
    ):
        words = (
            f"on rank {rank} backward sums over {_ranks(kept[rank])}, and what must be summed is "
            f"that of {_ranks(needed[rank])}"
        )
        return Diagnosis(RankFault.GROUP, words)
    if all(set(k) > set(n) or k == n for k, n in zip(kept, needed, strict=True)):
        words = (
            f"on rank {rank} backward sums over {_ranks(kept[rank])}, and only "
            f"{_ranks(needed[rank])} belong together"
        )
        return Diagnosis(RankFault.GROUP, words)
    return None


def _of_others(rows: Rows, blocks: Sequence[Sequence[int]]) -> Diagnosis | None:
    """What the gradients are as sums of what they must be on the ranks."""
    size = len(rows.got)
    if rows.placed.is_replicated or len({len(w) for w in rows.want}) > 1:
        return None
    chosen = [_subset(rows.got[rank], rows.want, rank) for rank in range(size)]
    if any(one is None for one in chosen):
        return None
    sets = [one or [] for one in chosen]
    if all(len(one) == 1 for one in sets) and any(one != [r] for r, one in enumerate(sets)):
        rank = next(r for r, one in enumerate(sets) if one != [r])
        words = f"rank {rank} gives the gradient that belongs to rank {sets[rank][0]}"
        return Diagnosis(RankFault.OTHER_RANK, words)
    if any(len(one) > 1 for one in sets) and all(r in one for r, one in enumerate(sets)):
        rank = next(r for r, one in enumerate(sets) if len(one) > 1)
        block = next(b for b in blocks if rank in b)
        if set(sets[rank]) == set(block):
            words = "the gradients are summed over the ranks once more, and each rank has its own"
            return Diagnosis(RankFault.DOUBLED, words)
        words = f"rank {rank} gives the sum of the gradients of {_ranks(sets[rank])}"
        return Diagnosis(RankFault.GROUP, words)
    return None


# ---- fits ----


def _factor(got: Tensor, want: Tensor) -> float | None:
    """The one factor between two rows; None where there is none, or it is 1."""
    scale = float(want.abs().max()) if want.numel() else 0.0
    if scale == 0 or got.shape != want.shape:
        return None
    factor = float((got * want).sum() / (want * want).sum())
    rest = float((got - factor * want).abs().max())
    return factor if rest < EXACT * scale and not _near(factor, 1.0) and factor else None


def _subset(got: Tensor, parts: Sequence[Tensor], prefer: int = -1) -> list[int] | None:
    """The parts whose sum a row is, `prefer` before its likes; None where it is no such sum."""
    groups: list[list[int]] = []
    for i, part in enumerate(parts):
        if not _is_there(part) or part.shape != got.shape:
            continue
        alike = next((g for g in groups if _is_like(parts[g[0]], part)), None)
        groups.append([i]) if alike is None else alike.append(i)
    if not groups:
        return None if _is_there(got) else []
    if len(groups) > MOST_PARTS:
        return None
    # Every sum is tried: parts may depend on each other, so that a fit would not be unique.
    counts = list(product(*({0, 1, len(group)} for group in groups)))
    table = torch.stack([parts[group[0]] for group in groups])
    rests = (torch.tensor(counts, dtype=table.dtype) @ table - got).abs().amax(1)
    scale = max(float(got.abs().max()), float(table.abs().max()), 1e-300)
    fits = [c for c, rest in zip(counts, rests.tolist(), strict=True) if rest <= EXACT * scale]
    if not fits:
        return None
    chosen: list[int] = []
    for group, count in zip(groups, min(fits, key=sum), strict=True):
        one = [prefer] if prefer in group else group[:1]
        chosen += group if count == len(group) else one[:count]
    return sorted(chosen)


def _is_like(one: Tensor, two: Tensor) -> bool:
    return bool(torch.allclose(one, two, rtol=1e-6, atol=1e-9))


def _is_there(part: Tensor) -> bool:
    return bool(part.numel()) and float(part.abs().max()) > 1e-9


def _near(one: float, two: float) -> bool:
    return abs(one - two) < EXACT * max(1.0, abs(two))


def _all(rows: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(rows)) if rows else torch.zeros(0, dtype=torch.float64)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
