"""What is saved should be read.

What it checks
    Which of the saved tensors backward touches at all, and which it asks for more than their shape
    and type, with every input requiring grad and every output used, in a first and a second
    derivative. The others get other numbers: only if no gradient changes, of first or second order,
    they are reported.

Why it matters
    Activations are most of the memory of a training step.

Fails
    ctx.save_for_backward(x, y)    # and backward uses y, and x.shape

Passes
    ctx.save_for_backward(y)
    ctx.shape = x.shape

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
from pullback.judge.run import cotangent_of

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
            kept, unread, asked = _unread(subject, example)
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
            got=f"{tensor.numel() * tensor.element_size()} bytes kept, and "
            f"{'asked only for its shape or type' if i in asked else 'never touched'}",
            remedy=str(i),
            fix=f"leave tensor {i} out of ctx.save_for_backward"
            + (", and keep its shape or type on ctx" if i in asked else ""),
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


# What a tensor is asked for without a look at its numbers.
SHAPES = frozenset(
    (
        *(getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim")),
        *(getattr(torch.Tensor, name) for name in ("size", "dim", "numel", "__len__")),
        *(getattr(torch.Tensor, f"new_{name}") for name in ("zeros", "ones", "empty", "full")),
        *(getattr(torch, f"{name}_like") for name in ("zeros", "ones", "empty", "full")),
    )
)
# And those that ask it of their second argument alone.
SECOND = frozenset(
    getattr(torch.Tensor, name) for name in ("expand_as", "view_as", "reshape_as", "type_as")
)


class Uses(TorchFunctionMode):
    """Notes where the tensors lie whose numbers may be read, and those asked for anything."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[int] = set()
        self.asked: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the tensors among the arguments, and go on."""
        read = args[:1] if func in SECOND else () if func in SHAPES else (args, kwargs or {})
        self.read |= _addresses(read)
        self.asked |= _addresses((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _addresses(value: Any) -> set[int]:
    """Where the memory of the tensors among some arguments lies."""
    tensors = (tensor for tensor in tensors_in([value]) if tensor.layout == torch.strided)
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _unread(subject: Subject, example: Example) -> tuple[Kept, list[int], set[int]]:
    """The saved tensors of a run, the numbers of those that no backward reads, of those asked."""
    kept, usual, unread, asked = _used(subject, example, create_graph=False)
    if unread:
        with suppress(BackwardFailedError):  # no second derivative: nothing is kept for one
            _, _, again, more = _used(subject, example, create_graph=True)
            unread, asked = unread & again, asked | more
    # A right gradient could read more; a generated rule of vmap sees by a tensor what is batched.
    if subject.wrong_names or subject.target.generates_vmap:
        unread -= asked
    left = [i for i in sorted(unread) if _makes_no_difference(subject, example, i, usual)]
    return kept, left, asked


def _used(
    subject: Subject, example: Example, *, create_graph: bool
) -> tuple[Kept, dict[str, Tensor | None], set[int], set[int]]:
    """The saved tensors and the gradients of one run; which of them are not read, which asked."""
    kept, uses = Kept(), Uses()
    spy = spy_on(subject.target, lambda: uses)
    if spy is None:
        raise BackwardFailedError(NotImplementedError("there is no backward to watch"))
    with saving(subject.target, kept.pack, kept.unpack):
        called = subject.run_other(spy.target.call, example)
    grads = called.pull(subject.cotangents(called), create_graph=create_graph)
    uses.read |= _addresses(list(grads.values()))
    places = [(i, tensor.untyped_storage().data_ptr()) for i, tensor in kept.given]
    read, asked = ({i for i, place in places if place in a} for a in (uses.read, uses.asked))
    large = {i for i, t in enumerate(kept.tensors) if t.numel() > 1 and t.layout == torch.strided}
    return kept, grads, large - read, asked


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
