"""Ops that no kernel has, as formulas: the same numbers, and the same gradients."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from tests.triton_codegen.graphs import draw, parts_of

X, Y = draw(5, 8), draw(5, 9)[:, 1:].detach().requires_grad_()
PLACES = torch.tensor([3, 0, -1, 7, 2])

PROGRAMS = {
    "mish": (F.mish, (X,)),
    "elu": (lambda x: F.elu(x, 1.3) + F.selu(x) + F.celu(x, 0.7), (X,)),
    "hard": (lambda x: F.hardtanh(x) + F.hardsigmoid(2 * x) + F.hardswish(3 * x), (X,)),
    "log-sigmoid": (F.logsigmoid, (X,)),
    "prelu": (F.prelu, (X, draw(8))),
    "glu": (lambda x: F.glu(x, -1), (X,)),
    "logaddexp": (torch.logaddexp, (X, Y)),
    "nan-to-num": (lambda x: torch.log(x).nan_to_num(0.5), (X,)),
    "std": (lambda x: x.std(-1) + x.std(0).sum() + x.std(), (X,)),
    "var": (lambda x: x.var((0, 1)), (X,)),
    "norm": (lambda x: x.norm(2, dim=-1, keepdim=True) + x, (X,)),
    "largest": (lambda x: x.max(-1, keepdim=True).values - x.min(0).values, (X,)),
    "stack": (lambda x, y: torch.stack((x, y.sin()), 1), (X, Y)),
    "roll": (lambda x: torch.roll(x, 3, -1) * x + torch.roll(x, -2, 0), (X,)),
    "half-turn": (lambda x: torch.roll(x, x.shape[-1] // 2, -1) * x, (X,)),
    "triangle": (lambda x: x.tril(1) + x.triu(-1) ** 2, (X,)),
    "one of each row": (lambda x, i: x.log_softmax(-1)[torch.arange(5), i], (X, PLACES)),
}


def run(graph: fx.Graph, values: dict[str, Any]) -> list[Any]:
    """What a graph gives."""
    module = fx.GraphModule({}, graph)
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    return fx.Interpreter(module).run(*(values[name] for name in names))


@pytest.mark.parametrize("name", PROGRAMS)
def test_formulas_are_what_the_ops_compute(name):
    program, given = PROGRAMS[name]
    parts = parts_of(program, *given)
    inputs = dict(zip((n.name for n in parts.joint.inputs), given, strict=True))
    expected = program(*given)
    cotangent = torch.linspace(-1, 2, expected.numel()).reshape(expected.shape)

    with torch.no_grad():
        forward = run(parts.forward, inputs)
        nodes = parts.forward.output_node().args[0]
        kept = {n.name: value for n, value in zip(nodes, forward, strict=True)}
        others = [n for n in parts.backward.find_nodes(op="placeholder") if n.name not in kept]
        known = {**kept, **inputs, others[-1].name: cotangent}
        backward = run(parts.backward, known)

    torch.testing.assert_close(forward[0], expected)
    wanted = [x for x in given if x.requires_grad]
    torch.testing.assert_close(
        [g for g in backward if g is not None],
        list(torch.autograd.grad(expected, wanted, cotangent)),
    )
