"""Surrogate gradients: those that an author wants to be others than forward's.

Straight-through estimators, spikes, quantisers, gradient reversal and clipping have a backward that
is not the derivative of forward, on purpose, and most of them say so nowhere. They are known by
their shape:

- an output is piecewise constant in an input (a rounding, a sign, a comparison), so that its own
  gradient is zero everywhere, and backward returns another. Nobody writes a Function for zeros. The
  author differentiates some other, smooth forward, so no gradient of that Function is judged;
- forward returns an input as it is, so that changing gradients is all that the Function does, if
  only to give them to another input;
- forward returns the input or a bound, and what backward lets through depends on the sign of the
  cotangent; or forward has bounds or rounds, and backward lets everything through as it is;
- an argument changes the gradient, and nothing that forward gives: it is there to shape it;
- backward draws random numbers, forward draws none, and the average is the gradient: an estimate.

Where that holds, the gradient is not compared with forward's, as if it were declared
(`declares = {"surrogate": "x"}`), and the report says so. Everything else is still asked of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.check.options import OptionsOf, chosen_target, nothing_chosen
from pullback.check.subject.draws import draws, is_drawn, is_estimate
from pullback.check.subject.own import own_argument
from pullback.check.subject.subject import Subject
from pullback.check.target.surrogate import Shape, Surrogate
from pullback.check.target.target import Target
from pullback.check.watching.dispatch import names_of_ops
from pullback.judge.example import Example, can_differ, example_of
from pullback.judge.mismatch import Mismatch
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run, copies_of

ROUNDING = frozenset({"round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "floor_divide"})
CROSSING = 0.1  # of the entries may pass to another piece when an input moves by a tiny step
FOREIGN = ("torch.", "pullback.")


def surrogates_of(
    subject: Subject, options_of: OptionsOf = nothing_chosen
) -> tuple[Surrogate, ...]:
    """The inputs whose gradient is not forward's at the examples, by its shape on purpose.

    `options_of` is what settings say of the Functions that a program calls.
    """
    wrong = subject.base_mismatches
    if not wrong:
        return tuple(_changed_identity(subject)) if subject.target.is_function else ()
    if not (subject.target.is_function or subject.target.is_op):
        return tuple(_inside(subject, wrong, options_of))
    try:
        return tuple(_known(subject, wrong))
    except (ForwardRefusedError, BackwardFailedError):
        return ()


def _changed_identity(subject: Subject) -> Iterator[Surrogate]:
    """An input that forward returns, whose gradient is another, right as far as inputs may move."""
    try:
        called = subject.run()
        if not subject.tangents(called.example) or len(called.live) != 1:
            return
        sent = subject.cotangents(called)
        grads = called.pull(copies_of(sent))
        for i in sorted(called.example.needs):
            found = grads.get(called.names[i])
            given = sent[called.live[0]]
            is_other = found is not None and given is not None and not torch.equal(found, given)
            if is_other and _is_identity(subject, called, i):
                yield Surrogate(called.names[i], Shape.IDENTITY)
    except (ForwardRefusedError, BackwardFailedError):
        return


# ---- by shape ----


def _known(subject: Subject, wrong: Sequence[Mismatch]) -> Iterator[Surrogate]:
    called = subject.run()
    for mismatch in wrong:
        if mismatch.have is None or not mismatch.have.any():
            continue  # a gradient that is missing is no other gradient
        shape = _shape(subject, called, mismatch)
        if shape is not None:
            yield Surrogate(mismatch.name, shape)


def _shape(subject: Subject, called: Run, mismatch: Mismatch) -> Shape | None:
    if is_drawn(subject, mismatch.name):
        is_meant = is_estimate(subject, mismatch.name, mismatch.want) and not draws(subject)
        return Shape.DRAWN if is_meant else None
    place = subject.names.index(mismatch.name)
    steps = _steps(subject, called, place)
    if steps and _is_flat(subject, called, steps, mismatch):
        return Shape.CONSTANT
    if any(_is_identity(subject, called, i) for i in called.example.differentiable):
        return Shape.IDENTITY
    if _gives_back(subject, called):
        return Shape.IDENTITY
    if _is_bound(subject, called, place) and _asks_for_sign(subject, called, mismatch):
        return Shape.BOUND
    if _passes_on(subject, called, mismatch):
        if len(called.live) == 1 and _saturates(subject, called, place):
            return Shape.PASSED
        if names_of_ops(subject.target.call, called.example.fresh(needs=frozenset())) & ROUNDING:
            return Shape.ROUNDED
    if own_argument(subject, called.example, mismatch.name):
        return Shape.SHAPED
    return None


def _steps(subject: Subject, called: Run, place: int) -> frozenset[int]:
    """The outputs that depend on the input, and yet stay as they are where it moves a little."""
    near = _changed(subject, called, _moved(called.example, place))
    far = _changed(subject, called, _flipped(called.example, place))
    far = far or _changed(subject, called, _reordered(called.example, place))
    return frozenset(k for k in near if near[k] <= CROSSING and far.get(k))


def _is_flat(subject: Subject, called: Run, outputs: frozenset[int], wrong: Mismatch) -> bool:
    """Whether these outputs give an input a gradient, and PyTorch's own of them is zero.

    What is computed in a coarse dtype stays as it is for a tiny step, too, and has a slope.
    """
    if outputs == frozenset(called.live):
        return wrong.expected == 0 and not wrong.want.nan_to_num().any()
    cotangents = copies_of(subject.cotangents(called))
    only = [c if k in outputs else None for k, c in enumerate(cotangents)]
    found = subject.run().pull(only)[wrong.name]
    usual = subject.reference.gradients(called.example, only, (wrong.position,))
    want = None if usual is None else usual[wrong.position]
    return found is not None and bool(found.any()) and (want is None or not bool(want.any()))


def _is_identity(subject: Subject, called: Run, place: int) -> bool:
    """Whether the one output is the input itself, also where all inputs are others."""
    if len(called.live) != 1:
        return False
    other = _flipped(called.example, place)
    for i in other.differentiable:
        if i != place:
            other = other.put(i, other.args[i] * 1.5, other.label)
    try:
        runs = called, _run(subject, other)
    except ForwardRefusedError:
        return False
    return all(_is_same(one.outputs[one.live[0]], one.example.args[place]) for one in runs)


def _gives_back(subject: Subject, called: Run) -> bool:
    """Whether each of several outputs is an input itself, also where all inputs are others."""
    places = called.example.differentiable
    other = called.example
    for i in places:
        other = other.put(i, _flipped(other, i).args[i] * (1 + i), "turned round")
    try:
        runs = called, _run(subject, other)
    except ForwardRefusedError:
        return False
    return len(called.live) > 1 and all(
        any(_is_same(one.outputs[k], one.example.args[i]) for i in places)
        for one in runs
        for k in called.live
    )


def _is_bound(subject: Subject, called: Run, place: int) -> bool:
    """Whether each number of the one output is that of the input, or stays where that moves."""
    if len(called.live) != 1:
        return False
    (live,) = called.live
    given, made = called.example.args[place], called.outputs[live]
    if given.shape != made.shape or given.dtype != made.dtype:
        return False
    try:
        moved = _run(subject, _moved(called.example, place)).outputs[live]
    except ForwardRefusedError:
        return False
    kept = made.detach() == given
    return bool((kept | (moved.detach() == made.detach())).all()) and bool(kept.any())


def _passes_on(subject: Subject, called: Run, mismatch: Mismatch) -> bool:
    """Whether the gradient is the cotangent of an output itself, beyond the bounds too."""
    found = mismatch.have
    sent = [subject.cotangents(called)[live] for live in called.live]
    return found is not None and any(
        one is not None and torch.equal(one.cpu(), found.cpu()) for one in sent
    )


def _saturates(subject: Subject, called: Run, place: int) -> bool:
    """Whether some numbers of the output stay where the input moves, and others do not."""
    moved = _changed(subject, called, _moved(called.example, place))
    return any(0 < share < 1 for share in moved.values())


def _asks_for_sign(subject: Subject, called: Run, mismatch: Mismatch) -> bool:
    """Whether the gradient is the cotangent or zero, for others where the cotangent is negated."""
    cotangents = subject.cotangents(called)
    (live,) = called.live
    sent = cotangents[live]
    if sent is None:
        return False
    negated = [None if c is None else -c for c in cotangents]
    plus = subject.run().pull(copies_of(cotangents))[mismatch.name]
    minus = subject.run().pull(negated)[mismatch.name]
    if plus is None or minus is None or plus.shape != sent.shape:
        return False
    passed = [_is_passed(plus, sent), _is_passed(minus, -sent)]
    return None not in passed and not torch.equal(*passed)  # type: ignore[arg-type]


def _is_passed(gradient: Tensor, sent: Tensor) -> Tensor | None:
    """Where a cotangent is let through; None where something else is done with it."""
    passes = gradient == sent
    return passes if bool((passes | (gradient == 0)).all()) else None


# ---- inputs that are others ----


def _moved(example: Example, place: int) -> Example:
    """The example with one input moved by a tiny part of itself."""
    x = example.args[place]
    step = torch.finfo(x.dtype).eps ** 0.5
    return example.put(place, x + x.abs().clamp(min=1e-3) * step, "moved a little")


def _flipped(example: Example, place: int) -> Example:
    """The example with the numbers of one input in another order, and half as large again."""
    x = example.args[place]
    return example.put(place, (x.flatten().flip(0) * -1.5).reshape(x.shape), "turned round")


def _reordered(example: Example, place: int) -> Example:
    """The example with the numbers of one input in another order: those that forward takes."""
    x = example.args[place]
    return example.put(place, x.flatten().flip(0).reshape(x.shape), "in another order")


def _changed(subject: Subject, called: Run, example: Example) -> dict[int, float]:
    """Of each output, the part of its numbers that are others there; none where that is refused."""
    try:
        other = _run(subject, example)
    except ForwardRefusedError:
        return {}
    pairs = {k: (called.outputs[k].detach(), other.outputs[k].detach()) for k in called.live}
    if any(a.shape != b.shape for a, b in pairs.values()):
        return {}
    return {k: int((a != b).sum()) / max(a.numel(), 1) for k, (a, b) in pairs.items()}


def _run(subject: Subject, example: Example) -> Run:
    """A run at inputs that need not be such as the examples are: it is forward that is asked."""
    return subject.run_other(subject.target.call, example)


def _is_same(made: Tensor, given: Any) -> bool:
    return can_differ(given) and made.shape == given.shape and torch.equal(made.detach(), given)


# ---- in a program ----


def _inside(
    subject: Subject, wrong: Sequence[Mismatch], options_of: OptionsOf
) -> Iterator[Surrogate]:
    """Wrong gradients of a program that calls a Function with a surrogate gradient."""
    calls: dict[Any, tuple[Any, ...]] = {}

    def note(cls: Any, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and not cls.__module__.startswith(FOREIGN):
            needs = [isinstance(arg, Tensor) and arg.requires_grad for arg in args]
            pairs = zip(args, needs, strict=True)
            kept = tuple(x.detach().requires_grad_() if need else x for x, need in pairs)
            calls.setdefault(cls, kept)
        return call(*args, **kwargs)

    with watching(note):
        subject.run()
    for cls, args in calls.items():
        known = _surrogates_in(chosen_target(cls, options_of), args)
        if known is not None:
            name = cls.__qualname__.rsplit("<locals>.", 1)[-1]
            is_drawn_inside = any(one.shape is Shape.DRAWN for one in known)
            shape = Shape.DRAWN if is_drawn_inside else None
            yield from (Surrogate(one.name, shape, name) for one in wrong)
            return


def _surrogates_in(target: Target, args: tuple[Any, ...]) -> tuple[Surrogate, ...] | None:
    """The surrogates of a Function, none of them known where it declares some; None without."""
    if target.intent.has_surrogate:
        return ()
    try:
        return surrogates_of(Subject(target, [example_of(args)])) or None
    except (ForwardRefusedError, BackwardFailedError):
        return None
