"""The parameters of a kernel: pointers, strides, sizes and constants, and what the host passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from pullback.triton_codegen.axes import Axis
from pullback.triton_codegen.expressions import HELPERS
from pullback.triton_codegen.plan import Group, Kernel, KernelPlan
from pullback.triton_codegen.sizes import Sizes

_TAKEN = ("row", "col", "inside", "in_rows", "in_cols", "tl", "triton", "program", "n_rows",
          "n_cols", "programs", "start", "step")  # fmt: skip
"""Names that have a meaning in every kernel."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel: its name, and what the host passes for it."""

    name: str
    given: str
    is_constant: bool = False


@dataclass(eq=False)
class KernelParams:
    """The parameters that a kernel turned out to need, each under a name of its own."""

    plan: KernelPlan
    kernel: Kernel
    names: Mapping[str, str]
    sizes: Sizes
    tensors: dict[fx.Node, str] = field(default_factory=dict)
    pointers: list[Param] = field(default_factory=list)
    strides: list[Param] = field(default_factory=list)
    scalars: dict[str, Param] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {*_TAKEN, *HELPERS})

    def listed(self) -> list[Param]:
        """All of them, in the order in which they are passed."""
        return [*self.pointers, *self.strides, *self.scalars.values()]

    def fresh(self, wish: str) -> str:
        """A name that stands for nothing yet."""
        name, number = wish, 1
        while name in self.taken:
            name, number = f"{wish}_{number}", number + 1
        self.taken.add(name)
        return name

    def name(self, node: fx.Node) -> str:
        """What a value is called on the host."""
        return self.names.get(node.name, node.name)

    def group(self, axis: Axis) -> Any:
        """The group of axes that one is in, or the axis itself."""
        return self.kernel.group_of(axis) or axis

    def groups(self, node: fx.Node) -> list[Any]:
        """The groups of the axes of a value, in the order of its dimensions."""
        return list(dict.fromkeys(self.group(axis) for axis in self.plan.axes.all_of(node)))

    def pointer(self, node: fx.Node, name: str = "") -> str:
        """The address of a tensor."""
        if node not in self.tensors:
            given = name or self.name(node)
            self.tensors[node] = self.fresh(f"{given}_ptr")
            self.pointers.append(Param(self.tensors[node], given))
        return self.tensors[node]

    def stride(self, node: fx.Node, group: Any) -> str:
        """How far apart in a tensor its elements are along a group of axes."""
        if self.kernel.rows == [group]:
            word = "row"
        elif self.kernel.cols == [group]:
            word = "col"
        else:
            word = f"stride_{self.groups(node).index(group)}"
        given = self.sizes.stride(node, group)
        for known in self.strides:
            if known.given == given:
                return known.name
        name = f"{self.name(node)}_{word}"
        self.taken.add(name)
        self.strides.append(Param(name, given))
        return name

    def scalar(self, name: str, given: str) -> str:
        """A number; what is passed already under another name, but for sizes, has that one."""
        for known in self.scalars.values():
            if known.given == given and (known.name == name or not name.startswith("n_")):
                return known.name
        if name not in self.scalars:
            self.scalars[name] = Param(name, given)
            self.taken.add(name)
        return name

    def size(self, group: Group) -> str:
        """The size of a group of axes."""
        for groups, name in ((self.kernel.rows, "n_rows"), (self.kernel.cols, "n_cols")):
            if group in groups:
                name = name if len(groups) == 1 else f"{name}_{groups.index(group)}"
                return self.scalar(name, self.sizes.of_group(group))
        raise KeyError(group)

    def count(self, groups: Sequence[Group], name: str) -> str:
        """The product of the sizes of groups."""
        if len(groups) == 1:
            return self.size(groups[0])
        return self.scalar(name, self.sizes.of_groups(groups))
