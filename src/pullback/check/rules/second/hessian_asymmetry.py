"""Second derivatives must not depend on the order in which they are taken.

What it checks
    For random directions `u` and `v` over all inputs, `<v, H u>` is `<u, H v>`, where `H` is the
    Hessian of `<g, forward(x)>` taken through backward twice.

Why it matters
    A Hessian is symmetric. Where it is not, Newton steps, conjugate gradients and influence
    functions work with a matrix that belongs to no function. No reference is needed to see it, so
    it also holds for functions that nothing else can differentiate.

Fails
    return ddx * e, ddy * grad * e           # a backward of backward that lacks one cross term

Passes
    return ddx * e + ddy * x * e, ddy * grad * e

Cannot see
    A second derivative that is wrong and symmetric; functions at whose example there is a kink.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from pullback.check.repro.context import ReproContext, text_of
from pullback.check.repro.orders import weights_of
from pullback.check.subject.forward_mode import paired_sum
from pullback.check.subject.second_order import second_order
from pullback.check.subject.subject import Finding, Rule, Skip, Subject, describe
from pullback.check.subject.twice import weighted_sum
from pullback.judge.run import Run, cotangent_of

RULE = Rule(
    "H003",
    "hessian-asymmetry",
    "second",
    profile="quick",
    intent=("once_differentiable", "surrogate"),
)

PAIRS = 2
DRAWS = (700, 750)  # of the first directions


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding when the Hessian is not symmetric and no other rule has said why."""
    outcome = second_order(subject)
    if outcome.skip or outcome.defects:
        if outcome.skip:
            yield outcome.skipped(RULE)
        return
    if outcome.is_own:
        yield Skip(RULE, "the first derivative is no gradient of forward")
        return
    if any(set(relation.positions) & subject.small.needs for relation in subject.relations):
        yield Skip(RULE, "the inputs have a form, such as symmetry, that directions do not keep")
        return
    for pair in range(PAIRS):
        called = subject.run(subject.small)
        leaves = list(called.leaves.values())
        # Other numbers for each input: along the same ones, what two inputs lack in turn cancels.
        u, v = (
            [cotangent_of(leaf, draw + 100 * pair + i) for i, leaf in enumerate(leaves)]
            for draw in DRAWS
        )
        try:
            along_u, along_v = (_product(subject, called, direction) for direction in (u, v))
        except RuntimeError as error:
            yield Skip.refused(RULE, "it refuses aloud", describe(error))
            return
        if along_u is None or along_v is None:
            return
        one, size = paired_sum(v, along_u)
        two, other = paired_sum(u, along_v)
        eps = subject.reference.noise_of(subject.small)
        if abs(one - two) <= 1e4 * eps * (size + other) + 1e-10:
            continue
        if not math.isfinite(size + other) and not _is_finite([*called.leaves.values()]):
            return
        is_known = math.isfinite(two)
        yield subject.finding(
            RULE,
            example=subject.small,
            at="the Hessian of a weighted sum of the outputs, along two random directions",
            expected=f"<v, H u> = <u, H v> = {two:.6g}" if is_known else "a finite <v, H u>",
            got=f"<v, H u> = {one:.6g}",
            fix="derive the second backward from the first, or add @once_differentiable",
        )
        return


def _is_finite(leaves: Iterable[Tensor]) -> bool:
    return all(bool(torch.isfinite(leaf.detach()).all()) for leaf in leaves)


def _product(
    subject: Subject, called: Run, direction: list[Tensor | None]
) -> list[Tensor | None] | None:
    """`H direction`, None where the gradient has no history."""
    leaves = list(called.leaves.values())
    used = [
        (output, cotangent)
        for output, cotangent in zip(called.outputs, subject.cotangents(called), strict=True)
        if cotangent is not None
    ]
    if not used or not leaves:
        return None
    first = torch.autograd.grad(
        [output for output, _ in used],
        leaves,
        [cotangent for _, cotangent in used],
        create_graph=True,
        allow_unused=True,
    )
    total = weighted_sum(first, direction)
    if total is None or not total.requires_grad:
        return None
    return list(torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True))


def _in_both_orders(context: ReproContext) -> str:
    """The Hessian along two directions, in both orders."""
    leaves = ", ".join(context.leaves)
    return text_of(
        context.settings(),
        context.weights(),
        f"u = [{', '.join(weights_of(context, DRAWS[0]))}]",
        f"v = [{', '.join(weights_of(context, DRAWS[1]))}]",
        context.done(),
        f"first = {context.pull(options='create_graph=True')}",
        "",
        "def along(u, v):",
        f"    found = torch.autograd.grad(first, [{leaves}], u, retain_graph=True, "
        "materialize_grads=True)",
        "    return sum((a * b).sum() for a, b in zip(found, v))",
        "",
        "got, expected = along(u, v), along(v, u)",
        'assert abs(got - expected) <= 1e-10 * abs(expected), f"{got=}, {expected=}"',
    )


REPROS = (_in_both_orders,)
