"""`vmap` of a function and of its gradient, against a loop over the samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Number, Words
from pullback.check.findings.registered import Registered
from pullback.check.inputs.values import resampled
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.draws import draws
from pullback.check.subject.elsewhere import Results, difference
from pullback.check.subject.gap import Fact, gap_of
from pullback.check.subject.refusal import is_meant
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject, describe, each
from pullback.check.target.registration import has_vmap_rule
from pullback.check.watching.dispatch import foreign_calls
from pullback.function.isolation import seeded
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.run import Raised, cotangent_of
from pullback.judge.tolerances import is_close

WRONG_VMAP = Rule("N001", "wrong-vmap", "batching", profile="quick")
VMAP_OF_GRADIENT = Rule("N002", "vmap-of-gradient", "batching", profile="quick")

BATCH = 3
MOST = 19  # ways of batching


@dataclass(frozen=True, slots=True)
class Batched:
    """Which inputs are batched, and along which dimension: `in_dims` of `torch.vmap`."""

    in_dims: tuple[int | None, ...]


def wrong_vmap(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first way of batching that differs from the loop."""
    if not (subject.target.has_vmap or _calls_batched_op(subject)):
        yield Skip(WRONG_VMAP, "it has no rule for vmap")
        return
    if draws(subject):
        yield Skip(WRONG_VMAP, "it draws random numbers, which a loop draws in another order")
        return
    refusals: list[Raised] = []
    failed: list[Finding] = []
    is_first = subject.target.is_function  # the plainest batch is promised by the class itself
    for in_dims in each(islice(_in_dims(subject.small), MOST), subject):
        batched = [i for i, dim in enumerate(in_dims) if dim is not None]
        samples = _samples(subject.small, batched, 50)
        try:
            with torch.no_grad(), seeded():
                wanted = _stacked([tensors_in(subject.target.call(*s)) for s in samples])
        except Exception as error:
            refusals.append(describe(error))
            continue
        try:
            got = _batched(subject.target.call, samples, in_dims)
        except Exception as error:
            is_promised, is_first = is_first and not is_meant(error), False
            if not is_promised and not _takes(subject, samples, in_dims):
                refusals.append(describe(error))
                continue
            loop = Words("the outputs of a loop")
            failed.append(_differs(subject, in_dims, At("vmap"), loop, describe(error)))
            continue  # another batch may come out wrong, which is worse
        is_first = False
        apart = difference(Results(tuple(got), {}), Results(tuple(wanted), {}))
        if apart is not None:
            expected = apart.expected.then(", as by a loop")
            yield _differs(subject, in_dims, apart.at, expected, apart.got)
            return
    yield from failed[:1]
    if refusals and not failed:
        yield Skip.refused(WRONG_VMAP, "not every batch could be tried", refusals[0])


def _calls_batched_op(subject: Subject) -> bool:
    """Whether a program calls an op that has a rule for `vmap`."""
    if subject.target.is_op or subject.target.is_function:
        return False
    calls = foreign_calls(subject.target.call, subject.small.fresh(needs=frozenset()))
    return any(has_vmap_rule(called.op) for called in calls)


def _differs(
    subject: Subject,
    in_dims: tuple[int | None, ...],
    at: At,
    expected: Number | Words,
    got: Number | Words | Raised,
) -> Finding:
    fix = "move each batch dimension to the front, as in_dims says, and say so in out_dims"
    if isinstance(got, Raised) and subject.target.generates_vmap:
        fix = "write forward with tensor operators only, or set generate_vmap_rule to False"
    return subject.finding(
        WRONG_VMAP,
        example=subject.small,
        severity=Severity.FRAGILE if isinstance(got, Raised) else Severity.WRONG,
        at=at.then(f", for in_dims={in_dims}, {BATCH} samples"),
        expected=expected,
        got=got,
        detail=Batched(in_dims),
        place=subject.target.place("vmap", "setup_context"),
        fix=fix,
    )


