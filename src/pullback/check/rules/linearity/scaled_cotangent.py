"""A cotangent of any size must give a gradient of that size.

What it checks
    `backward(s u)` is `s backward(u)` for sizes `s` from 1e-8 to 1e8, in float64 where forward
    takes it; over fewer sizes in narrower dtypes.

Why it matters
    A mean over a million samples makes cotangents of 1e-6, loss scaling makes them 65536 times
    larger. A backward that drops what is small, rounds to a grid or guards against what is large
    then trains another network, and only then.

Fails
    return torch.where(g.abs() < 1e-4, 0, g) * y

Passes
    return g * y

Cannot see
    Thresholds beyond these sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient
from pullback.check.repro.scene import Repro, Scene, text_of
from pullback.check.subject import BackwardFailedError, Finding, Rule, Skip, Subject, worst_of
from pullback.judge.example import wide_of
from pullback.judge.run import Run
from pullback.judge.tolerances import is_close

RULE = Rule(code="L203", name="scaled-cotangent", group="linearity", profile="quick")

SIZES = (1e-8, 1e-4, 1e-2, 1e4, 1e8)
COARSE = 1e-3  # the relative error that is allowed: how exact a gradient is, other rules judge


@dataclass(frozen=True, slots=True)
class Size:
    """How many times as large the cotangents are as usual."""

    times: float


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient does not keep up with the cotangent."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    if not subject.is_steady:
        yield Skip.refused(RULE, "the gradients differ from run to run")
        return
    usual = subject.pull()
    done = {name for group, name in subject.blamed if group == RULE.group}
    done |= {name for name in usual if subject.target.intent.is_surrogate(name)}
    for size in _sizes(subject, subject.run()):
        run = subject.run()
        scaled = [None if c is None else c * size for c in subject.cotangents(run)]
        try:
            grads = run.pull(scaled)
        except BackwardFailedError as failure:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"backward, with cotangents of size {size:g}",
                expected=f"{size:g} times the gradients for cotangents of size one",
                got=failure.raised,
                detail=Size(size),
                fix="let backward ask nothing about the size of the cotangent",
            )
            return
        for name, got in grads.items():
            one = usual[name]
            if name in done or got is None or one is None or got.shape != one.shape:
                continue
            back = wide_of(got) / size
            if _is_same(back, one):
                continue
            done.add(name)
            index, have, want = worst_of(back, one)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Gradient(name), index, rest=f", for cotangents of size {size:g}"),
                expected=want.then(f" times {size:g}"),
                got=have.then(f" times {size:g}"),
                detail=Size(size),
                fix="let each gradient be a product with the cotangent, whatever its size",
            )


def _sizes(subject: Subject, run: Run) -> list[float]:
    """The sizes that the narrowest dtype around can carry without overflow or underflow."""
    tensors = [*(run.outputs[i] for i in run.live), *run.leaves.values()]
    coarsest = max([torch.finfo(t.dtype).eps for t in tensors], default=0.0)
    _ = subject.base_mismatches  # the judge has watched in which precision forward computes
    coarsest = max(coarsest, subject.reference.noise)
    if coarsest > torch.finfo(torch.float32).eps:
        return []
    reach = 1e8 if coarsest <= torch.finfo(torch.float64).eps else 1e4
    return [size for size in SIZES if 1 / reach <= size <= reach]


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two gradients are the same but for coarse rounding, where both can be told."""
    b = b.detach().to(a.dtype)
    is_known = torch.isfinite(b.abs()) & ((a.abs() < 1e290) | torch.isnan(a.abs()))
    scale = float(b[is_known].abs().max()) if bool(is_known.any()) else 0.0
    apart = torch.where(is_known, (a - b).abs(), 0.0)
    apart = torch.where(torch.isnan(apart), torch.inf, apart)
    return is_close(a, b) or bool((apart <= COARSE * b.abs() + COARSE * 1e-2 * scale).all())


def _scaled(scene: Scene) -> Repro:
    """The pull of a scaled cotangent against the scaled pull."""
    size = f"{scene.about.detail.times:g}"
    larger = scene.each(f"{size} * g", "g")
    begun = [*scene.settings(), *scene.weights(), *scene.pulling()]
    if scene.raised:
        return Repro(text_of(begun, f"pull({larger}){scene.raised}"))
    return Repro(
        text_of(
            begun,
            f"for got, expected in zip(pull({larger}), pull(g)):",
            f"    got = got / {size}",
            "    limit = 1e-3 * expected.abs() + 1e-5 * expected.abs().max()",
            '    assert bool(((got - expected).abs() <= limit).all()), f"{got=}, {expected=}"',
        )
    )


REPROS = (_scaled,)
