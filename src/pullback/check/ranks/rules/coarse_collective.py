"""What is communicated must keep the precision of the inputs.

What it checks
    Whether numbers are summed or sent in a coarser dtype than every floating input has.

Why it matters
    A sum in bfloat16 over many ranks loses what float32 promised; it does not show on two ranks.

Fails
    half = grad.bfloat16(); dist.all_reduce(half); return half.float()

Passes
    dist.all_reduce(grad)

Cannot see
    Compression that is meant: allow the rule there. Rounding inside of the backend.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.ranks.joint import Joint

RULE = Rule("R133", "coarse-collective", "ranks", profile="quick")
COARSE = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def check(joint: Joint) -> Iterator[Finding | Skip]:
    """Collectives of the first call in a coarser dtype."""
    if not any(joint.steps):
        yield Skip(RULE, "it makes no collective")
        return
    dtypes = {a.value.dtype for g in joint.given for a in g.args if a.value is not None}
    finest = max((torch.finfo(dtype).eps for dtype in dtypes), default=1.0)
    if not dtypes or finest > torch.finfo(torch.float32).eps:
        yield Skip(RULE, "the inputs are in half precision themselves")
        return
    for rank, steps in enumerate(joint.steps):
        for step in steps:
            if step.dtype in COARSE:
                yield joint.finding(
                    RULE,
                    at=f"{step}, in {step.phase} on rank {rank}",
                    expected=", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes)),
                    got=step.dtype,
                    fix="communicate in the dtype of the inputs, and round afterwards",
                )
                return
