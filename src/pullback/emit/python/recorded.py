"""What a program gives for the inputs of a self-test: outputs and gradients, to be written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.capture.check import run_joint
from pullback.capture.fake import numbers_of
from pullback.capture.modes import autocast_as, autocast_off
from pullback.capture.trees import flatten
from pullback.emit.python.trial import Trial, cotangent
from pullback.emit.subject import Subject
from pullback.function.isolation import seed_torch

Record = dict[str, Tensor]


def recorded(subject: Subject, trial: Trial, given: Sequence[Tensor]) -> Record:
    """Outputs and gradients, by what they are; raises what the program raises."""
    seed_torch(0)
    count = sum(one.kind == "argument" for one in subject.captured.inputs)
    # Large tensors from around the program are no part of the file: others stand for them.
    is_own = all(like.values is not None for like in trial.likes[count:])
    return (_of_program if is_own else _of_graph)(subject, trial, given)


def _of_program(subject: Subject, trial: Trial, given: Sequence[Tensor]) -> Record:
    """What the program gives. It reads the tensors around it, which have the values given."""
    captured = subject.captured
    count = sum(one.kind == "argument" for one in captured.inputs)
    own = [x.detach().requires_grad_(x.requires_grad) for x in given[:count]]
    around = [one.tensor for one in captured.closures if one.tensor is not None]
    changed = {place for place, _ in captured.mutated}
    passed = [x.clone() if place in changed else x for place, x in enumerate(own)]
    with autocast_as(captured.autocast):
        leaves = flatten(subject.program(*captured.fill(passed)))[0]
    pairs = zip(leaves, (o for o in captured.outputs if o.returned), strict=True)
    outputs = [y for y, o in pairs if o.index is not None and isinstance(y, Tensor)]
    live = [y for y in outputs if y.requires_grad]
    wanted = [x for x, need in zip([*own, *around], trial.needs, strict=False) if need]
    pulled: Sequence[Tensor] = ()
    if wanted:
        cotangents = [cotangent(y, i) for i, y in enumerate(live)]
        with autocast_off():
            pulled = torch.autograd.grad(live, wanted, cotangents, materialize_grads=True)
    return _named(trial, [y.detach() for y in outputs], pulled)


def _of_graph(subject: Subject, trial: Trial, given: Sequence[Tensor]) -> Record:
    """What the program would give with other tensors around it.

    Its graph tells, as it was captured: that was compared with the program then.
    """
    captured = subject.captured
    count = sum(one.kind == "argument" for one in captured.inputs)
    around = iter([x.detach() for x in given[count:]])
    inputs = tuple(
        replace(one, tensor=next(around)) if one.kind == "closure" else one
        for one in captured.inputs
    )
    cotangents = [
        cotangent(torch.empty(numbers_of(value.shape), dtype=trial.dtype_of(value.dtype)), i)
        for i, value in enumerate(node.meta["val"] for node in captured.joint.cotangents)
    ]
    run = run_joint(replace(captured, inputs=inputs), given[:count], cotangents)
    outputs = [run.outputs[o.index] for o in captured.outputs if o.returned and o.index is not None]
    needed = zip((one for one in inputs if one.needs), run.gradients, strict=True)
    found = {one.name: gradient for one, gradient in needed}
    names = [one.name for one in inputs if one.kind != "constant"]
    rows = zip(names, trial.needs, given, strict=True)
    pulled = [_or_zeros(found.get(name), x) for name, need, x in rows if need]
    return _named(trial, [y for y in outputs if isinstance(y, Tensor)], pulled)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like.detach()) if gradient is None else gradient


def _named(trial: Trial, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Record:
    names = [name for name, need in zip(trial.names, trial.needs, strict=True) if need]
    pulled = zip(names, gradients, strict=True)
    return {
        **{f"output {i}": y for i, y in enumerate(outputs)},
        **{f"the gradient of `{name}`": gradient for name, gradient in pulled},
    }
