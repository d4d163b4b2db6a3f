"""The functions that are emitted as C++ in the tests, each with arguments to call it with.

The nine of the text that this project started from come first, with the right backwards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pullback as pb
from examples import (
    combined,
    hybrid,
    my_activation,
    my_complex_op,
    my_elementwise,
    my_function,
    my_relu,
    nested,
    roi_align,
)
from pullback.emit.cpp.library import library_text
from pullback.emit.cpp.op import cpp_function
from pullback.emit.subject import EmitSubject, subject_of
from tests.diagnose import sound

HANDWRITTEN = Path(__file__).parent / "handwritten.cpp"


@dataclass(frozen=True)
class Case:
    """A function, the shapes of its tensors, and what is known of it.

    `shapes` are those of the example, `others` of further calls; `plain` are arguments behind the
    tensors. `is_once` says that a second derivative is refused, `changes` that the first argument
    is changed in place. `draw` makes the tensors, if they are not normal ones.
    """

    thing: Any
    shapes: tuple[tuple[int, ...], ...]
    others: tuple[tuple[tuple[int, ...], ...], ...] = ()
    plain: tuple[Any, ...] = ()
    is_once: bool = False
    changes: bool = False
    draw: Callable[..., tuple[Tensor, ...]] | None = None

    def tensors(self, shapes: Any = None, *, seed: int = 0) -> list[Tensor]:
        """Leaves of these shapes, in double precision, that require grad where they can."""
        generator = torch.Generator().manual_seed(seed)
        wanted = self.shapes if shapes is None else shapes
        if self.draw is not None:
            drawn = self.draw(wanted, generator)
        else:
            drawn = tuple(
                torch.randn(shape, generator=generator, dtype=torch.float64) for shape in wanted
            )
        return [t.requires_grad_() if t.is_floating_point() or t.is_complex() else t for t in drawn]

    def original(self, *tensors: Tensor) -> Any:
        """The function as it was written."""
        call = self.thing.apply if isinstance(self.thing, type) else self.thing
        given = [tensors[0].clone(), *tensors[1:]] if self.changes else list(tensors)
        return call(*given, *self.plain)

    def emitted(self, op: Any, plain: tuple[Any, ...] | None = None) -> Callable[..., Any]:
        """The same by an op, with other `plain` arguments behind the tensors if they are given."""
        rest = self.plain if plain is None else plain
        return lambda *ts: op(*([ts[0].clone(), *ts[1:]] if self.changes else ts), *rest)

    def subject(self) -> EmitSubject:
        """What is emitted."""
        tensors = self.tensors()
        given = [tensors[0].clone(), *tensors[1:]] if self.changes else tensors
        return subject_of(self.thing, (*given, *self.plain))


def boxes(shapes: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Features, and boxes inside of their images."""
    features, count = shapes[0], shapes[1][0]
    image = torch.randint(features[0], (count, 1), generator=generator).double()
    corners = torch.rand((count, 2), generator=generator, dtype=torch.float64) * 3
    sizes = torch.rand((count, 2), generator=generator, dtype=torch.float64) * 3 + 0.5
    drawn = torch.randn(features, generator=generator, dtype=torch.float64)
    return drawn, torch.cat([image, corners, corners + sizes], 1)


def labelled(shapes: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Logits, and a label for each row."""
    logits = torch.randn(shapes[0], generator=generator, dtype=torch.float64)
    return logits, torch.randint(shapes[0][1], shapes[1], generator=generator)


def complex_pair(shapes: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Two complex tensors."""
    return tuple(torch.randn(s, generator=generator, dtype=torch.complex128) for s in shapes)


def attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v


def convolved(image, kernel, bias):
    return F.conv2d(image, kernel, bias, padding=1).relu()


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels)


def halves(x):
    first, second = x.chunk(2, -1)
    return first * torch.sigmoid(second), second


def detached(x, y):
    """Treats the square of x as a constant, in the second derivative too."""
    return (x * x).detach() * y + x.sin()


class Scaled(torch.autograd.Function):
    """x * scale + shift, where scale and shift may be left out."""

    @staticmethod
    def forward(ctx, x, scale=None, shift=None):
        ctx.save_for_backward(x, scale)
        ctx.has_shift = shift is not None
        out = x * 1 if scale is None else x * scale
        return out if shift is None else out + shift

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        by_scale = None if scale is None else g * x
        return g * 1 if scale is None else g * scale, by_scale, g * 1 if ctx.has_shift else None


class Leaky(torch.autograd.Function):
    """x, or a part of it where it is negative; with plain arguments of every kind."""

    @staticmethod
    def forward(ctx, x, slope=0.1, times=3, mode="product", dims=(0,), keep=False):
        if slope < 0:
            raise ValueError("slope must not be negative")
        ctx.save_for_backward(x)
        ctx.slope, ctx.times = slope, times
        out = torch.where(x > 0, x, slope * x)
        return out * times if mode == "product" else out + times

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        part = 1 - ctx.slope
        by_x = (g - part * g * (x <= 0)) * ctx.times
        return by_x, None, None, None, None, None


