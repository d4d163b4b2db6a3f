"""Graphs of small programs, as kernels are made of them."""

from typing import Any

import torch

from pullback.derive.recipe import Parts
from pullback.derive.recipes import Recipes
from pullback.triton_codegen.host import HostNames, phase_text
from pullback.triton_codegen.primitives import kernel_parts


def parts_of(program: Any, *given: torch.Tensor) -> Parts:
    """Forward and backward of a program in primitive ops."""
    return kernel_parts(Recipes(program, "auto").general(given).captured, "auto")


def names_in(parts: Parts) -> HostNames:
    """The names of its nodes."""
    names = HostNames({node.name: text for node, text in parts.names.items()})
    names.given = frozenset(node.name for node in parts.names.given)
    return names


def kernels_of(program: Any, *given: torch.Tensor, phase: str = "forward") -> Any:
    """The kernels of one phase of a program, as text."""
    parts = parts_of(program, *given)
    return phase_text(getattr(parts, phase), phase, names_in(parts)).kernels


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers that require grad."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()
