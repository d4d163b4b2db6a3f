"""The self-test of an emitted module: its text, and inputs that fit the program's domain."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.emit.filling import template_function, template_text
from pullback.graph.text_lines import WIDTH, wrapped_call
from pullback.judge.tensor_specs import TensorSpec
from pullback.judge.tolerances import KINKY, LISTED_COARSE, LISTED_WITHIN

FEW_ELEMENTS = 24
"""Up to so many elements of all inputs, every derivative is compared; else random directions."""

LISTED, SUMS = 16, 8
"""Up to so many elements, what was recorded is listed; else there are so many sums of it."""

FEW = {"sums": SUMS, "listed": LISTED}

DIGITS = {True: 10, False: 6}
"""Of recorded numbers, in double precision or not: some more than are compared."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """How an emitted module tests itself.

    `call` is the expression of what is tested, `names` those of the inputs, and `needs` says which
    of them have a gradient that is compared. Inputs are like `specs`: `literal` ones, and those in
    `fixed`, have the very values of the examples. Where `is_double`, they are in double precision.
    `silent` names the inputs whose gradients are not compared although they have one, with the
    reason. `recorded` is what `program` gave for them, by what it is; nothing where it draws
    random numbers, which are others on another machine: `reference` is compared instead.
    Where not `by_differences`, those of the program are not its gradients either (it rounds, say).
    `has_constant_outputs` says that some outputs have no gradient.
    """

    call: str
    names: tuple[str, ...]
    needs: tuple[bool, ...]
    specs: tuple[TensorSpec, ...]
    program: str = ""
    fixed: frozenset[str] = frozenset()
    literal: bool = False
    is_double: bool = True
    silent: tuple[tuple[str, str], ...] = ()
    recorded: Mapping[str, Tensor] | None = None
    by_differences: bool = True
    has_constant_outputs: bool = False

    @property
    def is_differentiated(self) -> bool:
        """Whether any gradient is compared."""
        return any(self.needs) and (self.by_differences or self.recorded is not None)

    def text(self, name: str, file: str) -> str:
        """The text of the self-test of `name`, in the file `file`."""
        what = "outputs and gradients" if self.is_differentiated else "outputs"
        holds = f"{what} are as recorded"
        if self.recorded is None:
            holds = "outputs are those of `reference`"
        if self.is_differentiated and self.by_differences:
            holds += ", and gradients as differences say"
        said = "" if self.is_differentiated or not self.names else "; no gradient is compared"
        recorded = None if self.recorded is None else [*self._recorded(self.recorded)]
        sizes = [value.numel() for value in (self.recorded or {}).values()]
        return template_text(
            "python_test.py",
            name=name,
            file=file,
            inputs=self.inputs(),
            call=self.call,
            holds=holds,
            passed=f"{what} are right{said}",
            program=self.program,
            recorded=recorded,
            is_differentiated=self.is_differentiated,
            is_checked=self.is_differentiated and self.by_differences,
            has_constant_outputs=self.has_constant_outputs,
            has_many=max(sizes, default=0) > LISTED,
            has_none=0 in sizes,
            rtol=LISTED_WITHIN if self.is_double else LISTED_COARSE,
            wanted=self._wanted(),
            options="".join(f", {key}={value}" for key, value in self.options.items()),
            **FEW,
        )

    def inputs(self) -> str:
        """The text of the function that makes the inputs."""
        rows = enumerate(zip(self.names, self.needs, self.specs, strict=True))
        lines = [f"    {line}" for place, row in rows for line in self._input(place, *row)]
        names = self.names
        return template_text(
            "inputs.py",
            has_spread=any("spread(" in line for line in lines),
            lines="\n".join(lines) or "    pass",
            precision=", in double precision" if self.is_double else "",
            returned=f"({names[0]},)" if len(names) == 1 else ", ".join(names) or "()",
        )

    # ---- what is compared ----

    def _recorded(self, recorded: Mapping[str, Tensor]) -> Iterator[str]:
        """The lines of what was recorded."""
        digits = DIGITS[self.is_double]
        for what, y in recorded.items():
            yield _entry(what, _listed(few(y), digits))

    def _wanted(self) -> str:
        """The inputs whose gradients are compared, by their names."""
        pairs = zip(self.names, self.needs, strict=True)
        places = [(name, place) for place, (name, need) in enumerate(pairs) if need]
        return "{" + ", ".join(f'"{name}": given[{place}]' for name, place in places) + "}"

    @property
    def options(self) -> dict[str, Any]:
        """How `gradcheck` is asked."""
        many = sum(like.numel for like in self.specs) > FEW_ELEMENTS
        options: dict[str, Any] = {"fast_mode": True} if many else {}
        if not self.is_double:
            options |= {"eps": KINKY / 2, "atol": KINKY, "rtol": KINKY}
        return options

    # ---- inputs ----

    def _input(self, place: int, name: str, needs: bool, like: TensorSpec) -> list[str]:
        """The lines that make one input."""
        dtype = self.dtype_of(like.dtype)
        device = "" if like.device == "cpu" else f', device="{like.device}"'
        end = ".requires_grad_()" if needs else ""
        kind = f"dtype={dtype}{device}"
        is_number = like.dtype.is_floating_point or like.dtype.is_complex
        is_literal = self.literal or name in self.fixed or not is_number
        if like.values is not None and is_literal:
            made = wrapped_call(
                f"{name} = torch.tensor", [str(like.values), kind], self._shaped(like) + end
            )
            return made.splitlines()
        if not is_number:
            return [f"{name} = {_integers(like)}.to({kind})"]
        low, high = bounds_of(like)
        shape = (*like.shape, 2) if like.dtype.is_complex else like.shape
        made = f"spread({', '.join(map(str, (place, low, high, *shape)))})"
        made = f"torch.view_as_complex({made})" if like.dtype.is_complex else made
        moved = "" if self.is_double and not device else f".to({kind})"
        return [f"{name} = {made}{moved}{end}"]

    def dtype_of(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that an input of this one is tested with."""
        if not self.is_double:
            return dtype
        if dtype.is_complex:
            return torch.complex128
        return torch.float64 if dtype.is_floating_point else dtype

    def _shaped(self, like: TensorSpec) -> str:
        """What gives literal values their shape, where an empty list does not show it."""
        return f".reshape({_row(like.shape)})" if like.numel == 0 else ""


