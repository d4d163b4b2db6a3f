"""An emitted C++ Function takes half the time of the Python that it came from, in the mean.

A chain of ten on a few elements, forward and backward: in Python as it was written, as the C++ op
that `emit` made of it and `build` compiled, as one writes that in C++ by hand, and as PyTorch's own
ops. Every ratio is taken within interleaved rounds. The claims, of the time that Python takes:

    MyReLU, MyActivation, nested, Sine         emitted C++ <= 0.50
    all of the table, in the geometric mean    emitted C++ <= 0.50
    Swish, LayerNorm                           emitted C++ <= 0.60: their ops take most of it
    CtxSine, one op in the `ctx` style         emitted C++ <= 0.75

In the last one autograd and the dispatcher take the time, in any language: PyTorch's own `sin`,
which is nothing else, is at half of Python already. Emitted C++ must not be slower than C++ by hand
by more than a tenth, anywhere.

Run it with `make bench` or `python -m benchmarks.emitted_cpp_is_fast`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.autograd import Function

import pullback as pb
from benchmarks.timing import Timing, interleave
from examples import my_activation, my_relu, nested
from pullback.emit.compiled import has_compiler
from pullback.emit.cpp.library import library_text
from pullback.emit.cpp.op import cpp_function
from pullback.emit.python.module import snake
from pullback.emit.subject import subject_of

LENGTH = 10
MEAN = 0.5
BESIDE_HAND = 1.1


class LayerNorm(Function):
    """Rows with mean 0 and variance 1, scaled and shifted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        normed = centred * rstd
        ctx.save_for_backward(normed, rstd, weight)
        return normed * weight + bias

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        normed, rstd, weight = ctx.saved_tensors
        scaled = cotangent * weight
        projected = normed * (scaled * normed).mean(-1, keepdim=True)
        by_x = rstd * (scaled - scaled.mean(-1, keepdim=True) - projected)
        return by_x, (cotangent * normed).sum(0), cotangent.sum(0), None


class Sine(Function):
    """sin(x), by hand, in the `setup_context` style."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()


class CtxSine(Function):
    """sin(x), by hand, in the `ctx` style."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * x.cos()


class Swish(Function):
    """x * sigmoid(x), by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        return cotangent * (gate + x * gate * (1 - gate))


BY_HAND = """
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Sine : torch::autograd::Function<Sine> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x});
    return x.sin();
  }
  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    return {cotangents[0] * ctx->get_saved_variables()[0].cos()};
  }
};

struct Swish : torch::autograd::Function<Swish> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x});
    return x * x.sigmoid();
  }
  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    auto x = ctx->get_saved_variables()[0];
    auto gate = x.sigmoid();
    return {cotangents[0] * (gate + x * gate * (1 - gate))};
  }
};

struct ReLU : torch::autograd::Function<ReLU> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto out = x.clamp_min(0);
    ctx->save_for_backward({out});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list cotangents) {
    return {cotangents[0].masked_fill(ctx->get_saved_variables()[0] <= 0, 0)};
  }
};

Tensor sine(const Tensor& x) { return Sine::apply(x); }
Tensor swish(const Tensor& x) { return Swish::apply(x); }
Tensor relu(const Tensor& x) { return ReLU::apply(x); }

