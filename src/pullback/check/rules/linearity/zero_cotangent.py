"""A cotangent of zero must give a gradient of zero.

What it checks
    Backward with zeros for every output: each gradient is zero, and NaN nowhere where it is finite
    for an ordinary cotangent.

Why it matters
    A term of the loss that is switched off sends zeros. A constant that backward adds moves the
    weights all the same, and one division by the size of the cotangent turns them into NaN.

Fails
    return g / g.norm() * y    # 0 / 0

Passes
    return g * y

Cannot see
    Entries whose gradient is infinite for ordinary cotangents, as that of `sqrt` at zero: PyTorch
    gives NaN there as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.facts import At, Gradient, Number
from pullback.check.repro.scene import Scene, text_of
from pullback.check.subject import BackwardFailedError, Finding, Rule, Skip, Subject
from pullback.judge.mismatch import index_of

RULE = Rule(code="L202", name="zero-cotangent", group="linearity", profile="quick")

RESIDUE = 1e-6  # of the gradient for an ordinary cotangent: an iterative solver leaves some


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is not zero, or one when backward fails."""
    if subject.fails_at_base:
        yield Skip.refused(RULE, "backward fails at the example", subject.fails_at_base)
        return
    usual = subject.pull()
    run = subject.run()
    zeros = [None if c is None else torch.zeros_like(c) for c in subject.cotangents(run)]
    try:
        grads = run.pull(zeros)
    except BackwardFailedError as failure:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="backward, with zeros for every output",
            expected="zeros",
            got=failure.raised,
            fix="let backward divide by nothing that the cotangent decides",
        )
        return
    for name, got in grads.items():
        like = usual[name]
        if got is None or like is None or subject.target.intent.is_surrogate(name):
            continue
        worst = _worst(got.detach(), like.detach())
        if worst is None:
            continue
        subject.blamed.add((RULE.group, name))
        yield subject.finding(
            RULE,
            example=subject.base,
            at=At(Gradient(name), index_of(worst, got.shape), rest=", for zero cotangents"),
            expected=Number(0.0),
            got=Number(got.detach().flatten()[worst].item()),
            fix="let each gradient be a product with the cotangent: add and divide by nothing else",
        )


def _worst(got: Tensor, usual: Tensor) -> int | None:
    """The entry that is farthest from zero, among those that are finite otherwise."""
    if got.shape != usual.shape or not got.numel():
        return None
    size, like = got.abs().double(), usual.abs().double()
    is_finite = torch.isfinite(like)
    scale = float(like[is_finite].max()) if bool(is_finite.any()) else 0.0
    size = torch.where(torch.isnan(size), torch.inf, size)
    size = torch.where(is_finite, size, 0.0).flatten()
    worst = int(size.argmax())
    return worst if float(size[worst]) > RESIDUE * scale else None


def _zero(scene: Scene) -> str:
    """The pull of zeros must be zeros."""
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.pulling(),
        f"for got in pull({scene.each('0 * g', 'g')}):",
        '    assert not got.any(), f"{got=}"',
    )


REPROS = (_zero,)
