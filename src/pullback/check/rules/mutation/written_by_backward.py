"""What backward writes into and must leave alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from pullback.check.findings.explaining import ANYTHING, COMPARING, REPEATING, SHARED, Cause, Sign
from pullback.check.findings.facts import At, Cotangent, Input, Output, Thing
from pullback.check.findings.registered import Registered
from pullback.check.repro.calls import begun, changed_by_backward
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.gap import copied, gaps
from pullback.check.subject.subject import BackwardFailedError, Finding, Rule, Skip, Subject
from pullback.check.watching.snapshot import Snapshot, share_memory
from pullback.judge.example import tensors_in
from pullback.judge.run import Run

MUTATED_COTANGENT = Rule("M702", "mutated-cotangent", "mutation", profile="quick")
MUTATED_SAVED = Rule("M703", "mutated-saved", "mutation", profile="quick")
TOUCHED_GRAD = Rule("M704", "touched-grad", "mutation", profile="quick")


def mutated_cotangent(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per cotangent that backward changes."""
    if subject.target.intent.donates is True:
        return
    for example in (subject.base, subject.given):
        run = subject.run(example)
        cotangents = subject.cotangents(run, 3)
        named = [(Cotangent(i), c) for i, c in enumerate(cotangents) if c is not None]
        snapshot = Snapshot(named)
        try:
            run.pull(cotangents)
        except BackwardFailedError as failure:
            yield Skip.refused(MUTATED_COTANGENT, "backward fails", failure.raised)
            return
        found = list(snapshot.changes())
        for change in found:
            yield subject.finding(
                MUTATED_COTANGENT,
                example=example,
                at=At(change.thing, change.index, rest=", after backward"),
                expected=change.before.then(", as before backward"),
                got=change.after,
                fix="compute into a new tensor: `g * y` in the place of `g.mul_(y)`",
                facts=subject.target.if_meant(True),
            )
        if found:
            return


class Damage(Enum):
    """What became of a tensor that was saved, where that is not a number that changed."""

    FREED = "its memory is gone"


def mutated_saved(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor that backward changes, or for a second backward that differs."""
    intent = subject.target.intent
    run = subject.run()
    named: list[tuple[Thing, Tensor]] = [
        (Input(name), tensor)
        for name, arg in zip(subject.names, run.passed, strict=False)
        for tensor in tensors_in(arg)
        if not intent.is_donated(name)
    ]
    named += [(Output(i), output) for i, output in enumerate(run.outputs)]
    snapshot, kept = Snapshot(named), Snapshot(_kept(run))
    try:
        first = run.pull(subject.cotangents(run, 4), retain_graph=True)
    except BackwardFailedError as failure:
        yield Skip.refused(MUTATED_SAVED, "backward fails", failure.raised)
        return
    found = list(snapshot.changes())
    for change in found:
        if change.is_freed:
            yield _freed(subject, change.thing)
            continue
        donated = change.thing.name if isinstance(change.thing, Input) else True
        yield subject.finding(
            MUTATED_SAVED,
            example=subject.base,
            at=At(change.thing, change.index, rest=", after backward"),
            expected=change.before.then(", as before backward"),
            got=change.after,
            fix="compute into a new tensor, or clone what was saved before writing into it",
            facts=subject.target.if_meant(donated),
        )
    if found or intent.donates or intent.nondeterministic or not subject.is_steady:
        return
    changed = next(kept.changes(), None)
    if changed is not None:
        why = f"{changed.thing} was {changed.before} and is {changed.after} after backward"
        yield from _differs(subject, run, first, why)


def _freed(subject: Subject, thing: Thing) -> Finding:
    """A tensor whose memory is gone; without a repro, which would read it and end the process."""
    return Finding.made(
        MUTATED_SAVED,
        at=f"the memory of {thing}, after backward",
        expected="as before backward",
        got="freed",
        detail=Damage.FREED,
        inputs=subject.base.words(subject.names),
        fix="free what backward made itself, and leave what was saved",
    )


def _differs(
    subject: Subject, run: Run, first: dict[str, Tensor | None], why: str
) -> Iterator[Finding]:
    """One finding per gradient that a second backward gives otherwise."""
    before = copied(first)
    try:
        second = run.pull(subject.cotangents(run, 4))
    except BackwardFailedError:
        return  # `backward-twice` tells of this
    for gap in gaps(second, before):
        yield subject.finding(
            MUTATED_SAVED,
            example=subject.base,
            **gap.facts(", in a second backward over the same graph", expected=", as in the first"),
            detail=Sign.AGAIN,
            why=why,
            fix="let backward leave what was saved as it is",
        )


def _kept(run: Run) -> Iterator[tuple[Thing, Tensor]]:
    """What the node of an output holds and neither an input nor an output does, by name."""
    known = [*tensors_in(run.passed), *run.outputs]
    for node in dict.fromkeys(output.grad_fn for output in run.outputs):
        saved = getattr(node, "saved_tensors", ())
        named = [(f"saved tensor {i}", t) for i, t in enumerate(saved) if t is not None]
        held = getattr(node, "__dict__", {})
        named += [(f"`ctx.{name}`", t) for name, value in held.items() for t in tensors_in(value)]
        for name, tensor in named:
            if not any(share_memory(tensor, other) for other in known):
                yield name, tensor


@dataclass(frozen=True, slots=True)
class Field:
    """The `.grad` of a tensor, and whether there was something in it."""

    of: Thing
    is_preset: bool


def touched_grad(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor whose `.grad` changed."""
    for is_preset in (False, True):
        run = subject.run()
        watched: dict[Thing, Tensor] = {Input(n): leaf for n, leaf in run.leaves.items()}
        watched |= _around(subject)
        before: dict[Thing, Tensor | None] = {}
        for thing, tensor in watched.items():
            if is_preset and isinstance(thing, Input) and tensor.is_leaf:
                tensor.grad = torch.full_like(tensor, 0.5)
            before[thing] = None if tensor.grad is None else tensor.grad.clone()
        try:
            run.pull(subject.cotangents(run))
        except BackwardFailedError as failure:
            yield Skip.refused(TOUCHED_GRAD, "backward fails", failure.raised)
            return
        found = [thing for thing, t in watched.items() if not _same(t.grad, before[thing])]
        for thing in found:
            yield subject.finding(
                TOUCHED_GRAD,
                example=subject.base,
                at=f"`.grad` of {thing}, after torch.autograd.grad",
                expected="as it was before" if is_preset else "None, as before",
                got="None" if watched[thing].grad is None else "other numbers",
                detail=Field(thing, is_preset),
                fix="use torch.autograd.grad inside: it fills no field; return what it gives",
            )
        if found:
            return


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)


