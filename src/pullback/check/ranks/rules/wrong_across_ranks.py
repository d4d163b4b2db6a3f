"""The gradients of the joint function, and the faults by which they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from pullback.check.findings.facts import At, Gradient, Output, numbers
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.check.findings.registered import Registered
from pullback.check.ranks.collectives import SUMS
from pullback.check.ranks.consistency import Judged, Rows, all_judged, held
from pullback.check.ranks.diagnosis import Diagnosis, RankFault, diagnosed
from pullback.check.ranks.joint import UNWAITED, Joint
from pullback.check.ranks.programs import program_of
from pullback.check.ranks.sources import wrong_source

GROUP = "ranks"

FIXES = {
    RankFault.UNKNOWN: "",
    RankFault.MISSING: "sum over the ranks in backward what forward has spread over them",
    RankFault.DOUBLED: "leave one sum over the ranks out of backward",
    RankFault.FACTOR: "scale by the number of ranks in backward where forward does, and only there",
    RankFault.OTHER_RANK: "send each gradient back to the rank that its input came from",
    RankFault.DIFFERENT: "give the same gradient on every rank, or declare it as partial",
    RankFault.GROUP: "communicate in backward on the group that forward communicates on",
}

TWICE = "leave the sum over the ranks out of backward: what it sums is the same on each already"


def faults(joint: Joint) -> list[tuple[RankFault, Finding]]:
    """What is wrong with the gradients, under the declared placements or under any at all."""
    return joint.once("faults", lambda: list(_faults(joint)))


def _faults(joint: Joint) -> Iterator[tuple[RankFault, Finding]]:
    every = all_judged(joint)
    if not every or any(judged.is_right for judged in every):
        return
    possible = [judged for judged in every if judged.is_possible]
    if not possible:
        return
    best, told = min(
        ((judged, _diagnoses(joint, judged)) for judged in possible), key=lambda two: _rank(*two)
    )
    for rows, own in told:
        diagnosis = own if own.words else _of_groups(joint) or own
        joint.reported.add(rows.name)
        yield diagnosis.fault, _finding(joint, best, rows, diagnosis, len(every))


def _diagnoses(joint: Joint, judged: Judged) -> list[tuple[Rows, Diagnosis]]:
    return [(rows, diagnosed(rows, held(joint, rows.placed))) for rows in judged.wrong]


def _of_groups(joint: Joint) -> Diagnosis | None:
    """The sum in backward over ranks on which forward does not communicate."""
    for steps in joint.steps:
        forward = {step.ranks for step in steps if step.phase == "forward"}
        for step in steps:
            is_sum = step.phase == "backward" and step.name in SUMS
            if forward and is_sum and step.ranks not in forward:
                words = f"backward makes {step}, and forward communicates on other ranks"
                return Diagnosis(RankFault.GROUP, words)
    return None


def _rank(judged: Judged, told: list[tuple[Rows, Diagnosis]]) -> tuple[int, int, int]:
    """How well an assignment explains what is wrong: few gradients, by faults that are known."""
    unknown = sum(d.fault is RankFault.UNKNOWN for _, d in told)
    vague = sum(d.fault is RankFault.DIFFERENT or not d.words for _, d in told)
    return unknown, len(told), vague


def _finding(joint: Joint, judged: Judged, rows: Rows, diagnosis: Diagnosis, tried: int) -> Finding:
    rank = next((r for r, w in enumerate(rows.wrong) if bool(w.any())), 0)
    at = At(Gradient(rows.name), rest=f" on rank {rank}, along a direction")
    entry = int(rows.wrong[rank].int().argmax()) if rows.wrong[rank].numel() else 0
    got = float(rows.got[rank][entry]) if rows.got[rank].numel() > entry else None
    want = float(rows.want[rank][entry]) if rows.want[rank].numel() > entry else None
    program = program_of(joint, judged, rows, rank)
    if program is not None:
        want, got = program.expected, program.got
    expected, came = numbers(want, got)
    if joint.declared.is_empty and tried > 1:
        under = f"the gradients are right under no placements; the nearest: {judged.assignment}"
    else:
        under = f"the placements are {judged.assignment}"
    told = diagnosis.words or wrong_source(joint, judged, rows)
    words = f"{under}. {_sentence(told)}" if told else under
    found = joint.finding(
        RULES_BY_FAULT[diagnosis.fault],
        at=at,
        expected=expected.then(", by differences of the joint forward"),
        got=came,
        why=words,
        fix=_fix(joint, diagnosis),
        remedy=diagnosis.fault.value,
    )
    return found if program is None else replace(found, repro=program.text)


def _fix(joint: Joint, diagnosis: Diagnosis) -> str:
    steps = [step for steps in joint.steps for step in steps]
    is_summed = any(step.phase == "backward" and step.name in SUMS for step in steps)
    if diagnosis.fault is RankFault.FACTOR and diagnosis.factor > 1 and is_summed:
        return TWICE
    return FIXES[diagnosis.fault]


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _of(fault: RankFault) -> Callable[[Joint], Iterator[Finding | Skip]]:
    def check(joint: Joint) -> Iterator[Finding | Skip]:
        """The findings of one fault."""
        if not joint.positions:
            yield Skip(RULES_BY_FAULT[fault], "no input needs a gradient on every rank")
            return
        if not joint.meant:
            yield Skip(RULES_BY_FAULT[fault], "all gradients are declared to be surrogates")
            return
        if joint.is_unsettled:
            yield Skip(RULES_BY_FAULT[fault], UNWAITED)
            return
        yield from (finding for found, finding in faults(joint) if found is fault)

    return check


def _placement(joint: Joint) -> Iterator[Finding | Skip]:
    """Outputs that are declared to be one value, and are not."""
    if joint.declared.is_empty:
        yield Skip(BROKEN, "no placement is declared")
        return
    every = all_judged(joint)
    if not every or any(judged.is_possible for judged in every):
        return
    number = every[0].differing[0]
    yield joint.finding(
        BROKEN,
        at=At(Output(number), rest=", declared to be replicated"),
        expected="the same value on all ranks, whatever the inputs are",
        got="values that differ between ranks",
        fix="reduce or gather in forward, or declare the output as sharded",
    )


# ---- pages ----

WRONG_PAGE = """The gradients of all ranks must be those of one joint function.

