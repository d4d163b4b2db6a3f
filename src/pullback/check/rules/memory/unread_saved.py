"""What is saved should be read.

What it checks
    Which of the saved tensors backward touches at all, even if only their shape, with every input
    requiring grad and every output used, in a first and a second derivative. One that it does not
    touch gets other numbers: only if no gradient changes, of first or second order, it is reported.

Why it matters
    Activations are most of the memory of a training step.

Fails
    ctx.save_for_backward(x, y)    # and backward uses y only

Passes
    ctx.save_for_backward(y)

Cannot see
    Saved tensors that are read but could be recomputed cheaply, and single numbers. An input that
    may be None: backward may have asked whether it is.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.check.subject.subject import (
    BackwardFailedError,
    CallError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.watching.saving import saving
from pullback.check.watching.spy import spy_on
from pullback.judge.example import Example, can_differ, tensors_in
from pullback.judge.run import cotangent_of, run

RULE = Rule("B854", "unread-saved", "memory", Severity.WASTEFUL, "quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per saved tensor that backward never touches."""
    if not subject.target.is_function or subject.fails_at_base:
        return
    if not subject.is_steady:
        yield Skip.refused(RULE, "the gradients differ from run to run")
        return
    for example in (subject.base.need(frozenset(subject.base.differentiable)), subject.base):
        try:
            kept, unread = _unread(subject, example)
            break
        except CallError:
            continue
    else:
        return
    for i in unread:
        tensor = kept.tensors[i]
        if _may_be_none(subject, example, tensor):
            continue
        yield subject.finding(
            RULE,
            example=example,
            at=f"saved tensor {i}, of shape {list(tensor.shape)}",
            expected="to be read by backward",
            got=f"{tensor.numel() * tensor.element_size()} bytes kept, and never touched",
            remedy=str(i),
            fix=f"leave tensor {i} out of ctx.save_for_backward",
        )


def _may_be_none(subject: Subject, example: Example, saved: Tensor) -> bool:
    """Whether a saved input may also be None, and backward serves that by asking which it is."""
    if not _asks_for_none(subject.target.method("backward")):
        return False
    for i in example.differentiable:
        value = example.args[i]
        if value.shape == saved.shape and value.dtype == saved.dtype and torch.equal(value, saved):
            with suppress(CallError):
                subject.pull(example.put(i, None, "None").need(example.needs - {i}))
                return True
    return False


def _asks_for_none(backward: Any) -> bool:
    """Whether the code of backward has an `is None` or `is not None` in it."""
    code = getattr(inspect.unwrap(backward), "__code__", None) if backward is not None else None
    names = [] if code is None else [step.opname for step in dis.get_instructions(code)]
    return any(name == "IS_OP" or name.endswith("_NONE") for name in names)


@dataclass(slots=True)
class Kept:
    """The saved tensors of one run, and what is handed out in their place."""

    tensors: list[Tensor] = field(default_factory=list)
    changes: dict[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    given: list[tuple[int, Tensor]] = field(default_factory=list)

    def pack(self, tensor: Tensor) -> int:
        """Keep a copy, and give its number."""
        self.tensors.append(tensor.detach().clone())
        return len(self.tensors) - 1

    def unpack(self, number: int) -> Tensor:
        """The copy of that number, changed where that was asked."""
        tensor = self.tensors[number]
        tensor = self.changes[number](tensor) if number in self.changes else tensor.clone()
        self.given.append((number, tensor))
        return tensor


class Uses(TorchFunctionMode):
    """Notes the memory of every tensor that is used in any way, even if only its shape."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the tensors among the arguments, and go on."""
        for tensor in tensors_in([list(args), kwargs or {}]):
            self.note(tensor)
        return func(*args, **(kwargs or {}))

    def note(self, tensor: Tensor) -> None:
        """Note the memory of one tensor."""
        if tensor.layout == torch.strided:
            self.addresses.add(tensor.untyped_storage().data_ptr())


def _unread(subject: Subject, example: Example) -> tuple[Kept, list[int]]:
    """The saved tensors of a run, and the numbers of those that no backward reads."""
    kept, usual, unread = _touched(subject, example, create_graph=False)
    if unread:
        with suppress(BackwardFailedError):  # no second derivative: nothing is kept for one
            unread &= _touched(subject, example, create_graph=True)[2]
    return kept, [i for i in sorted(unread) if _makes_no_difference(subject, example, i, usual)]


def _touched(
    subject: Subject, example: Example, *, create_graph: bool
) -> tuple[Kept, dict[str, Tensor | None], set[int]]:
    """The saved tensors and the gradients of one run, and which of the tensors stay untouched."""
    kept, uses = Kept(), Uses()
    spy = spy_on(subject.target, lambda: uses)
    if spy is None:
        raise BackwardFailedError(NotImplementedError("there is no backward to watch"))
    with saving(subject.target, kept.pack, kept.unpack):
        called = run(spy.target.call, example, subject.names, through_clone=subject.writes_inputs)
    grads = called.pull(subject.cotangents(called), create_graph=create_graph)
    for gradient in grads.values():
        if gradient is not None:
            uses.note(gradient)
    read = {i for i, t in kept.given if t.untyped_storage().data_ptr() in uses.addresses}
    large = {i for i, t in enumerate(kept.tensors) if t.numel() > 1 and t.layout == torch.strided}
    return kept, grads, large - read


def _makes_no_difference(
    subject: Subject, example: Example, number: int, usual: dict[str, Tensor | None]
) -> bool:
    """Whether every gradient stays as it is when saved tensor `number` holds other numbers."""
    kept = Kept(changes={number: _other})
    try:
        grads = _pulled(subject, example, kept)
        if not _are_equal(grads, usual):
            return False
        changed = _pulled(subject, example, Kept(changes={number: _other}), twice=True)
        return _are_equal(changed, _pulled(subject, example, Kept(), twice=True))
    except BackwardFailedError:
        return False


def _pulled(
    subject: Subject, example: Example, kept: Kept, *, twice: bool = False
) -> dict[str, Tensor | None]:
    """The gradients of a run with what is kept; with `twice` those of a weighted sum of them."""
    with saving(subject.target, kept.pack, kept.unpack):
        called = subject.run(example)
        first = called.pull(subject.cotangents(called), create_graph=twice)
        if not twice:
            return first
        alive = [g for g in first.values() if g is not None and g.requires_grad]
        weights = [cotangent_of(g, 900 + i) for i, g in enumerate(alive)]
        leaves = called.leaves
        try:
            found = (
                torch.autograd.grad(alive, list(leaves.values()), weights, allow_unused=True)
                if alive
                else [None] * len(leaves)
            )
        except Exception:  # there is no second derivative, and nothing is kept for one
            found = [None] * len(leaves)
        return dict(zip(leaves, found, strict=True))


def _other(tensor: Tensor) -> Tensor:
    """Other numbers of the same kind: not one entry stays as it was."""
    if tensor.dtype == torch.bool:
        return ~tensor
    return tensor * 1.75 + 0.5 if can_differ(tensor) else tensor + 1


def _are_equal(one: dict[str, Tensor | None], two: dict[str, Tensor | None]) -> bool:
    return all(_is_equal(one[name], gradient) for name, gradient in two.items())


def _is_equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