TORCH_LIBRARY(by_hand, m) {
  m.def("sine(Tensor x) -> Tensor");
  m.def("swish(Tensor x) -> Tensor");
  m.def("relu(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(by_hand, Autograd, m) {
  m.impl("sine", sine);
  m.impl("swish", swish);
  m.impl("relu", relu);
}
"""


@dataclass(frozen=True)
class Case:
    """What is emitted, and the same in PyTorch's own ops.

    `claim` is the largest share of Python's time, `rest` the arguments behind the first, `hand` the
    op that was written by hand in C++.
    """

    thing: Any
    own: Callable[..., Tensor]
    claim: float = 0.5
    shape: tuple[int, ...] = (4,)
    rest: tuple[Any, ...] = ()
    hand: str = ""

    @property
    def name(self) -> str:
        """The name of the class or the function."""
        return str(self.thing.__name__)

    def ways(self, emitted: Any, by_hand: Any) -> dict[str, Callable[[], object]]:
        """A chain for each way to compute it, by the name of the way."""
        python = self.thing.apply if isinstance(self.thing, type) else self.thing
        steps = {"Python": python, "emitted C++": getattr(emitted, snake(self.op)).default}
        if self.hand:
            steps["C++ by hand"] = getattr(by_hand, self.hand).default
        steps["PyTorch's own"] = self.own
        x = torch.randn(self.shape, requires_grad=True)
        return {way: chain(step, x, self.rest) for way, step in steps.items()}

    @property
    def op(self) -> str:
        """The name that it is emitted under."""
        return self.name if isinstance(self.thing, type) else self.name.capitalize()


def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """PyTorch's own layer norm."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


CASES = (
    Case(my_relu.MyReLU, my_relu.plain, hand="relu"),
    Case(my_activation.MyActivation, my_activation.plain),
    Case(nested.nested, nested.plain),
    Case(
        LayerNorm,
        norm,
        claim=0.6,
        shape=(2, 4),
        rest=(torch.ones(4), torch.zeros(4).requires_grad_(), 1e-5),
    ),
    Case(Sine, torch.sin, hand="sine"),
    Case(Swish, F.silu, claim=0.6, hand="swish"),
    Case(CtxSine, torch.sin, claim=0.75, hand="sine"),
)


def chain(step: Callable[..., Tensor], x: Tensor, rest: tuple[Any, ...]) -> Callable[[], object]:
    """Ten times `step`, forward and backward."""
    ones = torch.ones_like(x)

    def run() -> object:
        y = x
        for _ in range(LENGTH):
            y = step(y, *rest)
        return torch.autograd.grad(y, x, ones)

    return run


def main() -> None:
    """Print the table, and whether the claims hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    rounds = parser.parse_args().rounds
    console = Console()
    if not has_compiler():
        console.print("no C++ compiler: nothing to measure")
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        emitted, by_hand = _built(Path(folder))
        taken = {case: interleave(case.ways(emitted, by_hand), rounds=rounds) for case in CASES}
    console.print(_table(taken))
    ratios = [_ratio(rows, "emitted C++") for rows in taken.values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    console.print(
        f"emitted C++, geometric mean: {mean:.2f} of Python, {1 / mean:.1f} times as fast"
    )
    failed = _failed(taken) + (["the mean"] if mean > MEAN else [])
    console.print(f"claims: {'not met for ' + ', '.join(failed) if failed else 'met'}")


def _built(folder: Path) -> tuple[Any, Any]:
    """The emitted ops, and those written by hand."""
    texts = {"classes.cpp": "", "by_hand.cpp": BY_HAND}
    subjects = [
        subject_of(c.thing, (torch.randn(c.shape).requires_grad_(), *c.rest)) for c in CASES
    ]
    texts["classes.cpp"] = library_text([], [cpp_function(subject) for subject in subjects])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    emitted, by_hand = (pb.build(folder / name, cache=folder) for name in texts)
    return emitted, by_hand


def _ratio(rows: dict[str, Timing], way: str, to: str = "Python") -> float:
    return rows[way].ratio(rows[to])


def _table(taken: dict[Case, dict[str, Timing]]) -> Table:
    table = Table(title=f"chain of {LENGTH}, forward and backward, 4 or 8 elements")
    for name in ("what", "way", "µs", "of Python", "times as fast"):
        table.add_column(name, justify="left" if name in ("what", "way") else "right")
    for case, rows in taken.items():
        for way, timing in rows.items():
            ratio = _ratio(rows, way)
            shown = (f"{timing.median * 1e6:.1f}", f"{ratio:.2f}", f"{1 / ratio:.1f}")
            table.add_row(case.name, way, *shown, end_section=way == "PyTorch's own")
    return table


def _failed(taken: dict[Case, dict[str, Timing]]) -> list[str]:
    """The names of what does not keep a claim."""
    return [
        case.name
        for case, rows in taken.items()
        if _ratio(rows, "emitted C++") > case.claim
        or (case.hand and _ratio(rows, "emitted C++", "C++ by hand") > BESIDE_HAND)
    ]


if __name__ == "__main__":
    main()