def _in_dims(example: Example) -> Iterator[tuple[int | None, ...]]:
    """`in_dims`: every subset of the inputs in front; then last; then second; then mixed."""
    tensors = [i for i in example.tensors if can_differ(example.args[i])]
    for place in (0, -1):
        for chosen in product((True, False), repeat=min(len(tensors), 3)):
            if any(chosen):
                yield _dims(example, dict(zip(tensors, chosen, strict=False)), place)
    if all(example.args[i].dim() > 1 for i in tensors):
        for some in (tensors, *([i] for i in tensors[:2])):
            yield _dims(example, {i: i in some for i in tensors}, 1)
    if len(tensors) > 1:
        mixed = dict.fromkeys(tensors, True)
        yield _dims(example, mixed, 0, other=-1)
        yield _dims(example, mixed, -1, other=0)


def _dims(
    example: Example, chosen: dict[int, bool], place: int, other: int | None = None
) -> tuple[int | None, ...]:
    dims: list[int | None] = [None] * len(example.args)
    for k, (i, is_batched) in enumerate(chosen.items()):
        if is_batched:
            here = place if other is None or k % 2 == 0 else other
            dims[i] = here if here >= 0 else example.args[i].dim()
    return tuple(dims)


def _samples(example: Example, batched: Iterable[int], seed: int) -> list[list[Any]]:
    """The arguments of each sample; what is not batched is the same in all."""
    found = []
    for number in range(BATCH):
        args = list(example.fresh(needs=frozenset()))
        for i in batched:
            if number:
                args[i] = resampled(args[i], tuple(args[i].shape), seed * i + number)
        found.append(args)
    return found


def _batched(call: Any, samples: list[list[Any]], in_dims: tuple[int | None, ...]) -> list[Tensor]:
    """The outputs of `vmap`, the batch in front."""
    args = [
        samples[0][i] if dim is None else torch.stack([s[i] for s in samples], dim)
        for i, dim in enumerate(in_dims)
    ]

    def function(*values: Any) -> Any:
        full = list(args)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        return tuple(tensors_in(call(*full)))

    places = [i for i, dim in enumerate(in_dims) if dim is not None]
    with torch.no_grad(), warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        mapped = torch.vmap(function, in_dims=tuple(in_dims[i] for i in places))
        return list(mapped(*(args[i] for i in places)))


def _takes(subject: Subject, samples: list[list[Any]], in_dims: tuple[int | None, ...]) -> bool:
    """Whether PyTorch can batch forward by itself."""
    try:
        _batched(subject.reference.program, samples, in_dims)
    except Exception:  # an op of the user's without a rule: its refusal is the answer
        return False
    return True


def _stacked(samples: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(outputs)) for outputs in zip(*samples, strict=True)]


def _by_loop(context: ReproContext) -> str:
    """`torch.vmap` against a loop."""
    dims = context.about.detail.in_dims
    pairs = list(zip(context.names, dims, strict=False))
    stacked = {name: f"torch.stack([{name}, 2 * {name}, 0.5 * {name}], {d})" for name, d in pairs}
    rows = [f"{name} = {stacked[name]}" for name, d in pairs if d is not None]
    sample = [name if d is None else f"{name}.select({d}, k)" for name, d in pairs]
    names = ", ".join(name for name, _ in pairs)
    defined = [f"def call({names}):", f"    return {context.call}({names})", ""]
    begun = [*context.settings(leaves=False), *rows, "", *defined]
    mapped = f"out = torch.vmap(call, {dims})({names})"
    if context.raised:
        return text_of(begun, f"{mapped}{context.raised}")
    first = context.code_of(context.about.thing) or context.output(0)
    call = f"{context.call}({', '.join(sample)})"
    loop = f"torch.stack([{call}{first.removeprefix('out')} for k in range(3)])"
    return text_of(
        begun,
        mapped,
        f"got, expected = {first}, {loop}",
        "assert got.shape == expected.shape and torch.allclose(got, expected, 1e-3, 1e-5), "
        'f"{got=}, {expected=}"',
    )


