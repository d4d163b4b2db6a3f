"""`backward` as a linear map: of zero, of combinations, and of cotangents of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.findings.explaining import PATTERNS, Cause
from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.findings.registered import Registered
from pullback.check.repro.context import Form, Repro, ReproContext, text_of
from pullback.check.subject.conditions import RUNS, STEADY, needs
from pullback.check.subject.gap import gap_of
from pullback.check.subject.own import own_argument
from pullback.check.subject.subject import BackwardFailedError, Finding, Rule, Skip, Subject
from pullback.judge.example import wide_of
from pullback.judge.mismatch import index_of
from pullback.judge.run import Run, copies_of
from pullback.judge.tolerances import is_close

NONLINEAR_BACKWARD = Rule("L201", "nonlinear-backward", "linearity", profile="quick")
ZERO_COTANGENT = Rule("L202", "zero-cotangent", "linearity", profile="quick")
SCALED_COTANGENT = Rule("L203", "scaled-cotangent", "linearity", profile="quick")

SCALES = (1.0, 64.0, 1 / 64)
COARSE = 1e-3  # the share that is allowed: how exact a gradient is, other rules judge
COARSER = 2e-2  # where the gradient is wrong at the example already, if only by its dtype
RESIDUE = 1e-6  # of the gradient for an ordinary cotangent: an iterative solver leaves some
SIZES = (1e-8, 1e-4, 1e-2, 1e4, 1e8)


@needs(NONLINEAR_BACKWARD, RUNS, STEADY)
def nonlinear_backward(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is not linear."""
    done = {name for name in subject.names if subject.target.intent.is_surrogate(name)}
    for scale in SCALES:
        run = subject.run()
        u = [None if c is None else scale * c for c in subject.cotangents(run, 0)]
        v = [None if c is None else scale * c for c in subject.cotangents(run, 1)]
        both = [
            None if a is None or b is None else 2 * a - 3 * b for a, b in zip(u, v, strict=True)
        ]
        try:
            of_u, of_v, of_both = (subject.run().pull(copies_of(c)) for c in (u, v, both))
        except BackwardFailedError as failure:
            yield subject.finding(
                NONLINEAR_BACKWARD,
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
            subject.reported.add((NONLINEAR_BACKWARD.group, name))
            yield subject.finding(
                NONLINEAR_BACKWARD,
                example=subject.base,
                **gap_of(Gradient(name), got, 2 * one - 3 * two).facts(
                    expected=", from 2 backward(u) - 3 backward(v)", got=", from backward(2u - 3v)"
                ),
                fix="let each gradient be a product with the cotangent, with nothing that bends it",
            )


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


def _combined(scale: str) -> Form:
    """A form: the pull of a combination against the combination of pulls, at one scale."""

    def form(context: ReproContext) -> str:
        both = context.each("2 * g - 3 * h", "g", "h")
        scaled = context.each(f"{scale}g", "g")
        other = context.each(f"{scale}h", "h")
        return text_of(
            context.settings(),
            context.weights(),
            context.weights("h", draw=1),
            [f"g, h = {scaled}, {other}"] if scale else [],
            context.pulling(),
            f"for got, of_g, of_h in zip(pull({both}), pull(g), pull(h)):",
            "    expected = 2 * of_g - 3 * of_h",
            '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"',
        )

    return form


@needs(ZERO_COTANGENT, RUNS)
def zero_cotangent(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is not zero, or one when backward fails."""
    usual = subject.pull()
    run = subject.run()
    zeros = [None if c is None else torch.zeros_like(c) for c in subject.cotangents(run)]
    try:
        grads = run.pull(zeros)
    except BackwardFailedError as failure:
        yield subject.finding(
            ZERO_COTANGENT,
            example=subject.base,
            at="backward, with zeros for every output",
            expected="zeros",
            got=failure.raised,
            fix="let backward divide by nothing that the cotangent decides",
        )
        return
    for name, got in grads.items():
        like = usual[name]
        if got is None or like is None:
            continue
        worst = _worst(got.detach(), like.detach())
        if worst is None:
            continue
        if own_argument(subject, subject.base, name, times=0.0):
            continue  # an argument says what is added to the gradient
        subject.reported.add((ZERO_COTANGENT.group, name))
        yield subject.finding(
            ZERO_COTANGENT,
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


def _zero(context: ReproContext) -> str:
    """The pull of zeros must be zeros."""
    return text_of(
        context.settings(),
        context.weights(),
        context.pulling(),
        f"for got in pull({context.each('0 * g', 'g')}):",
        '    assert not got.any(), f"{got=}"',
    )


@dataclass(frozen=True, slots=True)
class Size:
    """How many times as large the cotangents are as usual."""

    times: float


@needs(SCALED_COTANGENT, RUNS, STEADY)
def scaled_cotangent(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient does not keep up with the cotangent."""
    usual = subject.pull()
    done = {name for group, name in subject.reported if group == SCALED_COTANGENT.group}
    done |= {name for name in usual if subject.target.intent.is_surrogate(name)}
    for size in _sizes(subject, subject.run()):
        run = subject.run()
        scaled = [None if c is None else c * size for c in subject.cotangents(run)]
        try:
            grads = run.pull(scaled)
        except BackwardFailedError as failure:
            yield subject.finding(
                SCALED_COTANGENT,
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
            yield subject.finding(
                SCALED_COTANGENT,
                example=subject.base,
                **gap_of(Gradient(name), back, one).facts(
                    f", for cotangents of size {size:g}",
                    expected=f" times {size:g}",
                    got=f" times {size:g}",
                ),
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
    """Whether two gradients are the same but for coarse rounding, where both are known."""
    b = b.detach().to(a.dtype)
    is_known = torch.isfinite(b.abs()) & ((a.abs() < 1e290) | torch.isnan(a.abs()))
    scale = float(b[is_known].abs().max()) if bool(is_known.any()) else 0.0
    apart = torch.where(is_known, (a - b).abs(), 0.0)
    apart = torch.where(torch.isnan(apart), torch.inf, apart)
    return is_close(a, b) or bool((apart <= COARSE * (b.abs() + 1e-2 * scale)).all())


def _scaled(context: ReproContext) -> Repro:
    """The pull of a scaled cotangent against the scaled pull."""
    size = f"{context.about.detail.times:g}"
    larger = context.each(f"{size} * g", "g")
    begun = [*context.settings(), *context.weights(), *context.pulling()]
    if context.raised:
        return Repro(text_of(begun, f"pull({larger}){context.raised}"))
    return Repro(
        text_of(
            begun,
            f"for got, expected in zip(pull({larger}), pull(g)):",
            f"    got = got / {size}",
            "    limit = 1e-3 * expected.abs() + 1e-5 * expected.abs().max()",
            '    assert bool(((got - expected).abs() <= limit).all()), f"{got=}, {expected=}"',
        )
    )


RULES = (
    Registered(
        NONLINEAR_BACKWARD,
        nonlinear_backward,
        repros=tuple(_combined(scale) for scale in ("", "64 * ", "1 / 64 * ")),
        explains=(
            Cause(
                frozenset({"gradient", "linearity"}),
                "what bends with the cotangent is wrong for some",
                rank=190,
                is_partial=True,
                even=PATTERNS,
            ),
        ),
        page="""
`backward` must be linear in the gradient it receives.

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
""",
    ),
    Registered(
        ZERO_COTANGENT,
        zero_cotangent,
        repros=(_zero,),
        page="""
A cotangent of zero must give a gradient of zero.

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
""",
    ),
    Registered(
        SCALED_COTANGENT,
        scaled_cotangent,
        repros=(_scaled,),
        page="""
A cotangent of any size must give a gradient of that size.

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
""",
    ),
)
