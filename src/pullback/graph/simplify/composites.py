"""Composites: fused ops of PyTorch, written out as the formulas they compute.

A formula is a function of the arguments of the op, made of operators and methods, so that it runs
on tensors as well. Only for float32 and float64: in a narrower type a fused kernel computes in
float32 and rounds once, and the formula would round at every step.

PyTorch's own table of decompositions has all of these ops, and is written for compilers, not to be
read. Printed by it, the gradients of `leaky_relu` and `log_softmax` come out the same. Those of
`logsigmoid` take 14 lines instead of 5, of `huber_loss` 16 instead of 11, of `nll_loss` 19 instead
of 11, of batch norm 16 instead of 9; values lose their names (`xhat`, `slope`, `cdf`), squares are
products, and the one of `softplus` is infinity over infinity where `exp` leaves its range.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pullback.graph.cost import hint_of
from pullback.graph.rewrite import Formula, RewriteRule
from pullback.graph.values import Value, tensor_of

WIDE = (torch.float32, torch.float64)


def composite(
    op: Any, formula: Formula, *, why: str = "", is_late: bool = False, is_shaped: bool = False
) -> RewriteRule:
    """The rule that writes `op` out as `formula`, which takes the same arguments.

    Arguments:
        op: The op.
        formula: A function of the arguments of the op, or None where it has no formula for them.
        why: Why it is right.
        is_late: Whether the rule waits until no other applies.
        is_shaped: Whether results have the shapes of those of the op where symbols do not show it:
            that channels are so many groups of some is known to the op alone.
    """

    def rewrite(node: Value) -> Any:
        if not is_wide(node.node):
            return None
        results = formula(*node.args, **node.kwargs)
        if is_shaped and results is not None:
            for part in node.node.users:
                _shape_like(part, results[part.args[1]])
        return results

    name = str(op.name()).partition("::")[2].removesuffix(".default").replace("_", "-")
    reason = why or "the documented formula of the op; the kernel may round in another order"
    return RewriteRule(name.strip("-"), reason, (op,), rewrite, is_late=is_late)


def _shape_like(part: fx.Node, result: Any) -> None:
    """Give a result the symbolic sizes of the node it stands for, if they agree in numbers."""
    if not isinstance(result, Value):
        return
    before, after = tensor_of(part), tensor_of(result.node)
    if before is not None and after is not None and _hints(before) == _hints(after):
        result.node.meta["val"] = before


def _hints(value: torch.Tensor) -> list[Any]:
    sizes = [hint_of(size) for size in (*value.shape, *value.stride())]
    return [*sizes, value.dtype, value.device]


def is_wide(node: fx.Node) -> bool:
    """Whether every floating-point tensor that a node takes is float32 or float64."""
    dtypes = [value.dtype for arg in node.all_input_nodes if (value := tensor_of(arg)) is not None]
    return all(dtype in WIDE for dtype in dtypes if dtype.is_floating_point or dtype.is_complex)
