"""Functions that work entry by entry: each entry of an output depends on one of each input."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.subject.subject import Subject
from pullback.judge.example import Example


def is_by_entry(subject: Subject, example: Example) -> bool:
    """Whether an entry of the outputs depends on the same entry of each input, and no other.

    The inputs and outputs that can have a gradient must have one shape.
    """
    run = subject.run(example)
    middle = run.outputs[run.live[0]].numel() // 2
    cotangents: list[Tensor | None] = [None] * len(run.outputs)
    for k in run.live:
        one = torch.zeros_like(run.outputs[k], memory_format=torch.contiguous_format)
        one.view(-1)[middle] = 1
        cotangents[k] = one
    usual = subject.reference.gradients(example, cotangents, tuple(sorted(example.needs)))
    grads = run.pull(cotangents).values() if usual is None else usual.values()
    for grad in grads:
        if grad is not None and grad.numel():
            rest = grad.detach().flatten().clone()
            rest[middle] = 0
            if bool(rest.any()):
                return False
    return True


def common_shape(subject: Subject, example: Example) -> torch.Size | None:
    """The shape that every input and output that can have a gradient has, where there is one."""
    run = subject.run(example)
    inputs = [example.args[i].shape for i in example.differentiable]
    outputs = [run.outputs[i].shape for i in run.live]
    is_one = bool(inputs) and bool(outputs) and len({*inputs, *outputs}) == 1
    return inputs[0] if is_one and 0 not in inputs[0] else None
