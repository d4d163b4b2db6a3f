"""Tensors that a program makes from numbers, as lines of C++ that run on every device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pullback.capture.joint import CaptureInput
from pullback.derive.source import small_constant
from pullback.emit.cpp.values import DTYPES, literal, no_cpp_form


def constant_line(one: CaptureInput, name: str, parameters: Sequence[str]) -> str:
    """The line that makes the constant `one`; it lies where the first of `parameters` does.

    It is made by ops, so that it can be traced with everything else.
    """
    tensor = small_constant(one, to="emitted")
    if tensor.dtype not in DTYPES:
        raise no_cpp_form("a constant of this dtype", f"{tensor.dtype}")
    where = f"{parameters[0]}.options()" if parameters else "at::TensorOptions()"
    options = f"{where}.dtype({DTYPES[tensor.dtype]})"
    sizes = f"{{{', '.join(map(str, tensor.shape))}}}"
    values = tensor.detach().cpu().flatten()
    if len({*map(repr, values.tolist())}) == 1 and not torch.isnan(values).any():
        return f"const auto {name} = at::full({sizes}, {literal(values[0].item())}, {options});"
    if not values.numel():
        return f"const auto {name} = at::empty({sizes}, {options});"
    items = ", ".join(f"at::scalar_tensor({literal(v)}, {options})" for v in values.tolist())
    return f"const auto {name} = at::stack({{{items}}}).reshape({sizes});"
