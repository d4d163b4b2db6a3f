"""`backward` must be linear in the gradient it receives.

What it checks
    For random `u` and `v`: `backward(2u - 3v)` is `2 backward(u) - 3 backward(v)`, with cotangents
    of ordinary size, large and small.

Why it matters
    A vector-Jacobian product is linear by definition. `torch.autograd.gradcheck` feeds gradients
    of norm one, so a `clamp` at one passes it, and the network then trains with the wrong gradient
    (a real case: a loss whose backward multiplied everything by `grad_output[0]`, Liger#1298).

Fails
    return grad_output.clamp(-1, 1) * y

Passes
    return grad_output * y

Cannot see
    A backward that is linear but is the transpose of some other Jacobian. Rounding, also to a
    narrower dtype, is not taken for a bend.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.explaining import PATTERNS, Cause
from pullback.check.facts import At, Gradient
from pullback.check.repro.scene import Form, Scene, text_of
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Skip,
    Subject,
    worst_of,
)

RULE = Rule(code="L201", name="nonlinear-backward", group="linearity", profile="quick")

SCALES = (1.0, 64.0, 1 / 64)
COARSE = 1e-3  # of the larger of the two terms: how exact a gradient is, other rules judge
COARSER = 2e-2  # where the gradient is wrong at the example already, be it by its dtype


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is not linear."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    if not subject.is_steady:
        yield Skip.refused(RULE, "the gradients differ from run to run")
        return
    done = {name for name in subject.names if subject.target.intent.is_surrogate(name)}
    for scale in SCALES:
        run = subject.run()
        u = [None if c is None else scale * c for c in subject.cotangents(run, 0)]
        v = [None if c is None else scale * c for c in subject.cotangents(run, 1)]
        both = [
            None if a is None or b is None else 2 * a - 3 * b for a, b in zip(u, v, strict=True)
        ]
        try:
            of_u, of_v, of_both = (subject.run().pull(_copied(c)) for c in (u, v, both))
        except BackwardFailedError as failure:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"backward, with cotangents {scale:g} times as large as usual",
                expected=f"{scale:g} times the usual gradients",
                got=failure.raised,
                fix="let backward ask nothing about the size of the cotangent",
            )
            return
        for name, got in of_both.items():
            one, two = of_u[name], of_v[name]
            if name in done or got is None or one is None or two is None:
                continue
            if _is_combined(got, one, two, COARSER if name in subject.wrong_names else COARSE):
                continue
            done.add(name)
            subject.blamed.add((RULE.group, name))
            index, have, want = worst_of(got, 2 * one - 3 * two)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Gradient(name), index),
                expected=want.then(", from 2 backward(u) - 3 backward(v)"),
                got=have.then(", from backward(2u - 3v)"),
                fix="let each gradient be a product with the cotangent, with nothing that bends it",
            )


def _copied(cotangents: list[Tensor | None]) -> list[Tensor | None]:
    """Copies, so that a backward that writes into its cotangents spoils none of ours."""
    return [None if c is None else c.clone() for c in cotangents]


def _is_combined(got: Tensor, one: Tensor, two: Tensor, share: float) -> bool:
    """Whether `got` is `2 one - 3 two` but for rounding; what is infinite says nothing."""
    if not got.shape == one.shape == two.shape:
        return False
    wide = torch.complex128 if got.is_complex() else torch.float64
    first, second = 2 * one.detach().to(wide), 3 * two.detach().to(wide)
    size = torch.maximum(first.abs(), second.abs())
    is_known = torch.isfinite(size)
    scale = float(size[is_known].max()) if bool(is_known.any()) else 0.0
    apart = (got.detach().to(wide) - (first - second)).abs()
    apart = torch.where(torch.isnan(apart), torch.inf, apart)
    return bool((apart[is_known] <= share * (size[is_known] + 1e-2 * scale)).all())


# ---- repros ----


def _combined(scale: str) -> Form:
    """A form: the pull of a combination against the combination of pulls, at one scale."""

    def form(scene: Scene) -> str:
        both = scene.each("2 * g - 3 * h", "g", "h")
        scaled = scene.each(f"{scale}g", "g")
        other = scene.each(f"{scale}h", "h")
        return text_of(
            scene.settings(),
            scene.weights(),
            scene.weights("h", draw=1),
            [f"g, h = {scaled}, {other}"] if scale else [],
            scene.pulling(),
            f"for got, of_g, of_h in zip(pull({both}), pull(g), pull(h)):",
            "    expected = 2 * of_g - 3 * of_h",
            '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"',
        )

    return form


REPROS = tuple(_combined(scale) for scale in ("", "64 * ", "1 / 64 * "))

EXPLAINS = (
    Cause(
        frozenset({"gradient", "linearity"}),
        "what bends with the cotangent is wrong for some",
        rank=190,
        is_partial=True,
        even=PATTERNS,
    ),
)
