"""The end of a file of kernels: its test with recorded numbers, and its benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.derive.source import loaded
from pullback.emit.filling import template_function, template_text
from pullback.emit.python.recorded import results_of_program
from pullback.emit.python.self_test import SUMS, SelfTest
from pullback.emit.subject import EmitSubject
from pullback.graph.values import held_value
from pullback.judge.comparison import aside
from pullback.judge.tensor_specs import TensorSpec
from pullback.judge.tolerances import RECORDED

if TYPE_CHECKING:
    from pullback.emit.triton.module import KernelFile


@dataclass(frozen=True)
class KernelTest:
    """The test of a file of kernels: its inputs, and what the program gave for them."""

    inputs: SelfTest
    recorded: Mapping[str, Tensor]

    def text(self, made: KernelFile, file: str) -> str:
        """The end of the file."""
        test = self.inputs
        tolerance = max(RECORDED.get(like.dtype, 0.0) for like in test.specs)
        return template_text(
            "triton_test.py",
            file=file,
            inputs=test.inputs(),
            recorded={what: _listed(few_of(y)) for what, y in self.recorded.items()},
            program=test.program,
            sums=SUMS,
            tolerance=tolerance,
            name=made.subject.name,
            names=repr(test.names),
            grows=_grows(made),
        )


def kernel_test(subject: EmitSubject, names: tuple[str, ...]) -> KernelTest:
    """Inputs like the examples, in their own dtypes, and what the program gives for them."""
    specs = tuple(replace(like, device="cpu") for like in _smaller(subject))
    program = subject.captured.name.removesuffix(".apply")
    test = SelfTest(program, names, subject.needs, specs, program=program, is_double=False)
    space = loaded(f"import torch\n\n\n{test.inputs()}")
    device = subject.specs[0].device if subject.specs else "cpu"
    given = [x.detach().to(device).requires_grad_(x.requires_grad) for x in space["inputs"]()]
    return KernelTest(test, _recorded(subject, test, given))


def _recorded(subject: EmitSubject, test: SelfTest, given: list[Tensor]) -> dict[str, Tensor]:
    """Outputs and gradients of the program, in double precision where it runs so: kernels of half
    types round less than the program does."""
    wide = [x.detach().double() if x.is_floating_point() else x for x in given]
    wide = [x.requires_grad_(need) for x, need in zip(wide, test.needs, strict=True)]
    with aside():
        try:
            return results_of_program(subject, test, wide, cotangent_of)
        except Exception:  # any: a program that names its dtypes
            return results_of_program(subject, test, given, cotangent_of)


LARGE, SIZE = 1 << 16, 64
"""Examples of more elements than that are tested smaller: free sizes are halved down to `SIZE`."""


def _smaller(subject: EmitSubject) -> tuple[TensorSpec, ...]:
    """What the examples are like, at sizes at which a test takes no time.

    Where there are integers, which may be indices, only the sizes that they have themselves change.
    """
    if sum(like.numel for like in subject.specs) <= LARGE:
        return subject.specs
    values = [held_value(node) for node in subject.captured.joint.inputs]
    integers = [v for v in values if not v.is_floating_point()]
    free = {str(s) for v in integers or values for s in v.shape if _is_symbol(s)}
    found = []
    for like, value in zip(subject.specs, values, strict=True):
        pairs = zip(like.shape, value.shape, strict=True)
        shape = tuple(_halved(n) if str(s) in free else n for n, s in pairs)
        is_same = shape == like.shape
        found.append(like if is_same else replace(like, shape=shape, values=None, sample=None))
    return tuple(found)


def _is_symbol(size: object) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_symbol)


def _halved(size: int) -> int:
    while size > SIZE and size % 2 == 0:
        size //= 2
    return size


few_of: Callable[[Tensor], Tensor] = template_function("weighted.py", sums=SUMS)
cotangent_of: Callable[[Tensor, int], Tensor] = template_function("spread_cotangent.py")
"""As in the text."""


def _listed(values: Tensor) -> str:
    return "[" + ", ".join(f"{float(v):.6g}" for v in values) + "]"


def _grows(made: KernelFile) -> tuple[int | None, ...]:
    """For each input the dimension that has the first free size of the largest input."""
    values = [held_value(node) for node in made.parts.joint.inputs]
    largest = max(zip(values, made.subject.specs, strict=True), key=lambda pair: pair[1].numel)[0]
    free = next((str(s) for s in largest.shape if isinstance(s, torch.SymInt)), None)
    return tuple(next((d for d, s in enumerate(v.shape) if str(s) == free), None) for v in values)