What it checks
    The gradient that each rank's backward gives, beside differences of the joint forward: each
    rank's input is moved in turn, all ranks take part. It must be right under the declared
    placements; where none are declared, under some assignment of them.

Why it matters
    A gradient that is wrong across ranks trains, and trains worse: ring attention and vocabulary
    parallel losses had such faults for months. No tool of one process can see them.

Fails
    dist.all_reduce(y); return y        # and in backward: return grad * y

Passes
    the sum of the cotangents over ranks (sharded outputs), or the cotangent (replicated outputs)

Cannot see
    A Function that is right under another convention than the author's, where none is declared.
"""

MISSING_PAGE = """Backward must bring together what all ranks add to a gradient.

What it checks
    Whether a wrong gradient is what this rank's outputs, or its share of a replicated input, alone
    give: a sum over the ranks is missing in backward.

Why it matters
    Replicated parameters then drift apart from rank to rank, and no error is raised.

Fails
    return grad @ weight               # of a replicated input, in a column-parallel linear

Passes
    grad_x = grad @ weight; dist.all_reduce(grad_x); return grad_x

Cannot see
    A missing sum where placements are not declared and the gradient is right for sharded inputs.
"""

DOUBLED_PAGE = """Backward must not sum over ranks what is each rank's own.

What it checks
    Whether a wrong gradient of a sharded input is the sum of what all ranks must have.

Why it matters
    A layer whose neighbour reduces as well gets gradients that are too large, and each rank those
    of others.

Fails
    dist.all_reduce(grad_x)            # of an input that is sharded

Passes
    return grad_x

Cannot see
    The same of a replicated input: there it is a factor, see rank-factor.
"""

FACTOR_PAGE = """Gradients must not be off by the number of ranks.

What it checks
    Whether a wrong gradient is N times, or 1/N of, what it must be, with N ranks.

