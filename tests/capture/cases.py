"""Programs that are hard to capture, each with inputs by seed.

`programs(base)` builds them from the Functions on one base class.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.capture.functions import cosine, family


@dataclass(frozen=True)
class Case:
    """A program, and its arguments for a seed."""

    program: Callable[..., object]
    arguments: Callable[[int], tuple[object, ...]]


def normal(*shape: int, grad: bool = True, seed: int = 0, dtype=torch.float32) -> Tensor:
    """A tensor of normal numbers, by seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)


def tensors(*shapes, grad=True):
    """A factory of one tensor per shape."""
    return lambda seed: tuple(
        normal(*shape, grad=grad, seed=10 * seed + k) for k, shape in enumerate(shapes)
    )


SCALE = normal(3, seed=77)
TABLE = normal(3, seed=78, grad=False)


def programs(base):
    """The cases, by name, with Functions on `base`."""
    f = family(base)
    one = tensors((4, 3))
    two = tensors((4, 3), (4, 3))
    alias = f.SavedInput.apply
    linear = f.Linear.apply
    weight, bias = normal(5, 3, seed=79), normal(5, seed=80)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2))
    norm = nn.BatchNorm1d(3)
    norm.weight.data.copy_(SCALE.detach())

    def untracked(x):
        with torch.no_grad():
            factor = x.sin()
        return x * factor

    def halves(x):
        y = x * 2
        left, right = y[:2], y[2:]
        left.mul_(3)
        y[0] = 7.0
        right.sin_()
        return y + left.sum()

    def mixed_precision(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = x @ w
        return h.float().sin()

    def hooked(x):
        y = x.sin()
        y.register_hook(lambda g: g * 3)
        return y * x

    def drawn(x):
        kept = torch.empty_like(x).bernoulli_(0.5)
        shift = torch.empty(x.shape).uniform_(-1, 1)
        order = torch.randperm(x.shape[0])
        return functional.dropout(x * kept + shift, 0.25)[order] + torch.randn(3)

    def loop(x):
        for step in range(3):
            x = f.SavedOutput.apply(x) + step * x
        return x

    def forces(x):
        return torch.autograd.grad(x.sin().exp().sum(), x, create_graph=True)[0] * 2

    def shifted(x):
        return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5)

    def quiet(x):
        torch.rand(2)
        return x + torch.rand(3)

    return {
        # ---- saving ----
        "saved input": Case(lambda x: f.SavedInput.apply(x), one),
        "saved intermediate": Case(lambda x: f.SavedMiddle.apply(x), one),
        "saved output": Case(lambda x: f.SavedOutput.apply(x), one),
        "tensor on ctx": Case(lambda x: f.Attribute.apply(x), one),
        # ---- arguments ----
        "plain arguments": Case(lambda x: f.Plain.apply(x, 2.5, "mul"), one),
        "plain argument of program": Case(
            lambda x, k: f.Plain.apply(x, k, "add"), lambda s: (*one(s), 3)
        ),
        "optional absent": Case(lambda x: f.Optional.apply(x, None), one),
        "optional given": Case(lambda x, b: f.Optional.apply(x, b), tensors((4, 3), (3,))),
        "setup context": Case(lambda x: f.Apart.apply(x, 3.0), one),
        "keyword argument": Case(lambda x: f.Apart.apply(x, factor=2.0), one),
        "integer input": Case(
            lambda x, i: f.SavedInput.apply(x)[i], lambda s: (*one(s), torch.tensor([0, 2]))
        ),
        "nested containers": Case(
            lambda p, xs: p["w"] * xs[0] + xs[1][0],
            lambda s: ({"w": one(s)[0]}, [two(s)[1], (SCALE.detach() * s,)]),
        ),
        "unused input": Case(lambda x, y: f.SavedInput.apply(x), two),
        "scalar input": Case(lambda x, k: f.Needed.apply(x, k), tensors((4, 3), ())),
        "empty input": Case(lambda x: f.SavedInput.apply(x).sum(), tensors((0, 3))),
        # ---- outputs ----
        "integer output": Case(lambda x: f.Largest.apply(x), one),
        "output is input": Case(lambda x: (x, f.SavedInput.apply(x)), one),
        "output twice": Case(lambda x: [f.SavedInput.apply(x)] * 2, one),
        "outputs in dict": Case(lambda x: {"y": f.SavedInput.apply(x), "n": None, "k": 3}, one),
        "size as output": Case(lambda x: (f.SavedInput.apply(x), x.shape[0]), one),
        "view of input": Case(lambda x: f.Flat.apply(x), one),
        "view of temporary": Case(lambda x: f.Flat.apply(x * 2), one),
        "several views": Case(lambda x: x.chunk(2), one),
        "closure as output": Case(lambda x: (x * 2, SCALE), one),
        # ---- gradients ----
        "unfilled, first used": Case(lambda x: f.Unfilled.apply(x)[0], one),
        "unfilled, second used": Case(lambda x: f.Unfilled.apply(x)[1] * 2, one),
        "unfilled, both": Case(lambda x: f.Unfilled.apply(x), one),
        "one needed": Case(
            lambda a, b: f.Needed.apply(a, b),
            lambda s: (one(s)[0], normal(4, 3, grad=False, seed=s)),
        ),
        "none needed": Case(lambda a, b: f.Needed.apply(a, b), tensors((4, 3), (4, 3), grad=False)),
        "one gradient absent": Case(lambda a, b: f.HalfGone.apply(a, b), two),
        "grad inside backward": Case(lambda x: f.Again.apply(x), one),
        "grad inside forward": Case(forces, one),
        "once differentiable": Case(lambda x: f.Once.apply(x), one),
        "straight through": Case(lambda x: f.Through.apply(x) * x, one),
        "detached middle": Case(lambda x: f.SavedInput.apply(x).detach() * x, one),
        "no_grad block": Case(untracked, one),
        "hook on a middle": Case(hooked, one),
        "Function in a Function": Case(lambda x: f.Nested.apply(x), one),
        "functions and ops": Case(
            lambda x, y: (f.SavedInput.apply(x * 2).relu() @ y).softmax(-1), tensors((4, 3), (3, 5))
        ),
        "loop": Case(loop, one),
        "checkpoint": Case(lambda x: checkpoint(f.SavedMiddle.apply, x, use_reentrant=False), one),
        "transform inside": Case(lambda x: torch.func.grad(lambda z: z.sin().sum())(x) * x, one),
        # ---- side effects ----
        "changed temporary": Case(lambda x: f.Changing.apply(x * 1), one),
        "changed input": Case(lambda x: f.Changing.apply(x) + 1, tensors((4, 3), grad=False)),
        "changed input, not returned": Case(lambda x: x.mul_(3).sum(), tensors((4, 3), grad=False)),
        "changed input with history": Case(
            lambda x: f.Changing.apply(x) * 1, lambda s: (one(s)[0] * 2,)
        ),
        "plain in-place ops": Case(lambda x: x.mul(3).mul_(2).add_(x), one),
        "changed views": Case(halves, one),
        "changed buffer": Case(lambda x: norm(x), one),
        # ---- random ----
        "noise": Case(lambda x: f.Noise.apply(x, 0.5), one),
        "many draws": Case(drawn, one),
        "unused draw": Case(quiet, one),
        # ---- closures and constants ----
        "closure with gradient": Case(lambda x: f.SavedInput.apply(x) * SCALE, one),
        "closure without gradient": Case(lambda x: f.SavedInput.apply(x) * TABLE, one),
        "closure in apply": Case(lambda x: f.Linear.apply(x, weight, bias), one),
        "aliases of apply": Case(lambda x: linear(alias(x), weight, bias), one),
        "module": Case(module, one),
        "constants": Case(shifted, one),
        # ---- kinds ----
        "custom op": Case(lambda x: f.Opaque.apply(x) * 2, one),
        "custom op without gradient": Case(lambda x: cosine(x.detach()) * x, one),
        "complex": Case(
            lambda x: f.SavedInput.apply(torch.view_as_complex(x)).abs(), tensors((4, 2))
        ),
        "complex input": Case(
            lambda z: f.SavedMiddle.apply(z) * z.conj(),
            lambda s: (normal(4, seed=s, dtype=torch.complex64),),
        ),
        "autocast": Case(mixed_precision, tensors((4, 3), (3, 5))),
        "half precision": Case(
            lambda x: f.SavedInput.apply(x), lambda s: (normal(4, 3, seed=s, dtype=torch.bfloat16),)
        ),
        "branch on shape": Case(lambda x: f.SavedInput.apply(x) if x.shape[0] > 2 else x, one),
    }
