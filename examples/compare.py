"""Compare a custom function with the same computation in plain PyTorch, output and gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest difference between two tensors, and the element where it is."""

    what: str
    index: tuple[int, ...]
    expected: float
    got: float
    compared: int

    @property
    def size(self) -> float:
        """How far `got` is from `expected`; infinite where either is not a number."""
        size = abs(self.got - self.expected)
        return size if size == size else float("inf")


def compare(
    apply: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: Inputs
) -> list[Difference]:
    """The largest difference of the output, then of the gradient of each input.

    Both are run on copies of `inputs` and pulled back with one cotangent, whose elements differ
    so that a gradient which goes to the wrong element shows.
    """
    expected = pull(plain, inputs, cotangent_of=uneven)
    got = pull(apply, inputs, cotangent_of=uneven)
    return [_difference(what, expected[what], got[what]) for what in expected]


def worst_of(differences: list[Difference]) -> Difference:
    """The largest of several differences."""
    return max(differences, key=lambda difference: difference.size)


def uneven(output: Tensor) -> Tensor:
    """A cotangent for `output` with a different element everywhere, from 1/n to 1."""
    steps = torch.arange(1, output.numel() + 1, dtype=output.dtype, device=output.device)
    return (steps / max(output.numel(), 1)).reshape(output.shape)


def pull(
    function: Callable[..., Tensor],
    inputs: Inputs,
    *,
    cotangent_of: Callable[[Tensor], Tensor] = torch.ones_like,
) -> Inputs:
    """The output of `function` under `output`, and each gradient under "gradient of `name`".

    Inputs that do not require grad are passed on as they are and get no gradient.
    """
    leaves = {
        name: value.detach().clone().requires_grad_(value.requires_grad)
        for name, value in inputs.items()
    }
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    output = function(*leaves.values())
    gradients = torch.autograd.grad(output, tuple(wanted.values()), cotangent_of(output))
    named = {f"gradient of `{name}`": g for name, g in zip(wanted, gradients, strict=True)}
    return {"output": output.detach(), **named}


def columns_of(columns: Inputs) -> str:
    """Equally long vectors as the columns of a text table, under their names."""
    widths = [max(9, len(name)) for name in columns]
    rows = torch.stack(tuple(columns.values()), dim=1).tolist()
    # Adding 0.0 turns the -0.0 that rounding may leave into 0.0.
    cells = [list(columns)] + [[f"{round(value, 4) + 0.0:.4f}" for value in row] for row in rows]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
    return "\n".join(f"  {line}" for line in lines)


def verdict_on(differences: list[Difference]) -> str:
    """One line: the largest difference from PyTorch, and over how many numbers."""
    compared = sum(difference.compared for difference in differences)
    size = text_of(worst_of(differences).size)
    return f"Largest difference from PyTorch: {size} ({compared} float64 values and gradients)."


def text_of(size: float) -> str:
    """A difference in two digits, and 0 as 0."""
    return f"{size:.1e}" if size else "0"


def _difference(what: str, expected: Tensor, got: Tensor) -> Difference:
    if expected.shape != got.shape:
        raise ValueError(f"{what}: expected shape {tuple(expected.shape)}, got {tuple(got.shape)}")
    # A value that is not a number counts as the worst one of all.
    sizes = (got - expected).abs().nan_to_num(nan=float("inf"))
    index = tuple(int(i) for i in torch.unravel_index(sizes.argmax(), sizes.shape))
    return Difference(what, index, expected[index].item(), got[index].item(), expected.numel())
