"""Constants as Python writes them."""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from pullback.errors import UnsupportedOpError


def python_literal(arg: Any) -> str:
    """A constant, or a list of such, as Python writes it; the one name in it is `torch`."""
    if isinstance(arg, list):
        return f"[{', '.join(map(python_literal, arg))}]"
    if isinstance(arg, float) and math.isfinite(arg):
        return re.sub(r"e([+-])0*(\d)", lambda m: "e" + m[1].strip("+") + m[2], repr(arg))
    if isinstance(arg, float):
        return f'float("{arg}")'
    if isinstance(arg, complex) and not (math.isfinite(arg.real) and math.isfinite(arg.imag)):
        return f"complex({python_literal(arg.real)}, {python_literal(arg.imag)})"
    if isinstance(arg, torch.dtype | torch.layout | torch.memory_format):
        return str(arg)
    if isinstance(arg, torch.device):
        return f'torch.device("{arg}")'
    if arg is None or isinstance(arg, bool | int | float | complex):
        return repr(arg)
    if isinstance(arg, str):
        return '"' + repr(arg)[1:-1].replace('"', '\\"') + '"'
    raise UnsupportedOpError(
        "a constant in the graph must be a literal to be printed",
        got=f"{type(arg).__name__}",
        fix="pass it as an argument of the function",
    )
