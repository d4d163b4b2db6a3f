"""Composites: fused ops of PyTorch, written out as the formulas they compute.

A formula is a function of the arguments of the op, made of operators and methods, so that it runs
on tensors as well. Only for float32 and float64: in a narrower type a fused kernel computes in
float32 and rounds once, and the formula would round at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pullback.graph.rewrite import Formula, Rule
from pullback.graph.values import Value, tensor_of

WIDE = (torch.float32, torch.float64)


def composite(op: Any, formula: Formula, *, why: str = "", is_late: bool = False) -> Rule:
    """The rule that writes `op` out as `formula`, which takes the same arguments."""

    def rewrite(node: Value) -> Any:
        if not is_wide(node.node):
            return None
        return formula(*node.args, **node.kwargs)

    name = str(op.name()).partition("::")[2].removesuffix(".default").replace("_", "-")
    reason = why or "the documented formula of the op; the kernel may round in another order"
    return Rule(name.strip("-"), reason, (op,), rewrite, is_late=is_late)


def is_wide(node: fx.Node) -> bool:
    """Whether every floating-point tensor that a node takes is float32 or float64."""
    dtypes = [value.dtype for arg in node.all_input_nodes if (value := tensor_of(arg)) is not None]
    return all(dtype in WIDE for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
