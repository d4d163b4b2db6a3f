"""The self-test of an emitted module: its text, and inputs that fit the program's domain."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pullback.graph.text_lines import WIDTH, wrapped_call
from pullback.judge.tensor_specs import TensorSpec

FEW_ELEMENTS = 24
"""Up to so many elements of all inputs, every derivative is compared; else random directions."""

LISTED, SUMS = 16, 8
"""Up to so many elements, what was recorded is listed; else there are so many sums of it."""

DIGITS = {True: 10, False: 6}
"""Of recorded numbers, in double precision or not: some more than are compared."""

_INPUTS = '''\
{spread}def inputs():
    """Inputs like those that this was written for{precision}."""
{inputs}
    return {returned}
'''

_SPREAD = '''\
def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


'''

_TEXT = '''

# ---- self-test: `python {file}` ----


{inputs}

{expected}def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def self_test():
    """Raise unless {holds}."""
    given = inputs()
    outputs = called({call}, given)
{compared}{gradients}

if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"{name} FAILED its self-test\\n{{error}}")
    print("{name}: {passed}")
'''

_SUMMED = '''\
def few(y):
    """A tensor in few numbers: if it has many, weighted sums of them."""
    flat = (torch.view_as_real(y) if y.is_complex() else y).double().flatten()
    weights = 1 + torch.arange(flat.numel(), device=y.device) % 7
    padded = torch.nn.functional.pad(flat * weights, (0, -flat.numel() % {sums}))
    return padded.reshape({sums}, -1).sum(1) if y.numel() > {listed} else y


'''

_SAME = '''\
{few}def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    got = {got}
    expected = torch.tensor(RECORDED[what], dtype=got.dtype, device=got.device){shaped}
    allowed = {{"rtol": {rtol}, "atol": {rtol}, "equal_nan": True}}
    said = f"{{what}} is not as recorded: "
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: said + text)
'''

_PULLED = """\
    live = [y for y in outputs if y.requires_grad]
    wanted = {wanted}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{{name}}`")
"""

_COTANGENT = '''\
def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.linspace(0.5 + i, 1.5 + i, y.numel(), dtype=torch.float64, device=y.device)
    return row.reshape(y.shape).to(y.dtype)


'''

_CHECKED = """\
    torch.autograd.gradcheck(lambda *given: called({call}, given), given{options})
"""

_CHECKED_LIVE = """\

    def differentiable(*given):
        \"\"\"The outputs with a gradient: `gradcheck` confuses them with others beside them.\"\"\"
        return tuple(y for y in called({call}, given) if y.requires_grad)

    torch.autograd.gradcheck(differentiable, given{options})
"""

_AGAINST_REFERENCE = """\
    for y, z in zip(outputs, called(reference, given)):
        torch.testing.assert_close(y, z, msg=lambda text: f"an output is not right: {text}")
"""


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
        return _TEXT.format(
            name=name,
            file=file,
            inputs=self.inputs(),
            expected=self._expected(),
            call=self.call,
            holds=holds,
            compared=_AGAINST_REFERENCE if self.recorded is None else self._compared(),
            gradients=self._checked(),
            passed=f"{what} are right{said}",
        )

    def inputs(self) -> str:
        """The text of the function that makes the inputs."""
        rows = enumerate(zip(self.names, self.needs, self.specs, strict=True))
        lines = [f"    {line}" for place, row in rows for line in self._input(place, *row)]
        names = self.names
        return _INPUTS.format(
            spread=_SPREAD if any("spread(" in line for line in lines) else "",
            inputs="\n".join(lines) or "    pass",
            precision=", in double precision" if self.is_double else "",
            returned=f"({names[0]},)" if len(names) == 1 else ", ".join(names) or "()",
        )

    # ---- what is compared ----

    def _expected(self) -> str:
        """What was recorded, and how it is compared."""
        if self.recorded is None:
            return ""
        digits = DIGITS[self.is_double]
        rows = [_entry(what, _listed(few(y), digits)) for what, y in self.recorded.items()]
        has_none = any(value.numel() == 0 for value in self.recorded.values())
        has_many = any(value.numel() > LISTED for value in self.recorded.values())
        said = f'"""What `{self.program}` gave for these inputs when this was written."""'
        same = _SAME.format(
            few=_SUMMED.format(sums=SUMS, listed=LISTED) if has_many else "",
            got="few(got.detach())" if has_many else "got.detach()",
            shaped=".reshape(got.shape)" if has_none else "",
            rtol=1e-7 if self.is_double else 1e-3,
        )
        listed = "\n".join(["RECORDED = {", *rows, "}", said])
        pulled = _COTANGENT if self.is_differentiated else ""
        return f"{listed}\n\n\n{pulled}{same}\n\n"

    def _compared(self) -> str:
        lines = '    for i, y in enumerate(outputs):\n        same(y, f"output {i}")\n'
        pairs = zip(self.names, self.needs, strict=True)
        places = [(name, place) for place, (name, need) in enumerate(pairs) if need]
        wanted = "{" + ", ".join(f'"{name}": given[{place}]' for name, place in places) + "}"
        return lines + (_PULLED.format(wanted=wanted) if self.is_differentiated else "")

    def _checked(self) -> str:
        if not self.is_differentiated or not self.by_differences:
            return ""
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        text = _CHECKED_LIVE if self.has_constant_outputs else _CHECKED
        return text.format(call=self.call, options=options)

    @property
    def options(self) -> dict[str, Any]:
        """How `gradcheck` is asked."""
        many = sum(like.numel for like in self.specs) > FEW_ELEMENTS
        options: dict[str, Any] = {"fast_mode": True} if many else {}
        if not self.is_double:
            options |= {"eps": 1e-2, "atol": 2e-2, "rtol": 2e-2}
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


_HERE: dict[str, Any] = {"torch": torch}
exec(_SUMMED.format(sums=SUMS, listed=LISTED) + _COTANGENT, _HERE)
few: Callable[[Tensor], Tensor] = _HERE["few"]
cotangent: Callable[[Tensor, int], Tensor] = _HERE["cotangent"]
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
