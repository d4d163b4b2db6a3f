"""Copies that are saved for backward, and more than autograd would save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.findings.registered import Registered
from pullback.check.inputs.others import other_values
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.watching.saving import saving
from pullback.check.watching.snapshot import share_memory
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.run import Run

SAVED_TOO_MUCH = Rule("B856", "saved-too-much", "memory", Severity.WASTEFUL, "quick")
SAVED_COPY = Rule("B858", "saved-copy", "memory", Severity.WASTEFUL, "quick")

SHARE = 1.25  # so many times what autograd keeps is too much
SMALL = 256  # bytes that are not worth a word
LEAST = 8  # entries by which chance is ruled out


def saved_too_much(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per needless copy, or else one for the sum of what is saved."""
    if not subject.target.is_function or subject.fails_at_base or subject.writes_inputs:
        return
    example = subject.given
    try:
        kept = _kept(subject, example)
        copies = _copies(kept)
        if copies:
            other = _copies(_kept(subject, other_values(example)))
            copies = {i: words for i, words in copies.items() if other.get(i) == words}
    except ForwardRefusedError as refusal:
        yield Skip.refused(SAVED_TOO_MUCH, "forward refuses", refusal.raised)
        return
    for i, words in copies.items():
        yield subject.finding(
            SAVED_TOO_MUCH,
            example=example,
            at=f"saved tensor {i}, of shape {list(kept.saved[i].shape)}",
            expected=f"`{words}` itself to be saved",
            got=f"a copy of it that takes {_bytes([kept.saved[i]])} bytes",
            remedy=words,
            fix=f"save `{words}`, and expand, gather or cast in backward",
        )
    if not copies:
        yield from _beyond_autograd(subject, example, kept)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run, and the tensors that were saved in it."""

    run: Run
    saved: list[Tensor]

    @property
    def own(self) -> list[Tensor]:
        """The saved tensors that are no memory of an input or output."""
        around = [*tensors_in(list(self.run.passed)), *self.run.outputs]
        return [t for t in self.saved if not any(share_memory(t, other) for other in around)]


def _kept(subject: Subject, example: Example) -> SavedRun:
    saved: list[Tensor] = []
    with saving(subject.target, _keeping(saved)):
        run = subject.run(example)
    return SavedRun(run, saved)


def _keeping(saved: list[Tensor]):  # type: ignore[no-untyped-def]
    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    return pack


def _bytes(tensors: Iterable[Tensor]) -> int:
    """The memory of the tensors, each piece counted once."""
    pieces = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t.layout == torch.strided
    }
    return sum(pieces.values())


def _copies(kept: SavedRun) -> dict[int, str]:
    """The saved tensors that are larger copies of an input, and its name."""
    found: dict[int, str] = {}
    own = kept.own
    for i, tensor in enumerate(kept.saved):
        if not any(tensor is other for other in own) or not can_differ(tensor):
            continue
        for name, arg in zip(kept.run.names, kept.run.passed, strict=False):
            if isinstance(arg, Tensor) and _is_larger_copy(tensor, arg.detach(), kept):
                found[i] = name
                break
    return found


def _is_larger_copy(tensor: Tensor, arg: Tensor, kept: SavedRun) -> bool:
    if is_index(arg):
        return _bytes([tensor]) >= SMALL and _is_one_hot(tensor, arg)
    if not can_differ(arg) or arg.numel() < 2 or tensor.is_complex() != arg.is_complex():
        return False
    is_expanded = tensor.numel() >= 2 * arg.numel()
    is_wider = tensor.element_size() > arg.element_size() and any(
        share_memory(arg, other) for other in kept.saved
    )
    if not (is_expanded or is_wider) or _bytes([tensor]) < SMALL:
        return False
    try:
        whole = arg.expand(tensor.shape)
    except RuntimeError:
        return False
    return bool((whole.to(tensor.dtype) == tensor).all())


def _is_one_hot(tensor: Tensor, index: Tensor) -> bool:
    """Whether a tensor of zeros has a one in each row, at the place that the index names."""
    if tensor.is_complex() or tensor.dim() != index.dim() + 1 or tensor.numel() < 8 * index.numel():
        return False
    for dim in {tensor.dim() - 1, min(1, tensor.dim() - 1)}:
        rows = tensor.movedim(dim, -1)
        if rows.shape[:-1] == index.shape and torch.equal(rows.argmax(-1), index.long()):
            return bool((rows.abs().sum(-1) == 1).all()) and bool((rows.amax(-1) == 1).all())
    return False


def _beyond_autograd(
    subject: Subject, example: Example, kept: SavedRun
) -> Iterator[Finding | Skip]:
    mine, own = _bytes(kept.saved), _bytes(kept.own)
    if own < SMALL:
        return
    args = example.fresh()
    saved: list[Tensor] = []
    leaves = [args[i] for i in sorted(example.needs)]
    try:
        with torch.autograd.graph.saved_tensors_hooks(_keeping(saved), lambda tensor: tensor):
            outputs = tensors_in(subject.reference.program(*args))
        cotangents = subject.cotangents(kept.run)
        grads = kept.run.pull(cotangents)
        used = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if c is not None]
        plain = torch.autograd.grad(
            [o for o, _ in used], leaves, [c for _, c in used], allow_unused=True
        )
    except BackwardFailedError as failure:
        yield Skip.refused(SAVED_TOO_MUCH, "backward fails", failure.raised)
        return
    except Exception:
        return  # autograd cannot see into this forward
    names = [subject.names[i] for i in sorted(example.needs)]
    is_same = all(_agree(grads.get(n), g) for n, g in zip(names, plain, strict=True))
    theirs = _bytes(saved)
    if not is_same or not theirs or own < theirs or mine < SHARE * theirs:
        return
    yield subject.finding(
        SAVED_TOO_MUCH,
        example=example,
        at=f"the {len(kept.saved)} saved tensors",
        expected=f"at most the {theirs} bytes that autograd keeps for the same forward",
        got=f"{mine} bytes",
        fix="save the inputs, or fewer intermediates, and compute the rest in backward",
    )


def _agree(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether autograd gives the same gradient, so that what it keeps is enough."""
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def saved_copy(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input of which a copy is saved."""
    if not subject.target.is_function or subject.fails_at_base or subject.writes_inputs:
        return
    start = subject.small
    found = _copied(subject, start)
    for example in (other_values(start), start.map(_negated, "negated"), start.map(_mixed, "")):
        if not found:
            return
        try:
            found &= _copied(subject, example)
        except ForwardRefusedError:
            continue
    for name in sorted(found):
        yield subject.finding(
            SAVED_COPY,
            example=start,
            at=f"a saved copy of `{name}`",
            expected=f"`{name}` itself to be saved",
            got="the same numbers in memory of their own",
            fix=f"save `{name}`: PyTorch raises where it is written into before backward",
        )


def _copied(subject: Subject, example: Example) -> set[str]:
    """The inputs of which a copy is saved, and which are not themselves inputs or outputs."""
    kept = _kept(subject, example)
    own = kept.own
    return {
        name
        for name, arg in zip(kept.run.names, kept.run.passed, strict=False)
        if can_differ(arg) and arg.numel() >= LEAST and any(_is_equal(arg, t) for t in own)
    }


def _is_equal(arg: Tensor, saved: Tensor) -> bool:
    if arg.dtype != saved.dtype or arg.shape != saved.shape or saved.layout != torch.strided:
        return False
    return torch.equal(arg.detach(), saved)


def _negated(tensor: Tensor) -> Tensor:
    return -tensor.detach() if can_differ(tensor) else tensor


def _mixed(tensor: Tensor) -> Tensor:
    """Every other entry with the other sign, and larger."""
    if not can_differ(tensor):
        return tensor
    signs = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % 2 * 2 - 1
    return tensor.detach() * signs * 3


RULES = (
    Registered(
        SAVED_TOO_MUCH,
        saved_too_much,
        page="""
Backward should not keep more than autograd would by itself.

What it checks
    The memory of what is saved, each piece once. It is too much when a copy of an input is saved
    that is several times larger (expanded, as rows of zeros with a one where an index points, or in
    a wider dtype beside the input itself), or when
    more is saved than autograd keeps for the same forward without the Function, while its gradients
    are the same, and what is saved beyond inputs and outputs alone is more than that.

Why it matters
    Activations are most of the memory of a training step, and saving memory is why many a Function
    is written.

Fails
    ctx.save_for_backward(x, weight.expand(len(x), -1).contiguous())

Passes
    ctx.save_for_backward(x, weight)

Cannot see
    What could be recomputed cheaply: `pullback derive` finds the cut that keeps least.
""",
    ),
    Registered(
        SAVED_COPY,
        saved_copy,
        page="""
An input should be saved itself, not a copy of it.

What it checks
    Whether a saved tensor holds the numbers of an input, bit by bit and at several values, in
    memory of its own.

Why it matters
    The copy costs its memory from forward to backward, for every layer, and the time to make it. An
    input that is saved itself costs nothing, and PyTorch notices when it is written into.

Fails
    ctx.save_for_backward(x.clone())

Passes
    ctx.save_for_backward(x)

Cannot see
    Copies that are kept elsewhere than with `save_for_backward`.
""",
    ),
)
