"""Convolutions and their gradients, as functions of `torch.nn.functional` and `torch.nn.grad`."""

from __future__ import annotations

from typing import Any

from torch import fx

from pullback.graph.spelling.expressions import Expression, PythonText, PythonWriter, Spellings
from pullback.graph.spelling.views import rank
from pullback.graph.values import aten, tensor_of


def convolution(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.functional.conv2d(x, w, b, stride=2)`."""
    source, weight, bias, stride, padding, dilation, is_transposed, extra, groups = node.args
    count = rank(weight) - 2
    if count not in (1, 2, 3) or rank(source) != count + 2:
        return None
    extra = extra if is_transposed else [0]
    kwargs = settings(stride, padding, dilation, groups, extra)
    name = f"conv_transpose{count}d" if is_transposed else f"conv{count}d"
    tensors = [source, weight] if bias is None else [source, weight, bias]
    return writer.call(f"torch.nn.functional.{name}", *tensors, **kwargs)


def gradient(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.grad.conv2d_input(x.shape, w, g)`, where one gradient only is computed."""
    source: Any = node.args[0]
    index: Any = node.args[1]
    if not isinstance(source, fx.Node) or source.target != aten.convolution_backward.default:
        return None
    g, x, w, _, stride, padding, dilation, is_transposed, _, groups, mask = source.args
    count = rank(w) - 2
    is_plain = not is_transposed and count in (1, 2, 3) and index < 2
    if not is_plain or list(mask).count(True) != 1:  # type: ignore[arg-type]
        return None
    kwargs = settings(stride, padding, dilation, groups, [0])
    if index == 0:
        shape = PythonText(f"{writer.arg(x)}.shape") if is_name(writer, x) else sizes(x)
        return writer.call(f"torch.nn.grad.conv{count}d_input", shape, w, g, **kwargs)
    shape = PythonText(f"{writer.arg(w)}.shape") if is_name(writer, w) else sizes(w)
    return writer.call(f"torch.nn.grad.conv{count}d_weight", x, shape, g, **kwargs)


def is_name(writer: PythonWriter, arg: Any) -> bool:
    """Whether an argument stands in the text by its name."""
    return arg in writer.names


def sizes(arg: Any) -> Any:
    """The sizes of a tensor."""
    value = tensor_of(arg)
    return tuple(() if value is None else value.shape)


def settings(stride: Any, padding: Any, dilation: Any, groups: Any, extra: Any) -> dict[str, Any]:
    """The keywords that are not their defaults."""
    given = {
        "stride": (stride, 1),
        "padding": (padding, 0),
        "output_padding": (extra, 0),
        "groups": (groups, 1),
        "dilation": (dilation, 1),
    }
    return {
        key: as_one_number(arg)
        for key, (arg, default) in given.items()
        if as_one_number(arg) != default
    }


def as_one_number(arg: Any) -> Any:
    """A list of equal numbers as one number."""
    is_uniform = isinstance(arg, list | tuple) and len(set(arg)) == 1
    return arg[0] if is_uniform else arg


TABLE: Spellings = {aten.convolution.default: convolution}
