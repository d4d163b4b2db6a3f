"""Combined or nested? square(x) * sin(y), every way to run it, measured on this machine.

The program calls the two Functions of `examples.nested` and multiplies: three units, which can be
one node each, one node together, or any grouping between. Which is fastest depends on the size and
on the machine, so `pb.plan` measures it, and the plan follows the size of what it is called with.
"""

import torch
from torch import Tensor

import pullback as pb
from examples.compare import Inputs, compare, verdict_on
from examples.hybrid import plain
from examples.nested import SineFunction, SquareFunction

SIZES = (1_000, 1_000_000)
BUDGET = 35.0  # seconds


def square_sine(x: Tensor, y: Tensor) -> Tensor:
    """`square(x) * sin(y)`, as written: three nodes."""
    return SquareFunction.apply(x) * SineFunction.apply(y)


def examples(size: int) -> tuple[Tensor, Tensor]:
    """Arguments of one size."""
    x, y = torch.linspace(-2, 2, size), torch.linspace(0, 3, size)
    return x.requires_grad_(), y.requires_grad_()


def inputs() -> Inputs:
    """Points on both sides of zero."""
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    y = torch.linspace(0, 3, 5, dtype=torch.float64)
    return {"x": x.requires_grad_(), "y": y.requires_grad_()}


def make_plan(budget=None):
    """The plan, for small and large tensors."""
    sizes = [examples(size) for size in SIZES]
    return pb.plan(square_sine, sizes=sizes, budget=BUDGET if budget is None else budget)


def main() -> None:
    """Print every way that was measured, which one is best, and why."""
    plan = make_plan()
    print("square(x) * sin(y): combined, nested, or in groups\n")
    print(plan.table())
    print(f"\n{plan.explain()}\n")
    print(verdict_on(compare(plan.best, plain, inputs())))


if __name__ == "__main__":
    main()
