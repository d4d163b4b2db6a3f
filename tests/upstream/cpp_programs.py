"""Programs from PyTorch's own database of ops, with its own sample inputs, to emit as C++.

Run as a module with a library, it compares the ops in that with the programs, in its own process:
`python -m tests.upstream.cpp_programs LIBRARY NAME...` prints a line of JSON.
"""

import functools
import json
import re
import sys

import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from pullback.capture.trees import flatten, unflatten

FEW = ("logsumexp", "nn.functional.gelu", "gather")
MANY = (
    "softmax",
    "nn.functional.layer_norm",
    "addmm",
    "cumsum",
    "index_select",
    "where",
    "clamp",
    "var",
    "linalg.cholesky",
    "mul",
    "nn.functional.conv2d",
    "nn.functional.max_pool2d",
    "nn.functional.cross_entropy",
    "sort",
    "nn.functional.interpolate",
)
COMPLEX = ("mul",)
"""Those that are tried with complex numbers."""

WISHES = {
    "nn.functional.cross_entropy": lambda sample: "weight" in sample.kwargs,
    "nn.functional.max_pool2d": lambda sample: sample.kwargs.get("return_indices"),
    "nn.functional.layer_norm": lambda sample: len(sample.args) == 3,
}
"""Which of the samples is taken: else the first one with more than one element."""

VARIANTS = {"nn.functional.interpolate": "bilinear"}
EXTRA = {"nn.functional.cross_entropy": {"label_smoothing": 0.1}}
"""Arguments that no sample has."""


class Program:
    """One op with a sample of its arguments, as a function of the tensors among them."""

    def __init__(self, name: str) -> None:
        variant = VARIANTS.get(name)
        known = [op for op in op_db if op.name == name]
        info = next(op for op in known if variant in (None, op.variant_test_name))
        dtype = torch.complex128 if name in COMPLEX else torch.float64
        wish = WISHES.get(name, lambda sample: sample.input.numel() > 1)
        torch.manual_seed(0)
        samples = info.sample_inputs("cpu", dtype, requires_grad=True)
        sample = next(sample for sample in samples if wish(sample))
        self.op = info.op
        kwargs = sample.kwargs | EXTRA.get(name, {})
        self.leaves, self.spec = flatten(((sample.input, *sample.args), kwargs))
        self.__name__ = "upstream_" + re.sub(r"\W", "_", name)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of the sample, as leaves."""
        own = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]
        return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in own)

    def __call__(self, *tensors: Tensor):
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = unflatten(leaves, self.spec)
        made = self.op(*args, **kwargs)
        return tuple(made) if isinstance(made, tuple | list) else made


@functools.cache
def program(name: str) -> Program:
    return Program(name)


def results(call, tensors) -> list[Tensor]:
    """Outputs, gradients of each output alone and of all, second derivatives."""
    outputs = call(*tensors)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    wanted = [t for t in tensors if t.requires_grad]
    smooth = [y for y in outputs if y.requires_grad]
    found = [*outputs, *(torch.tensor(y.requires_grad) for y in outputs)]
    cotangents = [like(y, seed).requires_grad_() for seed, y in enumerate(smooth)]
    for chosen in [*([k] for k in range(len(smooth))), range(len(smooth))]:
        found += torch.autograd.grad(
            [smooth[k] for k in chosen],
            wanted,
            [cotangents[k] for k in chosen],
            retain_graph=True,
            materialize_grads=True,
        )
    return [value.detach() for value in found]


def like(tensor: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def apart(name: str, tensors) -> str:
    """How the op differs from the program; nothing where it does not."""
    op = getattr(torch.ops.emitted, program(name).__name__)
    found, expected = results(op, tensors), results(program(name), tensors)
    if len(found) != len(expected):
        return f"{len(found)} values, not {len(expected)}"
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        try:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
        except AssertionError as error:
            return f"value {place}: {error}"
    return ""


def main(library: str, names: list[str]) -> None:
    torch.ops.load_library(library)
    print(json.dumps({name: apart(name, program(name).tensors) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
