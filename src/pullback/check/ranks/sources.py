"""Which ranks' cotangents give the wrong part of a gradient."""

from __future__ import annotations

import torch

from pullback.check.ranks.consistency import Judged, Rows, differs, replicated_of
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import Joint


def wrong_source(joint: Joint, judged: Judged, rows: Rows) -> str:
    """Whether a sharded input's gradient is wrong by its own rank's cotangents, or by others'.

    Each rank's cotangents are pulled back alone. Empty where that tells the two not apart.
    """
    outputs = judged.assignment.outputs
    if rows.placed.is_replicated or any(placed.has_one_cotangent for placed in outputs):
        return ""
    try:
        pairs = _wrong_pairs(joint, judged, rows.name)
    except (Failed, RanksLost):
        return ""
    others = [(source, rank) for source, rank in pairs if source != rank]
    if others and len(others) == len(pairs):
        source, rank = others[0]
        return (
            "what each rank's own cotangents give is right, and what those of other ranks add is "
            f"not: those of rank {source} to the gradient on rank {rank}"
        )
    if pairs and not others:
        return "what other ranks' cotangents add is right, and what a rank's own give is not"
    return ""


def _wrong_pairs(joint: Joint, judged: Judged, name: str) -> list[tuple[int, int]]:
    """The ranks whose cotangents alone give a wrong gradient, each with the rank that gets it."""
    position = joint.names.index(name)
    key = replicated_of(joint, judged.assignment)
    slopes = joint.slopes(key)
    drawn, _ = joint.pulled(key, 0)
    found: list[tuple[int, int]] = []
    for source in range(joint.size):
        alone = [
            tuple(c if c is None or rank == source else torch.zeros_like(c) for c in cotangents)
            for rank, cotangents in enumerate(drawn)
        ]
        for rank, pulled in enumerate(joint.pull(joint.point(key), alone)):
            slope = slopes.get((rank, position))
            if slope is None:
                continue
            parts = [slope.pulled(source, o, c) for o, c in enumerate(drawn[source])]
            want = torch.stack([value for value, _ in parts]).sum(0)
            error = torch.stack([off for _, off in parts]).sum(0)
            got = slope.along(pulled.gradients[position])
            if bool(differs(got, want, error, is_exact=joint.is_exact).any()):
                found.append((source, rank))
    return found
