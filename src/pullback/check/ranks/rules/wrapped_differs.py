"""Inside DDP and FSDP2, gradients must be what they are alone.

What it checks
    A module with the replicated inputs as parameters, in `DistributedDataParallel` and in
    `fully_shard`: the gradients of the parameters are the mean over ranks of those alone.

Why it matters
    The wrappers communicate while backward does, replace parameters by shards, and free their
    memory between forward and backward. A Function that keeps a parameter, or sums its gradient
    as they do, works alone only.

Fails
    if isinstance(weight, nn.Parameter): dist.all_reduce(grad_w)   # and DDP does it again

Passes
    return grad_x, grad_w

Cannot see
    Wrappers with other options; mixed precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.blocks import is_one_value
from pullback.check.ranks.commands import Around, Wrap
from pullback.check.ranks.consistency import consistent, replicated_of, shared_of
from pullback.check.ranks.crew import RanksLost
from pullback.check.ranks.failed import Failed
from pullback.check.ranks.joint import Joint, JointPoint

RULE = Rule("R143", "wrapped-differs", "ranks")


def prepare() -> None:
    """Load what wraps, once, before ranks are forked."""
    import torch.distributed.fsdp  # noqa: F401  heavy


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """The gradients inside of each wrapper."""
    found = next((a for a in reversed(consistent(joint)) if replicated_of(joint, a)), None)
    if found is None or joint.is_global or len(joint.blocks) > 1 or not joint.target.is_function:
        yield Skip(RULE, "no input can be a parameter that all ranks hold")
        return
    key = replicated_of(joint, found)
    cotangents, alone = joint.pulled(key, 0, shared_of(joint, found))
    point = joint.point(key)
    parameters = tuple(
        p for p in sorted(key) if point[0][p].dim() > 0 and not found.of(joint.names[p]).over
    )
    if not parameters:
        yield Skip(RULE, "no input can be a parameter that all ranks hold")
        return
    mean = {p: _mean([one.gradients[p] for one in alone]) for p in parameters}
    for around in Around:
        yield from _inside(joint, around, point, cotangents, parameters, mean)


def _inside(
    joint: Joint,
    around: Around,
    point: JointPoint,
    cotangents: list[tuple[Tensor | None, ...]],
    parameters: tuple[int, ...],
    mean: dict[int, Tensor | None],
) -> Iterator[Finding | Skip]:
    try:
        replies = joint.ask(
            lambda rank: Wrap(joint.at(point, rank), cotangents[rank], around, parameters)
        )
    except Failed as failure:
        yield Skip.refused(RULE, f"inside of {around.value}", failure.raised)
        return
    except RanksLost as lost:
        yield joint.finding(RULE, at=f"inside of {around.value}", expected="an end", got=str(lost))
        return
    for rank, reply in enumerate(replies):
        for position in parameters:
            if not is_one_value([mean[position], reply.value.gradients[position]]):
                rest = f" as a parameter inside of {around.value}, on rank {rank}"
                yield joint.finding(
                    RULE,
                    at=At(Gradient(joint.names[position]), rest=rest),
                    expected="the mean over the ranks of the gradients alone",
                    got="another gradient",
                    fix="give a parameter the gradient that a plain tensor gets",
                )
                return


def _mean(gradients: list[Tensor | None]) -> Tensor | None:
    there = [g for g in gradients if g is not None]
    return torch.stack(there).sum(0) / len(gradients) if there else None
