"""What a program gives for the inputs of a self-test: the outputs and gradients to record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pullback.capture.fake import numbers_of
from pullback.capture.modes import autocast_off
from pullback.emit.python.self_test import SelfTest, cotangent
from pullback.emit.subject import EmitSubject
from pullback.judge.capture_check import run_joint

Record = dict[str, Tensor]


def recorded_results(subject: EmitSubject, test: SelfTest, given: Sequence[Tensor]) -> Record:
    """Outputs and gradients, by what they are; raises what the program raises."""
    count = subject.captured.argument_count
    # Large tensors from outside the program are no part of the file: others stand for them.
    is_own = all(like.values is not None for like in test.specs[count:])
    if is_own:
        return results_of_program(subject, test, given, cotangent)
    return _of_graph(subject, test, given)


def results_of_program(
    subject: EmitSubject,
    test: SelfTest,
    given: Sequence[Tensor],
    cotangent: Callable[[Tensor, int], Tensor],
) -> Record:
    """What the program gives. It reads the tensors outside it, which have the values given."""
    captured = subject.captured
    count = captured.argument_count
    own = [x.detach().requires_grad_(x.requires_grad) for x in given[:count]]
    outside = [one.tensor for one in captured.closures if one.tensor is not None]
    changed = {place for place, _ in captured.mutated}
    passed = [x.clone() if place in changed else x for place, x in enumerate(own)]
    held = [one.tensor for one in captured.inputs if one.tensor is not None]
    leaves = subject.comparison.of_arguments(subject.call)([*passed, *held])
    pairs = zip(leaves, (o for o in captured.outputs if o.is_written), strict=True)
    outputs = [y for y, o in pairs if o.index is not None and isinstance(y, Tensor)]
    live = [y for y in outputs if y.requires_grad]
    wanted = [x for x, need in zip([*own, *outside], test.needs, strict=False) if need]
    pulled: Sequence[Tensor] = ()
    if wanted:
        cotangents = [cotangent(y, i) for i, y in enumerate(live)]
        with autocast_off():
            pulled = torch.autograd.grad(live, wanted, cotangents, materialize_grads=True)
    return _named(test, [y.detach() for y in outputs], pulled)


def _of_graph(subject: EmitSubject, test: SelfTest, given: Sequence[Tensor]) -> Record:
    """What the program would give with other tensors outside it.

    That is read from its graph, which was compared with the program when it was captured.
    """
    captured = subject.captured
    count = captured.argument_count
    outside = iter([x.detach() for x in given[count:]])
    inputs = tuple(
        replace(one, tensor=next(outside)) if one.kind == "closure" else one
        for one in captured.inputs
    )
    cotangents = [
        cotangent(torch.empty(numbers_of(value.shape), dtype=test.dtype_of(value.dtype)), i)
        for i, value in enumerate(node.meta["val"] for node in captured.joint.cotangents)
    ]
    run = run_joint(replace(captured, inputs=inputs), given[:count], cotangents)
    outputs = [run.outputs[o.index] for o in captured.outputs if o.returned and o.index is not None]
    needed = zip((one for one in inputs if one.needs), run.gradients, strict=True)
    found = {one.name: gradient for one, gradient in needed}
    names = [one.name for one in inputs if one.kind != "constant"]
    rows = zip(names, test.needs, given, strict=True)
    pulled = [_or_zeros(found.get(name), x) for name, need, x in rows if need]
    return _named(test, [y for y in outputs if isinstance(y, Tensor)], pulled)


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like.detach()) if gradient is None else gradient


def _named(test: SelfTest, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Record:
    names = [name for name, need in zip(test.names, test.needs, strict=True) if need]
    pulled = zip(names, gradients, strict=True)
    return {
        **{f"output {i}": y for i, y in enumerate(outputs)},
        **{f"the gradient of `{name}`": gradient for name, gradient in pulled},
    }