class Rounded(torch.autograd.Function):
    """Rounds, and lets the cotangent through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def quantized(x):
    """A surrogate gradient inside of a program: its ops say something else than its backward."""
    return Rounded.apply(x) ** 2


def swish(x):
    return x * torch.sigmoid(x)


def sine_square(x):
    return x.sin() ** 2


def example(*shape: int) -> Tensor:
    return torch.linspace(-1, 2, torch.Size(shape).numel()).double().reshape(shape).requires_grad_()


ROW, OTHER_ROWS = ((5,),), (((7,),), ((1,),), ((2, 3),), ((),))
PAIR, OTHER_PAIRS = ((5,), (5,)), (((4,), (4,)), ((2, 3), (2, 3)))

CASES = {
    "my_function": Case(my_function.MyFunction, ROW, OTHER_ROWS, plain=(3,), changes=True),
    "my_elementwise": Case(my_elementwise.MyElementWise, PAIR, OTHER_PAIRS),
    "my_activation": Case(my_activation.MyActivation, ROW, OTHER_ROWS),
    "my_complex_op": Case(my_complex_op.MyComplexOp, ROW, OTHER_ROWS),
    "my_relu": Case(my_relu.MyReLU, ROW, OTHER_ROWS),
    "combined": Case(combined.CombinedFunction, PAIR, OTHER_PAIRS),
    "hybrid": Case(hybrid.ComplexFunction, PAIR, OTHER_PAIRS),
    "nested": Case(nested.nested, ROW, OTHER_ROWS),
    "roi_align": Case(
        roi_align.sampled,
        ((2, 3, 6, 7), (3, 5)),
        (((1, 2, 5, 8), (1, 5)), ((3, 1, 7, 6), (4, 5))),
        draw=boxes,
    ),
    "in_place": Case(sound.InPlace, PAIR, OTHER_PAIRS, changes=True),
    "sorted_with_indices": Case(sound.SortedWithIndices, ((4, 3),), (((2, 6),),)),
    "two_outputs": Case(sound.TwoOutputsWithoutZeros, ROW, OTHER_ROWS),
    "layer_norm": Case(
        sound.LayerNorm,
        ((4, 6), (6,), (6,)),
        (((3, 5), (5,), (5,)), ((1, 4), (4,), (4,))),
        plain=(1e-5,),
        is_once=True,
    ),
    "complex_product": Case(sound.ComplexProduct, PAIR, OTHER_PAIRS, draw=complex_pair),
    "swish": Case(pb.derive(swish, example(3)), ROW, OTHER_ROWS),
    "sine_square": Case(pb.combine(sine_square, example(3)), ROW, OTHER_ROWS, is_once=True),
    "attention": Case(
        attention,
        ((2, 4, 3), (2, 5, 3), (2, 5, 6)),
        (((3, 2, 4), (3, 6, 4), (3, 6, 2)),),
        is_once=True,
    ),
    "convolved": Case(
        convolved,
        ((2, 3, 5, 6), (4, 3, 3, 3), (4,)),
        (((3, 2, 7, 4), (2, 2, 3, 3), (2,)),),
    ),
    "cross_entropy": Case(
        cross_entropy, ((4, 6), (4,)), (((3, 5), (3,)), ((1, 2), (1,))), draw=labelled
    ),
    "halves": Case(halves, ((3, 4),), (((2, 6),),)),
    "scaled": Case(Scaled, ((5,), (5,), (5,)), (((2, 3),) * 3,)),
    "leaky": Case(Leaky, ROW, OTHER_ROWS, plain=(0.25, 3, "product", (0,), False)),
    "detached": Case(detached, PAIR, OTHER_PAIRS, is_once=True),
    "quantized": Case(quantized, ROW, OTHER_ROWS, is_once=True),
}
"""Each function by a name of its own, which its class in C++ is called after."""


def class_name(name: str) -> str:
    """The name of the class in C++: `CaseMyRelu`."""
    return "Case" + "".join(part.capitalize() for part in name.split("_"))


def emit_together(subjects: Sequence[EmitSubject]) -> str:
    """One C++ file with the ops of several subjects: it takes hardly longer to compile."""
    return library_text(["Many ops at once."], [cpp_function(subject) for subject in subjects])


def library_source() -> str:
    """One C++ file with every case, and the ops that are written by hand."""
    subjects = []
    for name, case in CASES.items():
        subject = case.subject()
        object.__setattr__(subject, "name", class_name(name))
        subjects.append(subject)
    return f"{emit_together(subjects)}\n{HANDWRITTEN.read_text(encoding='utf-8')}"


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors that a call gave."""
    return [value] if isinstance(value, Tensor) else [t for t in value if isinstance(t, Tensor)]


def cotangents_for(outputs: list[Tensor], *, seed: int = 7) -> list[Tensor]:
    """A normal tensor like each output that carries a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(y.shape, generator=generator, dtype=y.dtype) for y in outputs]


def pulled(call: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor | None]:
    """The gradients of all tensors that require one."""
    outputs = [y for y in tensors_of(call(*tensors)) if y.requires_grad]
    wanted = [x for x in tensors if x.requires_grad]
    return list(torch.autograd.grad(outputs, wanted, cotangents_for(outputs), allow_unused=True))


def pulled_twice(call: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor | None]:
    """The gradients of the gradients, by inputs and cotangents."""
    outputs = [y for y in tensors_of(call(*tensors)) if y.requires_grad]
    wanted = [x for x in tensors if x.requires_grad]
    cotangents = [c.requires_grad_() for c in cotangents_for(outputs)]
    first = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    linked = [g for g in first if g is not None and g.requires_grad]
    return list(
        torch.autograd.grad(
            linked, [*wanted, *cotangents], cotangents_for(linked, seed=8), allow_unused=True
        )
    )


def differences(got: list[Any], expected: list[Any], tolerance: float = 1e-9) -> list[str]:
    """How two rows of tensors differ: one line for each pair; no gradient is as good as zeros."""
    if len(got) != len(expected):
        return [f"{len(got)} values, not {len(expected)}"]
    lines = []
    for place, (a, b) in enumerate(zip(got, expected, strict=True)):
        a = torch.zeros_like(b) if a is None and b is not None else a
        b = torch.zeros_like(a) if b is None and a is not None else b
        if a is None:
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            lines.append(f"{place}: {a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}")
        elif not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True):
            lines.append(f"{place}: apart by {(a - b).abs().max():.3g}")
    return lines
