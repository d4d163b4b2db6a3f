"""The self-test of an emitted module: its text, and inputs that fit the program's domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.derive.likes import Like
from pullback.graph.text_lines import wrapped

FEW = 24
"""Up to so many elements of all inputs, every derivative is compared; else random directions."""

_TEXT = '''

# ---- self-test: `python {file}` ----


{spread}def inputs():
    """Seeded inputs like those that this was written for{precision}."""
    torch.manual_seed(0)
{inputs}
    return {returned}


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def same(got, expected, what):
    """Raise, and name `what` it is, unless two tensors are equal but for rounding."""
    allowed = {{"rtol": {rtol}, "atol": {atol}, "equal_nan": True}}
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: f"{{what}}: {{text}}")


def self_test():
    """Raise unless {law}."""
    given = inputs()
    got, expected = called({call}, given), called(reference, given)
    for i, (y, z) in enumerate(zip(got, expected)):
        same(y, z, f"output {{i}} is not that of `reference`")
{gradients}

if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"{name} FAILED its self-test\\n{{error}}")
    print("{name}: {passed}")
'''

_SPREAD = '''\
def spread(low, high, *shape):
    """Numbers between two, one from each of equal parts, in random order."""
    count = torch.Size(shape).numel()
    places = torch.randperm(count) + torch.rand(count, dtype=torch.float64)
    return (low + (high - low) * places / max(count, 1)).reshape(shape)


'''

_COMPARED = """\
    live = [i for i, y in enumerate(got) if y.requires_grad and expected[i].requires_grad]
    wanted = {wanted}
    cotangents = [torch.randn_like(got[i]) for i in live]
    pulled = [
        torch.autograd.grad(
            [ys[i] for i in live], list(wanted.values()), cotangents, materialize_grads=True
        )
        for ys in (got, expected)
    ]
    for name, x, y in zip(wanted, *pulled):
        same(x, y, f"the gradient of `{{name}}` is not that of `reference`")
"""

_CHECKED = """\
    torch.autograd.gradcheck(lambda *given: called({call}, given), given{options})
"""


@dataclass(frozen=True, slots=True)
class Trial:
    """How an emitted module tests itself.

    `call` is the expression of what is tested, `names` those of the inputs, and `needs` says which
    of them have a gradient that is compared. Inputs are drawn like `likes`: `literal` ones have the
    very values of the examples. Where `is_double`, they are in double precision. `is_compared` says
    whether autograd's gradient of `reference` is the right one, too. `silent` names the inputs
    whose gradients are not compared although they have one, with the reason.
    """

    call: str
    names: tuple[str, ...]
    needs: tuple[bool, ...]
    likes: tuple[Like, ...]
    literal: bool = False
    is_double: bool = True
    is_compared: bool = True
    silent: tuple[tuple[str, str], ...] = ()

    @property
    def is_differentiated(self) -> bool:
        """Whether any gradient is compared."""
        return any(self.needs)

    def text(self, name: str, file: str) -> str:
        """The text of the self-test of `name`, in the file `file`."""
        rows = zip(self.names, self.needs, self.likes, strict=True)
        lines = [f"    {line}" for row in rows for line in self._input(*row)]
        law, passed = "outputs are those of `reference`", "outputs are those of `reference`"
        if self.is_differentiated:
            law = "outputs and gradients are those of `reference` and finite differences"
            passed = "outputs and gradients are right"
        elif self.names:
            passed += "; no gradient is compared"
        return _TEXT.format(
            name=name,
            file=file,
            spread=_SPREAD if any("spread(" in line for line in lines) else "",
            inputs="\n".join(lines) or "    pass",
            precision=", in double precision" if self.is_double else "",
            returned=f"({self.names[0]},)"
            if len(self.names) == 1
            else ", ".join(self.names) or "()",
            rtol=1e-7 if self.is_double else 1e-3,
            atol=1e-8 if self.is_double else 1e-3,
            call=self.call,
            law=law,
            passed=passed,
            gradients=self._gradients(),
        )

    def _gradients(self) -> str:
        if not self.is_differentiated:
            return ""
        pairs = zip(self.names, self.needs, strict=True)
        places = [(name, place) for place, (name, need) in enumerate(pairs) if need]
        wanted = "{" + ", ".join(f'"{name}": given[{place}]' for name, place in places) + "}"
        compared = _COMPARED.format(wanted=wanted) if self.is_compared else ""
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        return compared + _CHECKED.format(call=self.call, options=options)

    @property
    def options(self) -> dict[str, Any]:
        """How `gradcheck` is asked."""
        many = sum(like.numel for like in self.likes) > FEW
        options: dict[str, Any] = {"fast_mode": True} if many else {}
        if not self.is_double:
            options |= {"eps": 1e-2, "atol": 2e-2, "rtol": 2e-2}
        return options

    # ---- inputs ----

    def _input(self, name: str, needs: bool, like: Like) -> list[str]:
        """The lines that make one input."""
        dtype = self._dtype(like)
        device = "" if like.device == "cpu" else f', device="{like.device}"'
        end = ".requires_grad_()" if needs else ""
        kind = f"dtype={dtype}{device}"
        is_number = like.dtype.is_floating_point or like.dtype.is_complex
        if like.values is not None and (self.literal or not is_number):
            made = wrapped(
                f"{name} = torch.tensor", [str(like.values), kind], self._shaped(like) + end
            )
            return made.splitlines()
        if not is_number:
            ends = f"{int(like.low)}, {int(like.high) + 1}"
            return [f"{name} = torch.randint({ends}, {_row(like.shape)}, {kind})"]
        low, high = bounds_of(like)
        shape = (*like.shape, 2) if like.dtype.is_complex else like.shape
        made = f"spread({', '.join(map(str, (low, high, *shape)))})"
        made = f"torch.view_as_complex({made})" if like.dtype.is_complex else made
        moved = "" if self.is_double and not device else f".to({kind})"
        return [f"{name} = {made}{moved}{end}"]

    def _dtype(self, like: Like) -> torch.dtype:
        if not self.is_double:
            return like.dtype
        if like.dtype.is_complex:
            return torch.complex128
        return torch.float64 if like.dtype.is_floating_point else like.dtype

    def _shaped(self, like: Like) -> str:
        """What gives literal values their shape, where an empty list does not tell it."""
        return f".reshape({_row(like.shape)})" if like.numel == 0 else ""


def _row(shape: Sequence[int]) -> str:
    return "(" + "".join(f"{size}, " for size in shape).rstrip(" ") + ")"


def bounds_of(like: Like) -> tuple[float, float]:
    """Between which numbers to draw: those of the example, some room around a single one."""
    low, high = (float(f"{value:.3g}") for value in (like.low, like.high))
    return (low - 0.5, high + 0.5) if low == high else (low, high)
