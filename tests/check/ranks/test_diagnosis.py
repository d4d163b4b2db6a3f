"""What wrong gradients are made of tells by which fault they are wrong."""

import pytest
import torch

from pullback.check.ranks.consistency import Rows
from pullback.check.ranks.diagnosis import RankFault, diagnosed
from pullback.check.ranks.placements import REPLICATE, SHARD

RANKS, ROWS = 4, 12
WORLD = (tuple(range(RANKS)),)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


PARTS = random(0, RANKS, RANKS, ROWS)  # [s, r]: what rank s adds to the derivative by rank r
OWN = PARTS.sum(0)
TOTAL = OWN.sum(0)


def rows(got, placed=SHARD):
    want = [TOTAL] * RANKS if placed.is_replicated else list(OWN)
    wrong = [~torch.isclose(g, w) for g, w in zip(got, want, strict=True)]
    is_one = all(torch.allclose(g, got[0]) for g in got)
    parts = tuple(tuple(row) for row in PARTS)
    return Rows("x", placed, tuple(got), tuple(want), tuple(OWN), parts, tuple(wrong), is_one)


FAULTS = {
    "own part only": ([PARTS[r, r] for r in range(RANKS)], SHARD, RankFault.MISSING),
    "own share only": (list(OWN), REPLICATE, RankFault.MISSING),
    "summed again": ([TOTAL] * RANKS, SHARD, RankFault.DOUBLED),
    "times ranks": (list(RANKS * OWN), SHARD, RankFault.FACTOR),
    "mean for sum": ([TOTAL / RANKS] * RANKS, REPLICATE, RankFault.FACTOR),
    "of the next rank": ([OWN[(r + 1) % RANKS] for r in range(RANKS)], SHARD, RankFault.OTHER_RANK),
    "of half of the ranks": (
        [PARTS[[r, r ^ 1], r].sum(0) for r in range(RANKS)],
        SHARD,
        RankFault.GROUP,
    ),
    "by rank": ([(r + 1) * TOTAL for r in range(RANKS)], REPLICATE, RankFault.DIFFERENT),
    "anything": (list(random(1, RANKS, ROWS)), SHARD, RankFault.UNKNOWN),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(name):
    got, placed, fault = FAULTS[name]

    assert diagnosed(rows(got, placed), WORLD).fault is fault


def test_sum_beyond_the_group_is_named():
    blocks = ((0, 1), (2, 3))
    own = PARTS.clone()
    for s in range(RANKS):
        for r in range(RANKS):
            if s // 2 != r // 2:
                own[s, r] = 0
    want = own.sum(0)
    got = [want[r] + want[(r + 2) % RANKS] for r in range(RANKS)]
    wrong = tuple(torch.ones(ROWS, dtype=torch.bool) for _ in range(RANKS))
    parts = tuple(tuple(row) for row in own)
    found = diagnosed(Rows("x", SHARD, tuple(got), tuple(want), tuple(want), parts, wrong), blocks)

    assert found.fault is RankFault.GROUP


def test_own_part_is_named_where_other_parts_depend_on_each_other():
    """As in a norm over all ranks: what others add is one direction, and no fit of it is unique."""
    parts = random(2, RANKS, RANKS, ROWS)
    for rank in range(RANKS):
        for source in {*range(RANKS)} - {rank}:
            noise = 1e-10 * random(9 + source, ROWS)
            parts[source, rank] = (source + 1.5) * PARTS[0, rank] + noise
    want = parts.sum(0)
    got = tuple(parts[r, r] for r in range(RANKS))
    wrong = tuple(torch.ones(ROWS, dtype=torch.bool) for _ in range(RANKS))
    by_rank = tuple(tuple(row) for row in parts)
    found = diagnosed(Rows("x", SHARD, got, tuple(want), tuple(want), by_rank, wrong), WORLD)

    assert found.fault is RankFault.MISSING


def test_own_part_is_named_of_a_single_number():
    """Two draws of a scale give two numbers, and four ranks add to each."""
    parts = random(3, RANKS, RANKS, 2)
    want, got = parts.sum(0), tuple(parts[r, r] for r in range(RANKS))
    wrong = tuple(torch.ones(2, dtype=torch.bool) for _ in range(RANKS))
    by_rank = tuple(tuple(row) for row in parts)
    found = diagnosed(Rows("x", SHARD, got, tuple(want), tuple(want), by_rank, wrong), WORLD)

    assert found.fault is RankFault.MISSING


def test_own_part_is_named_where_a_rank_has_padding_alone():
    parts = PARTS.clone()
    parts[:, -1] = 0
    want, got = parts.sum(0), tuple(parts[r, r] for r in range(RANKS))
    wrong = tuple(~torch.isclose(g, w) for g, w in zip(got, want, strict=True))
    by_rank = tuple(tuple(row) for row in parts)
    found = diagnosed(Rows("x", SHARD, got, tuple(want), tuple(want), by_rank, wrong), WORLD)

    assert found.fault is RankFault.MISSING
