"""What is saved should be read.

What it checks
    Which of the saved tensors backward touches at all, be it only their shape, with every input
    requiring grad and every output used.

Why it matters
    Activations are most of the memory of a training step.

Fails
    ctx.save_for_backward(x, y)    # and backward uses y only

Passes
    ctx.save_for_backward(y)

Cannot see
    Saved tensors that are read but could be recomputed cheaply.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.check.example import Example, tensors_in
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    ForwardRefusedError,
    Rule,
    Severity,
    Skip,
    Subject,
)

RULE = Rule(code="B854", name="unread-saved", group="memory", severity=Severity.WASTEFUL)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per saved tensor that backward never touches."""
    if not subject.target.is_function or subject.fails_at_base:
        return
    for example in (subject.base.need(frozenset(subject.base.differentiable)), subject.base):
        try:
            saved = _touched(subject, example)
            break
        except (ForwardRefusedError, BackwardFailedError):
            continue
    else:
        return
    for i, (tensor, is_touched) in enumerate(saved):
        if is_touched or tensor.numel() == 0:
            continue
        yield subject.finding(
            RULE,
            example=example,
            at=f"saved tensor {i}, of shape {list(tensor.shape)}",
            expected="to be read by backward",
            got=f"{tensor.numel() * tensor.element_size()} bytes kept, and never touched",
            fix=f"leave tensor {i} out of ctx.save_for_backward",
        )


class Uses(TorchFunctionMode):
    """Notes the memory of every tensor that is used in any way, be it only its shape."""

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


def _touched(subject: Subject, example: Example) -> list[tuple[Tensor, bool]]:
    """The saved tensors of one run, and whether backward touched each."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> int:
        saved.append(tensor.detach().clone())
        return len(saved) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda number: saved[number]):
        run = subject.run(example)
    with Uses() as uses:
        grads = run.pull(subject.cotangents(run))
    for gradient in grads.values():
        if gradient is not None:
            uses.note(gradient)
    return [(t, t.untyped_storage().data_ptr() in uses.addresses) for t in saved]
