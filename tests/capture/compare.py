"""A program as it runs in eager mode, against the graph that was captured of it."""

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from pullback.capture.trees import flatten, unflatten


@dataclass
class Outcome:
    """Everything that one call leaves behind."""

    outputs: list
    gradients: list
    differentiable: list
    changed: list


def tensors_of(arguments):
    """The tensors among the arguments, in order."""
    return [leaf for leaf in flatten(arguments)[0] if isinstance(leaf, Tensor)]


def eager(program, arguments, captured, used=None, seed=3):
    """Run `program` and its backward: the outcome, and the cotangents that were drawn for it.

    `captured` says which inputs are changed without being returned: they are outputs as well, and
    which tensors from outside the program need gradients.
    """
    leaves, spec = flatten(arguments)
    own = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors_of(arguments)]
    given = [
        leaf if x.is_leaf else leaf.clone()
        for leaf, x in zip(own, tensors_of(arguments), strict=True)
    ]
    rest = iter(given)
    filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    torch.manual_seed(seed)
    outputs = flatten(program(*unflatten(filled, spec)))[0]
    flags = [isinstance(y, Tensor) and y.requires_grad for y in outputs]
    changed = [given[o.changes] for o in captured.outputs if o.changes in range(len(given))]
    live = [y for y, flag in zip(outputs, flags, strict=True) if flag]
    live += [x for x in changed if x.requires_grad and not any(x is y for y in outputs)]
    live = [y for y, use in zip(live, used or [True] * len(live), strict=True) if use]
    generator = torch.Generator().manual_seed(5)
    cotangents = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in live]
    wanted = [x for x in own if x.requires_grad]
    wanted += [i.tensor for i in captured.inputs if i.tensor is not None and i.needs]
    gradients = [None] * len(wanted)
    if live and wanted:
        gradients = torch.autograd.grad(live, wanted, cotangents, allow_unused=True)
    outputs = [y.detach().clone() if isinstance(y, Tensor) else y for y in outputs]
    around = [i.tensor for i in captured.inputs if i.tensor is not None]
    changed = [x.detach().clone() for x in (*given, *around)]
    return Outcome(outputs, list(gradients), flags, changed), cotangents


def graph(captured, arguments, cotangents, seed=3):
    """Run the captured graph on the same arguments."""
    given = [x.detach().clone() for x in tensors_of(arguments)]
    row = [*given, *(i.tensor.detach() for i in captured.inputs if i.tensor is not None)]
    torch.manual_seed(seed)
    with torch.no_grad():
        values = fx.GraphModule({}, captured.joint.graph)(*row, *cotangents)
    count = captured.joint.output_count
    changed = list(row)
    for place, output in captured.mutated:
        changed[place] = values[output]
    outputs = flatten(captured.give(values[:count]))[0]
    flags = [output.differentiable for output in captured.outputs if output.returned]
    return Outcome(outputs, list(values[count:]), flags, changed)


def assert_same(actual: Outcome, expected: Outcome):
    """Values, gradients, which are `None`, which are differentiable, and what was changed."""
    assert actual.differentiable == expected.differentiable
    assert [g is None for g in actual.gradients] == [g is None for g in expected.gradients]
    for field in ("outputs", "gradients", "changed"):
        for got, want in zip(getattr(actual, field), getattr(expected, field), strict=True):
            if isinstance(want, Tensor):
                torch.testing.assert_close(got, want, equal_nan=True, msg=lambda m, f=field: f + m)
            else:
                assert (field, got) == (field, want)
