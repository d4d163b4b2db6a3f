"""Nested containers as flat rows: what `torch.utils._pytree` does, in this one place.

Tuples, lists, dicts, named tuples and whatever else is registered with PyTorch's pytree are
containers; everything else is a leaf.
"""

from __future__ import annotations

import cmath
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pullback.graph.literals import python_literal

Spec = pytree.TreeSpec


def flatten(tree: Any) -> tuple[list[Any], Spec]:
    """The leaves of `tree`, and its form."""
    return pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: Spec) -> Any:
    """The tree of the form `spec` with these leaves."""
    return pytree.tree_unflatten(leaves, spec)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor."""
    return isinstance(leaf, Tensor)


def kept(leaf: Any) -> Any:
    """`leaf` as it is now, whatever becomes of its memory."""
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if is_tensor(leaf) else leaf


def tensor_leaves(tree: Any) -> list[Tensor]:
    """The leaves of `tree` that are tensors."""
    return [leaf for leaf in pytree.tree_leaves(tree) if is_tensor(leaf)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf."""
    return pytree.tree_map(function, tree)


def is_row(spec: Spec) -> bool:
    """Whether a form is a container of leaves, one level deep."""
    return not spec.is_leaf() and all(child.is_leaf() for child in spec.children())


def paths_of(tree: Any) -> list[str]:
    """How each leaf is reached, as Python writes it: `[0]`, `['w']`, `.scale`."""
    return [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(tree)]


def literal_of(leaf: Any) -> str | None:
    """A leaf as Python writes it; None where it has no such form, as a tensor has none."""
    is_plain = leaf is None or isinstance(leaf, bool | int | float | complex | str | torch.dtype)
    if isinstance(leaf, float | complex) and not cmath.isfinite(leaf):
        return python_literal(leaf)
    return repr(leaf) if is_plain else None
