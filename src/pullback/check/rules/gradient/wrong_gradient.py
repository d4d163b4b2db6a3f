"""Gradients that are wrong at the example itself: one rule for each pattern by which they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

from pullback.check.findings.explaining import Cause
from pullback.check.findings.registered import Registered
from pullback.check.subject.reasons import Reason, reason_of, right_backward
from pullback.check.subject.subject import Finding, Rule, Skip, Subject, each
from pullback.check.subject.trials import trial_of
from pullback.judge.mismatch import Mismatch
from pullback.judge.patterns import CUT, FACTOR, REDUCTION, SIGN, SWAPPED, VALUES, factor_of
from pullback.judge.tolerances import NEAR_ONE

# Patterns that say how a gradient is wrong and not where: the others are a reason already.
UNEXPLAINED = (VALUES, REDUCTION, FACTOR)

REPLACE = "return what the derived backward returns; where another gradient is meant, declare it"
HIDDEN = "forward hides a part of its work from autograd, and differences of forward show it"
ARGUMENTS = 6  # other plain arguments for which it is asked whether the gradient is right
LONG = 80  # an edit that takes more letters is harder to read than the backward below it


def _wrong_gradients(rule: Rule, kind: str, subject: Subject) -> Iterator[Finding | Skip]:
    """One finding for each gradient that is wrong at the examples by the pattern `kind`."""
    if subject.fails_at_base:
        yield Skip.refused(rule, "backward fails at the example", subject.fails_at_base)
        return
    for mismatch in subject.base_mismatches:
        pattern = subject.patterns[mismatch.name]
        if pattern.kind == kind:
            is_seen = mismatch.is_seen_by_autograd
            known = reason_of(subject, mismatch.name) if kind in UNEXPLAINED else Reason()
            if not (
                is_seen or known.why or subject.target.is_op
            ):  # of an op, autograd sees nothing
                known = Reason(why=HIDDEN)
            backward = right_backward(subject) if is_seen else ""
            edit = known.fix if len(known.fix) <= LONG or not backward else REPLACE
            if kind == FACTOR and "`" not in edit:
                edit = pattern.fix  # it names the input at least
            if edit and edit != REPLACE:
                edit = _where_it_holds(subject, mismatch, edit)
            yield subject.mismatched(
                rule,
                mismatch,
                subject.base,
                remedy=known.fix or str(factor_of(mismatch)),
                why=pattern.why if kind == FACTOR else known.why or pattern.why,
                fix=edit or pattern.fix or (REPLACE if backward else ""),
                place=known.place,
                facts={"backward": backward} if backward else {},
            )


def _where_it_holds(subject: Subject, wrong: Mismatch, edit: str) -> str:
    """An edit, as a question where the gradient is right, or off otherwise, for other arguments."""
    ratio, name = factor_of(wrong), wrong.name
    variants = (subject.kept(e) for e in subject.other_arguments())
    for example in each(islice(variants, ARGUMENTS), subject):
        trial = trial_of(subject, example)
        if trial is None or trial.failure is not None:
            continue
        found = [mismatch for mismatch in trial.mismatches if mismatch.name == name]
        if not found:
            return f"{edit}? Not for {example.label}: there it is right"
        other = factor_of(found[0])
        if ratio and other and abs(other - ratio) > NEAR_ONE * abs(ratio):
            return f"{edit}? For {example.label} it is {other:.6g} times the right one"
    return edit


def _rule(code: str, name: str, kind: str, page: str, explains: Sequence[Cause] = ()) -> Registered:
    rule = Rule(code=code, name=name, group="gradient", profile="quick")
    return Registered(rule, partial(_wrong_gradients, rule, kind), page, explains=explains)


RULES = (
    _rule(
        "G101",
        "wrong-gradient",
        VALUES,
        """
Each gradient must be the one that forward implies.

What it checks
    The gradient of every input, entry by entry, for random cotangents in float64, against forward
    differentiated by autograd; what differs is settled by differences of the real forward, whose
    error is estimated.

Why it matters
    Training goes on with a wrong gradient, only worse. Two of the three examples that this project
    started from were wrong and nobody noticed; in quack#53 a sum and a product stood in the wrong
    order, in FA#2541 one of three gradients was corrupted.

Fails
    return 2 * sine * torch.cos(sine) * g      # the saved sine where the input is needed

Passes
    return 2 * torch.sin(x) * torch.cos(x) * g

Cannot see
    A forward that computes something else than its author meant: forward is taken as the truth.
""",
        explains=(
            Cause(
                frozenset({"linearity"}),
                "the same edit repairs that too",
                rank=180,
                # By an edit that was tried with large cotangents.
                holds=lambda finding: finding.about.is_explained,
            ),
        ),
    ),
    _rule(
        "G102",
        "flipped-sign",
        SIGN,
        """
A gradient must have the sign that forward implies.

What it checks
    Whether a gradient that is wrong is the right one with its sign flipped, in every entry.

Why it matters
    Gradient descent then climbs. The sign is easily lost in a quotient or in `a - b`.

Fails
    return g, g                # of forward a - b

Passes
    return g, -g

Cannot see
    A flip on purpose, as in gradient reversal, which is declared: `declares = {"surrogate": "x"}`.
""",
    ),
    _rule(
        "G103",
        "wrong-factor",
        FACTOR,
        """
A gradient must have the size that forward implies.

What it checks
    Whether a gradient that is wrong is a constant multiple of the right one.

Why it matters
    A factor acts as another learning rate for one input only, and hides there for years.

Fails
    return x * g               # of forward x * x

Passes
    return 2 * x * g

Cannot see
    A factor of one.
""",
    ),
    _rule(
        "G104",
        "swapped-gradients",
        SWAPPED,
        """
Gradients must be returned in the order of forward's arguments.

What it checks
    Whether a gradient that is wrong is the gradient of another input of the same shape.

Why it matters
    With inputs of one shape nothing else notices: the engine takes what it gets.

Fails
    return g * a, g * b        # of forward(ctx, a, b): a * b

Passes
    return g * b, g * a

Cannot see
    A swap of two gradients that are equal at the inputs that were tried.
""",
    ),
    _rule(
        "G105",
        "missing-reduction",
        REDUCTION,
        """
A gradient must be summed over what forward broadcast or reduced.

What it checks
    Whether a gradient that is wrong is the mean where the sum is needed (or the reverse), or one
    number for all entries.

Why it matters
    The engine sums a gradient that is too large to the shape of the input in silence, so a mean
    over the wrong dimension has the right shape and the wrong size.

Fails
    return g, g.mean(0)        # of forward x + bias

Passes
    return g, g.sum(0)

Cannot see
    A reduction over a dimension of size one.
""",
    ),
    _rule(
        "G106",
        "cut-gradient",
        CUT,
        """
A gradient must flow to every input that the output depends on.

What it checks
    Whether an input that requires grad gets no gradient, or zeros, while forward changes with it.

Why it matters
    The parameters before it are never trained, and the loss still goes down: q and k projections in
    LongLive#61, a denominator in fla#875.

Fails
    return g * scale, None     # of forward x * scale, with a scale that requires grad

Passes
    return g * scale, (g * x).sum()

Cannot see
    A cut on purpose, which is declared: `declares = {"surrogate": "x"}`. In a plain callable a
    `detach` is taken for one; values that leave PyTorch (NumPy, a bare kernel) are not.
""",
    ),
)