def _integers(like: TensorSpec) -> str:
    """Integers between those of an example, one after another."""
    low, high = int(like.low), int(like.high)
    return f"({low} + torch.arange({like.numel}) % {high - low + 1}).reshape({_row(like.shape)})"


few: Callable[[Tensor], Tensor] = template_function("few.py", **FEW)
cotangent: Callable[[Tensor, int], Tensor] = template_function("cotangent.py")
"""As in the text of a self-test."""


def _entry(what: str, listed: str) -> str:
    """One line of what was recorded, or several."""
    line = f'    "{what}": {listed},'
    if len(line) <= WIDTH:
        return line
    inner = textwrap.wrap(f"{listed[1:-1]},", WIDTH - 8)
    return "\n".join([f'    "{what}": [', *(f"        {part}" for part in inner), "    ],"])


def _listed(tensor: Tensor, digits: int) -> str:
    """A tensor as a list, with so many digits."""
    if tensor.dim():
        return "[" + ", ".join(_listed(part, digits) for part in tensor) + "]"
    value = tensor.item()
    if isinstance(value, complex):
        parts = (_number(part, digits) for part in (value.real, value.imag))
        return f"complex({', '.join(parts)})"
    return _number(value, digits) if isinstance(value, float) else repr(value)


def _number(value: float, digits: int) -> str:
    text = repr(float(f"{value:.{digits}g}"))
    return f"torch.{text}".replace("torch.-", "-torch.") if text.strip("-").isalpha() else text


def _row(shape: Sequence[int]) -> str:
    return "(" + "".join(f"{size}, " for size in shape).rstrip(" ") + ")"


def bounds_of(like: TensorSpec) -> tuple[float, float]:
    """Between which numbers to draw: those of the example, some room around a single one."""
    low, high = (float(f"{value:.3g}") for value in (like.low, like.high))
    return (low - 0.5, high + 0.5) if low == high else (low, high)
