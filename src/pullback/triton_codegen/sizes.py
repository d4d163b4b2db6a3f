"""Sizes and strides of a kernel's tensors, as the host reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from pullback.capture.fake import in_words
from pullback.graph.cost import hint_of
from pullback.graph.values import held_value
from pullback.triton_codegen.axes import Axis
from pullback.triton_codegen.plan import Group, Kernel, KernelPlan, holds_tensor

_QUOTIENTS = ("FloatTrueDiv", "FloorDiv", "IntTrueDiv", "Mod")


@dataclass(eq=False)
class Sizes:
    """What the host passes for sizes and strides.

    `names` are those of the tensors on the host. `made` are tensors that are made for the kernels,
    without gaps, in the order of their dimensions. `divisors` are what is divided by on the host.
    """

    plan: KernelPlan
    names: Mapping[str, str]
    made: frozenset[str] = frozenset()
    symbols: dict[str, str] = field(default_factory=dict)
    divisors: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in self.plan.graph.find_nodes(op="placeholder"):
            if holds_tensor(node):
                for dim, size in enumerate(held_value(node).shape):
                    if isinstance(size, torch.SymInt) and size.node.expr.is_symbol:
                        text = f"{self.names.get(node.name, node.name)}.shape[{dim}]"
                        self.symbols.setdefault(str(size.node.expr), text)
            elif isinstance(held_value(node), torch.SymInt):
                expr = held_value(node).node.expr
                if expr.is_symbol:
                    self.symbols.setdefault(str(expr), self.names.get(node.name, node.name))

    @property
    def conditions(self) -> list[Any]:
        """What must hold of sizes for the host to divide by them."""
        parts = (divisor.as_coeff_Add() for divisor in dict.fromkeys(self.divisors))
        return [sympy.Ne(varying, -number) for number, varying in parts]

    def text(self, size: Any) -> str:
        """A size as an expression of the shapes of tensors."""
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return repr(size)
        expression = size.node.expr
        for part in sympy.preorder_traversal(expression):
            if type(part).__name__ in _QUOTIENTS and part.args[1].free_symbols:
                self.divisors.append(_whole(part.args[1]))
        text = in_words(expression, {})
        return re.sub(r"[a-zA-Z_]\w*", lambda m: self.symbols.get(m[0], m[0]), text)

    def of_group(self, group: Group) -> str:
        """The size of a group of axes."""
        return self.of_groups([group])

    def of_groups(self, groups: Sequence[Group]) -> str:
        """The product of the sizes of groups."""
        return self.product([leaf.size for group in groups for leaf in group.leaves])

    def product(self, sizes: Sequence[Any]) -> str:
        """The product of sizes."""
        parts = [self.text(size) for size in sizes]
        parts = [part for part in parts if part != "1"]
        if len(parts) < 2:
            return parts[0] if parts else "1"
        return " * ".join(f"({part})" if re.search(r"[ +-]", part) else part for part in parts)

    def stride(self, node: fx.Node, group: Any) -> str:
        """The stride of a group of axes in a tensor: that of its innermost axis."""
        leaf = group.leaves[-1] if isinstance(group, Group) else group
        name = self.names.get(node.name, node.name)
        for dim, row in enumerate(self.plan.axes.of(node)):
            if leaf in row:
                inner = [self.text(axis.size) for axis in row[row.index(leaf) + 1 :]]
                return " * ".join([f"{name}.stride({dim})", *inner])
        raise KeyError(leaf)

    def is_plain(self, node: fx.Node, kernel: Kernel) -> bool:
        """Whether a tensor is made for the kernels, and lies as a kernel goes over it."""
        if node.name not in self.made:
            return False
        axes = self.plan.axes.all_of(node)
        rows = [leaf for group in kernel.rows for leaf in group.leaves]
        cols = [leaf for group in kernel.cols for leaf in group.leaves]
        return axes in (rows + cols, rows, cols, [])


def _whole(size: Any) -> Any:
    """An expression of sizes without what makes them floating-point numbers."""
    size = size.replace(lambda part: type(part).__name__ == "ToFloat", lambda part: part.args[0])
    return sympy.nsimplify(size, rational=True)


def example_strides(plan: KernelPlan) -> dict[fx.Node, list[tuple[Axis, int]]]:
    """For each tensor of a plan, its axes with their strides as they were in the examples."""
    found: dict[fx.Node, list[tuple[Axis, int]]] = {}
    for node in [*plan.inputs, *plan.outputs, *plan.totals]:
        value = held_value(node)
        row: list[tuple[Axis, int]] = []
        for dim, leaves in enumerate(plan.axes.of(node)):
            step = hint_of(value.stride(dim))
            for leaf in reversed(leaves):
                row.append((leaf, step))
                step *= hint_of(leaf.size)
        found[node] = row
    return found