def vmap_of_gradient(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    target = subject.target
    if not target.has_vmap or not target.has_setup_context or subject.writes_inputs:
        return
    if subject.fails_at_base or draws(subject) or not subject.small.needs:
        return
    samples = _samples(subject.small, subject.small.needs, 70)
    try:
        wanted = _looped(target.call, subject, samples)
    except Exception as error:
        yield Skip.refused(
            VMAP_OF_GRADIENT, "the gradient of one sample is refused", describe(error)
        )
        return
    try:
        got = _batched_gradient(target.call, subject, samples)
    except Exception as error:
        try:
            _batched_gradient(subject.reference.program, subject, samples)
        except Exception:  # PyTorch raises many types where it cannot batch
            yield Skip.refused(
                VMAP_OF_GRADIENT, "PyTorch cannot batch this gradient either", describe(error)
            )
            return
        loop = Words("those of a loop")
        yield _gradient_differs(
            subject, At("the gradients"), loop, describe(error), Severity.FRAGILE
        )
        return
    for i, one, two in zip(sorted(subject.small.needs), got, wanted, strict=True):
        if not is_close(one, two, 1000) and one.shape == two.shape:
            gap = gap_of(Gradient(subject.names[i]), one, two)
            want = gap.expected.then(", as by a loop")
            yield _gradient_differs(subject, gap.at, want, gap.got, Severity.WRONG)
            return


def _gradient_differs(
    subject: Subject, at: At, expected: Fact, got: Fact | Raised, weight: Severity
) -> Finding:
    return subject.finding(
        VMAP_OF_GRADIENT,
        example=subject.small,
        severity=weight,
        at=at.then(f", by vmap over torch.func.grad with {BATCH} samples"),
        expected=expected,
        got=got,
        fix="write backward with tensor operators only: no .item(), no branch on values, no NumPy",
    )


def _gradient(call: Any, subject: Subject, args: list[Any]) -> Any:
    """`torch.func.grad` of a weighted sum of the outputs, by the arguments that require grad."""
    places = sorted(subject.small.needs)
    outputs = subject.run(subject.small).outputs
    weights = [cotangent_of(output, number) for number, output in enumerate(outputs)]

    def total(*values: Tensor) -> Tensor:
        full = list(args)
        for i, value in zip(places, values, strict=True):
            full[i] = value
        parts = []
        for output, weight in zip(tensors_in(call(*full)), weights, strict=True):
            if weight is not None and output.is_floating_point():
                parts.append((output * weight).sum())
        return torch.stack(parts).sum()

    return torch.func.grad(total, argnums=tuple(range(len(places))))


def _looped(call: Any, subject: Subject, samples: list[list[Any]]) -> list[Tensor]:
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        rows = [
            _gradient(call, subject, args)(*(args[i] for i in sorted(subject.small.needs)))
            for args in samples
        ]
    return [torch.stack(parts).detach() for parts in zip(*rows, strict=True)]


def _batched_gradient(call: Any, subject: Subject, samples: list[list[Any]]) -> list[Tensor]:
    places = sorted(subject.small.needs)
    stacked = [torch.stack([args[i] for args in samples]) for i in places]
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        found = torch.vmap(_gradient(call, subject, samples[0]))(*stacked)
    return [grad.detach() for grad in found]


RULES = (
    Registered(
        WRONG_VMAP,
        wrong_vmap,
        repros=(_by_loop,),
        page="""
`vmap` of the function must give what a loop over the samples gives.

What it checks
    For each subset of the tensor inputs that is batched, and for the batch as first and as last
    dimension: `torch.vmap` gives the outputs of a loop. Only where the class has a `vmap` or sets
    `generate_vmap_rule`, or an op has one. A rule that raises where PyTorch itself can batch
    forward is fragile.

Why it matters
    A rule is told in `in_dims` where the batch of each input is, and it is easily written for the
    case that all are batched in front. Per-sample gradients and ensembles use the others.

Fails
    return MyFunction.apply(x, w), 0                  # whatever in_dims says

Passes
    x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.unsqueeze(0)

Cannot see
    Nested `vmap`, and batches of another size than three.
""",
    ),
    Registered(
        VMAP_OF_GRADIENT,
        vmap_of_gradient,
        page="""
`vmap` of the gradient must give what a loop over the samples gives.

What it checks
    `torch.vmap` of `torch.func.grad`, with every differentiable input batched in front: per-sample
    gradients are those of a loop. A backward that raises is fragile where PyTorch can do the same
    with forward as plain PyTorch.

Why it matters
    A class that has a `vmap`, or sets `generate_vmap_rule`, promises batching, and per-sample
    gradients are its usual purpose. Backward is then run on batched tensors, where `.item()`,
    branches on values and NumPy raise.

Fails
    largest = x.abs().max().item()                 # in backward

Passes
    largest = x.abs().max()

Cannot see
    Functions in the style with ctx in forward, which `torch.func` refuses.
""",
    ),
)