Why it matters
    The learning rate then depends on the number of machines. After an all-reduce one convention
    sums the cotangents and another passes them through: a mean is neither.

Fails
    return grad / dist.get_world_size()

Passes
    return grad

Cannot see
    A factor that is a scale of the loss on purpose: declare such a gradient as a surrogate.
"""

OTHER_PAGE = """Each rank must get the gradient of its own shard.

What it checks
    Whether the gradients are right, and on the wrong ranks.

Why it matters
    Ring shifts, all-to-alls and pipelines send on, and backward must send back: a shift in the same
    direction gives every rank another one's gradient, of the right shape and size.

Fails
    return shift(grad, by=+1)          # forward shifts by +1

Passes
    return shift(grad, by=-1)

Cannot see
    Ranks whose shards and gradients are the same.
"""

DIFFERENT_PAGE = """A replicated input must have one gradient on all ranks.

What it checks
    Whether the gradients of an input that is one value differ between ranks, other than as shares
    of which the sum is right.

Why it matters
    Parameters that were equal are not any more after the first step.

Fails
    return grad * rank

Passes
    dist.broadcast(grad_w, 0); return grad_w       # or a sum over the ranks

Cannot see
    Gradients that are declared to be partial: those may differ.
"""

GROUP_PAGE = """Backward must communicate on the ranks on which forward does.

What it checks
    Whether a wrong gradient is the right sum over other ranks: fewer, or more.

Why it matters
    With tensor, data and pipeline groups side by side, the default group is one argument away.

Fails
    dist.all_reduce(grad)              # forward: dist.all_reduce(x, group=group)

Passes
    dist.all_reduce(grad, group=ctx.group)

Cannot see
    Groups that hold the same ranks; a wrong group in a forward that is consistent with it.
"""

BROKEN_PAGE = """An output that is declared to be replicated must be one value.

What it checks
    Whether declared outputs are the same on all ranks, at the inputs and when those move.

Why it matters
    What follows takes one rank's value for all, and the loss counts it once.

Fails
    placements = {"out": "replicate"}  # and forward returns this rank's rows

Passes
    placements = {"out": "shard"}

Cannot see
    Values that are the same by chance wherever it looks.
"""

WRONG = Rule("R101", "wrong-across-ranks", GROUP, profile="quick")
MISSING = Rule("R102", "missing-collective", GROUP, profile="quick")
DOUBLED = Rule("R103", "doubled-collective", GROUP, profile="quick")
FACTOR = Rule("R104", "rank-factor", GROUP, profile="quick")
OTHER = Rule("R105", "other-ranks-gradient", GROUP, profile="quick")
DIFFERENT = Rule("R106", "unequal-gradients", GROUP, profile="quick")
WRONG_GROUP = Rule("R107", "wrong-group", GROUP, profile="quick")
BROKEN = Rule("R108", "broken-placement", GROUP, profile="quick")

RULES_BY_FAULT = {
    RankFault.UNKNOWN: WRONG,
    RankFault.MISSING: MISSING,
    RankFault.DOUBLED: DOUBLED,
    RankFault.FACTOR: FACTOR,
    RankFault.OTHER_RANK: OTHER,
    RankFault.DIFFERENT: DIFFERENT,
    RankFault.GROUP: WRONG_GROUP,
}

RULES = (
    Registered(WRONG, _of(RankFault.UNKNOWN), WRONG_PAGE),
    Registered(MISSING, _of(RankFault.MISSING), MISSING_PAGE),
    Registered(DOUBLED, _of(RankFault.DOUBLED), DOUBLED_PAGE),
    Registered(FACTOR, _of(RankFault.FACTOR), FACTOR_PAGE),
    Registered(OTHER, _of(RankFault.OTHER_RANK), OTHER_PAGE),
    Registered(DIFFERENT, _of(RankFault.DIFFERENT), DIFFERENT_PAGE),
    Registered(WRONG_GROUP, _of(RankFault.GROUP), GROUP_PAGE),
    Registered(BROKEN, _placement, BROKEN_PAGE),
)