def _around(subject: Subject) -> dict[Thing, Tensor]:
    """Leaf tensors that the user's methods see around them: closures and globals they name."""
    found: dict[Thing, Tensor] = {}
    for method in ("forward", "backward", "setup_context"):
        function = subject.target.method(method)
        if function is None or not inspect.isfunction(inspect.unwrap(function)):
            continue
        try:
            seen = inspect.getclosurevars(inspect.unwrap(function))
        except (TypeError, ValueError):  # an empty cell, or no Python function at all
            continue
        for name, value in {**seen.globals, **seen.nonlocals}.items():
            if isinstance(value, Tensor) and value.is_leaf:
                found[f"`{name}`"] = value
            elif isinstance(value, torch.nn.Module):
                found |= {f"`{name}.{key}`": p for key, p in value.named_parameters()}
    return found


def _field(context: ReproContext) -> str:
    """The `.grad` of an input is the caller's."""
    name = context.code_of(context.about.detail.of)
    if not name:
        return ""
    value, test = "None", f"{name}.grad is None"
    if context.about.detail.is_preset:
        value = f"torch.full_like({name}, 0.5)"
        test = f"{name}.grad is not None and bool(({name}.grad == 0.5).all())"
    return text_of(
        begun(context),
        f"{name}.grad = {value}",
        context.pull(),
        f'assert {test}, f"{{{name}.grad=}}"',
    )


RULES = (
    Registered(
        MUTATED_COTANGENT,
        mutated_cotangent,
        repros=(changed_by_backward,),
        explains=(
            Cause(
                COMPARING,
                "what is computed from the cotangent after that is wrong",
                rank=60,
                is_partial=True,
                raising=SHARED,
            ),
        ),
        page="""
`backward` must not change the cotangents it receives.

What it checks
    Every cotangent holds the same numbers after backward as before.

Why it matters
    The engine hands the same tensor to other nodes and to hooks: they see the changed numbers
    (apex#1430, apex#1587: a fused softmax that wrote into `grad_output`).

Fails
    return grad_output.mul_(y)

Passes
    return grad_output * y

Cannot see
    A change that writes back the same numbers.
""",
    ),
    Registered(
        MUTATED_SAVED,
        mutated_saved,
        repros=(changed_by_backward,),
        explains=(
            Cause(
                REPEATING | {"crash", "gradient-aliases-input", "layout", "same-tensor-twice"},
                "what is read next from that memory is no longer there",
                rank=90,
                holds=lambda finding: finding.about.detail is Damage.FREED,
                is_partial=True,
                raising=ANYTHING,
            ),
            Cause(
                REPEATING
                | {"gradient-aliases-input", "layout", "same-tensor-twice", "reused-buffer"},
                "the next backward, and all that shares that memory, sees other numbers",
                rank=100,
                holds=lambda finding: finding.about.detail is not Sign.AGAIN,
                is_partial=True,
                raising=SHARED,
            ),
            Cause(
                REPEATING - {Sign.AGAIN},
                "the next backward sees other numbers",
                rank=120,
                is_partial=True,
            ),
        ),
        page="""
`backward` must not change inputs, outputs or what was saved.

What it checks
    After backward the inputs and the outputs hold what they held before it; so do saved tensors and
    those on ctx where a second backward over the same graph gives other gradients than the first.

Why it matters
    A saved tensor is the caller's own: unsloth#5002 overwrote the saved logits and returned them,
    Liger#254 wrote into saved inputs and broke the op before it.

Fails
    (y,) = ctx.saved_tensors; return y.mul_(g)

Passes
    (y,) = ctx.saved_tensors; return y * g

Cannot see
    A change that writes back the same numbers. An input given away on purpose is declared:
    `declares = {"donates": "x"}`.
""",
    ),
    Registered(
        TOUCHED_GRAD,
        touched_grad,
        repros=(_field,),
        explains=(
            Cause(
                frozenset(
                    {"checkpoint-differs", "hooks-bypassed", "cut-gradient", "backward-twice"}
                )
                | {Sign.AGAIN},
                "what is in `.grad` is none of what backward returns",
                rank=110,
                raising=ANYTHING,
            ),
        ),
        page="""
A function must not touch the `.grad` of anything.

What it checks
    With `.grad` set beforehand on every input, forward and a call of `torch.autograd.grad` leave
    these fields as they are; inputs without one do not get one.

Why it matters
    An inner `backward()` fills `.grad` and the engine then adds the returned gradient to it: twice
    the gradient, and earlier micro-batches are spoilt (unsloth-zoo#892).

Fails
    loss.backward(); return x.grad

Passes
    return torch.autograd.grad(loss, x)[0]

Cannot see
    The `.grad` of tensors that are neither inputs nor in the closure of the Function.
""",
    ),
)
