"""Joint graphs made by hand, for tests of the cut."""

from dataclasses import dataclass, field

import torch
from torch import fx

from pullback.graph.parts import BACKWARD, FORWARD, JointGraph

aten = torch.ops.aten


@torch.library.custom_op("pullback_test_cut::secret", mutates_args=())
def secret(x: torch.Tensor) -> torch.Tensor:
    """An op whose inside nobody sees."""
    return x + 1


SECRET = torch.ops.pullback_test_cut.secret.default


@dataclass
class Making:
    """A joint graph in the making; a size is a number of float32 elements."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: int = 0

    def input(self, name, size):
        self.inputs += 1
        return self.cotangent(name, size)

    def cotangent(self, name, size=8):
        node = self.graph.placeholder(name)
        node.meta["val"] = torch.empty(size, device="meta")
        return node

    def call(self, target, *args, size=None, val=None, phase=FORWARD):
        name = str(target).split(".")[1] if "." in str(target) else target.__name__
        node = self.graph.create_node("call_function", target, args, {}, name)
        like = next((a.meta["val"] for a in args if isinstance(a, fx.Node)), None)
        val = torch.empty(size, device="meta") if size is not None else val
        node.meta.update(val=like if val is None else val, phase=phase, unit=None, place="")
        return node

    def back(self, target, *args, **kwargs):
        return self.call(target, *args, phase=BACKWARD, **kwargs)

    def joint(self, outputs, gradients):
        self.graph.output((*outputs, *gradients))
        self.graph.lint()
        return JointGraph(self.graph, self.inputs, len(outputs))


def names(nodes):
    return [node.name for node in nodes]


def sine():
    """y = sin(x), with a hand-written cos(x) in backward."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    y = g.call(aten.sin.default, x)
    cosine = g.back(aten.cos.default, x)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, cosine)])


def square_sine():
    """y = x * x * sin(z): two intermediates, both of which follow from inputs."""
    g = Making()
    x, z, cotangent = g.input("x", 8), g.input("z", 8), g.cotangent("ct")
    square, sin = g.call(aten.mul.Tensor, x, x), g.call(aten.sin.default, z)
    y = g.call(aten.mul.Tensor, square, sin)
    of_square, of_sin = (g.back(aten.mul.Tensor, cotangent, other) for other in (sin, square))
    twice = g.back(aten.mul.Tensor, of_square, 2)
    of_x = g.back(aten.mul.Tensor, twice, x)
    of_z = g.back(aten.mul.Tensor, of_sin, g.back(aten.cos.default, z))
    return g.joint([y], [of_x, of_z])
