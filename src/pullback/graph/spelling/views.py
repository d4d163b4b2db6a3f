"""Views: shapes, transposes, slices and indices, as one writes them by hand."""

from __future__ import annotations

import math
import sys
from typing import Any

from torch import fx

from pullback.graph.spelling.expressions import Expression, PythonText, PythonWriter, Spellings
from pullback.graph.values import aten, same, tensor_of


def rank(node: Any) -> int:
    """The number of dimensions of a tensor."""
    value = tensor_of(node)
    return -1 if value is None else value.dim()


def reshaped(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.flatten(0, 1)` where dimensions are merged, else `x.reshape(...)`.

    Not `view`: the text must also run on a cotangent with other strides.
    """
    source, sizes = node.args
    merged = merged_dims(node)
    if merged:
        return writer.method(source, "flatten", *merged)
    alike = writer.like(sizes)
    if alike:
        return writer.method(source, "reshape", PythonText(f"{alike}.shape"))
    return writer.method(source, "reshape", *(sizes or [()]))  # type: ignore[misc]


def merged_dims(node: fx.Node) -> tuple[int, int] | None:
    """The first and the last of the dimensions that a reshape makes one, if it does just that."""
    before, after = tensor_of(node.args[0]), tensor_of(node)
    if before is None or after is None or not 1 <= after.dim() < before.dim():
        return None
    extra = before.dim() - after.dim()
    # The other dimensions give the size of this one, unless there is nothing to count.
    is_empty = any(isinstance(size, int) and size == 0 for size in before.shape)
    for first in range(after.dim()):
        kept = [*before.shape[:first], *before.shape[first + extra + 1 :]]
        others = [*after.shape[:first], *after.shape[first + 1 :]]
        merged = math.prod(before.shape[first : first + extra + 1])
        if all(map(same, kept, others)) and (not is_empty or same(merged, after.shape[first])):
            return first, first + extra
    return None


def _expanded(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.expand_as(y)` or `x.expand(3, 8)`."""
    source, sizes = node.args[:2]
    value = tensor_of(node)
    alike = writer.like(value.shape) if value is not None else ""
    if alike:
        return writer.method(source, "expand_as", PythonText(alike))
    return writer.method(source, "expand", *(sizes or [()]))  # type: ignore[misc]


def _transposed(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.T` for a matrix."""
    if rank(node) != 2:
        return writer.method(node.args[0], "t")
    return writer.attribute(node.args[0], ".T")


def _swapped(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.mT` for the last two dimensions."""
    source, first, second = node.args
    last = rank(node) - 1
    if last > 0 and {first % (last + 1), second % (last + 1)} == {last, last - 1}:  # type: ignore[operator]
        return writer.attribute(source, ".T" if last == 1 else ".mT")
    return writer.method(source, "transpose", first, second)


def _permuted(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.permute(0, 2, 1)`."""
    source, dims = node.args
    return writer.method(source, "permute", *(dims or [()]))  # type: ignore[misc]


# ---- brackets ----


def bracket(source: Any, dim: Any, index: str) -> str:
    """`[index]`, `[:, index]`, or `[..., index]` for the last of many dimensions."""
    dims = rank(source)
    dim = dim % dims
    before = "..., " if dim == dims - 1 and dims > 2 else ":, " * dim
    return f"[{before}{index}]"


def _selected(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x[:, 0]`, and `z.real` for what is the real part of a complex number."""
    source, dim, index = node.args
    is_part = isinstance(source, fx.Node) and source.target == aten.view_as_real.default
    if is_part and dim in (-1, rank(source) - 1) and index in (0, 1):
        return writer.attribute(source.args[0], ".imag" if index else ".real")  # type: ignore[union-attr]
    return writer.attribute(source, bracket(source, dim, writer.arg(index)))


def _sliced(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x[:, 1:3]`."""
    given: list[Any] = list(node.args)
    source, dim, start, end, step = given + [0, None, None, 1][len(given) - 1 :]
    return writer.attribute(source, bracket(source, dim, stretch(writer, node, start, end, step)))


def stretch(writer: PythonWriter, node: fx.Node, start: Any, end: Any, step: Any) -> str:
    """`1:3`, with nothing where a slice begins or ends with the dimension."""
    place = 1 if node.target == aten.slice.Tensor else 2
    dim: Any = node.args[place] if place < len(node.args) else 0
    first = "" if start in (0, None) else writer.arg(start)
    last = "" if end in (sys.maxsize, None) or ends(node.args[0], dim, end) else writer.arg(end)
    pace = "" if step == 1 else f":{writer.arg(step)}"
    return f"{first}:{last}{pace}"


def assigned(writer: PythonWriter, name: str, node: fx.Node) -> str:
    """`name[:, 0] = part`, for a scatter into a tensor of that name."""
    given: list[Any] = list(node.args)
    if node.target == aten.select_scatter.default:
        base, part, dim, index = given
        place = bracket(base, dim, writer.arg(index))
    else:
        base, part, dim, start, end, step = given + [0, None, None, 1][len(given) - 2 :]
        place = bracket(base, dim, stretch(writer, node, start, end, step))
    if part in writer.inlined and part.target == aten.expand.default:
        part = part.args[0]  # an assignment broadcasts
    return f"{name}{place} = {writer.arg(part)}"


def ends(source: Any, dim: Any, end: Any) -> bool:
    """Whether a slice goes to the end."""
    value = tensor_of(source)
    return isinstance(end, int) and value is not None and same(end, value.shape[dim])


def indexed(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x[i, j]`, with `:` where a dimension is not indexed."""
    source, indices = node.args
    texts = [":" if index is None else writer.arg(index) for index in indices]  # type: ignore[union-attr]
    return writer.attribute(source, f"[{', '.join(texts)}]")


def put(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.index_put((i,), y, accumulate=True)`; by the op where a dimension is not indexed."""
    source, indices, values, *accumulate = node.args
    if None in indices:  # type: ignore[operator]
        return writer.call("torch.ops.aten.index_put", *node.args)
    flag: dict[str, Any] = {"accumulate": True} if accumulate and accumulate[0] else {}
    return writer.method(source, "index_put", tuple(indices), values, **flag)  # type: ignore[arg-type]


def element(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`results[0]`, where several results were not unpacked."""
    return writer.attribute(node.args[0], f"[{node.args[1]}]")


def size(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.shape[0]`."""
    source, dim = node.args
    return writer.attribute(source, f".shape[{dim}]")


def count(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.numel()`."""
    return writer.method(node.args[0], "numel")


TABLE: Spellings = {
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten._unsafe_view.default), reshaped),
    aten.expand.default: _expanded,
    aten.t.default: _transposed,
    aten.transpose.int: _swapped,
    aten.permute.default: _permuted,
    aten.select.int: _selected,
    aten.slice.Tensor: _sliced,
    aten.index.Tensor: indexed,
    aten.index_put.default: put,
    aten.sym_size.int: size,
    aten.sym_numel.default: count,
}
