"""Calls: methods of tensors, functions of `torch` and of `torch.nn.functional`.

An op whose name is that of a method or function is called by it: PyTorch makes both from one
schema. What differs is listed here, or falls back to `torch.ops`, which always runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from pullback.function.slots import op_schema
from pullback.graph.cost import op_name, op_of
from pullback.graph.spelling.expressions import (
    Expression,
    PythonText,
    PythonWriter,
    Spelling,
    Spellings,
)
from pullback.graph.spelling.operators import plain
from pullback.graph.spelling.views import rank
from pullback.graph.values import aten, same_kind, tensor_of

FUNCTIONAL = "torch.nn.functional"


# ---- calls by schema ----

DIMS = ("dim", "dims")
"""Arguments that are dimensions: a list of one may be a number."""

NOISE = {"layout": (torch.strided, None), "pin_memory": (False, None), "implicit": (False,)}
"""Keywords that say nothing with these values."""

DIFFERENT = frozenset(
    {
        *("norm", "split", "split_with_sizes", "stft", "istft", "unique", "lu", "data", "copy"),
        *("index", "to", "resize", "view_copy", "expand_copy", "set", "unsafe_split", "ravel"),
        *("align_to", "rename", "refine_names", "type", "real", "imag", "max_pool2d", "tensor"),
        *("layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm", "embedding"),
        *(
            "block_diag",
            "cartesian_prod",
            "einsum",
            "unique_consecutive",
            "broadcast_tensors",
            "meshgrid",
            "unflatten",
        ),
    }
)
"""Names of methods and functions that are not the op of that name, or take other arguments."""


FAMILIES = {"linalg": torch.linalg, "special": torch.special}
"""Modules whose functions are ops under their name with a prefix."""


def called(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """A call by the name of the op, as a method where its first argument is a tensor."""
    op, name = op_of(node), op_name(node)
    if op is None or op.namespace != "aten" or name.startswith("_") or name in DIFFERENT:
        return None
    args, kwargs = arguments(writer, node)
    owner = node.args[0] if node.args else None
    is_method = tensor_of(owner) is not None and hasattr(torch.Tensor, name)
    if is_method and op_schema(op).arguments[0].name == "self":
        return writer.method(owner, name, *args[1:], **kwargs)
    if hasattr(torch, name) and not name.endswith("_backward"):
        return writer.call(f"torch.{name}", *args, **kwargs)
    family, _, member = name.partition("_")
    if family in FAMILIES and hasattr(FAMILIES[family], member):
        return writer.call(f"torch.{family}.{member}", *args, **kwargs)
    return None


def arguments(writer: PythonWriter, node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as a person writes them: flags by keyword, one dimension without brackets."""
    op = op_of(node)
    schema = op_schema(op).arguments
    args, kwargs = [], dict[str, Any]()
    last = last_meant(node)
    for position, (arg, slot) in enumerate(zip(node.args, schema, strict=False)):
        if position > last:
            break
        if isinstance(arg, bool) or kwargs:
            kwargs[slot.name] = arg
        else:
            args.append(dims(node, arg) if slot.name in DIMS else _alone(slot, arg))
    for key, arg in node.kwargs.items():
        if arg not in NOISE.get(key, ()) and not is_default(schema, key, arg):
            kwargs[key] = _keyword_value(writer, key, arg)
    for place, slot in enumerate(schema):
        # `torch.binary_cross_entropy_with_logits` and its like have another default than the op.
        if slot.name == "reduction" and place >= len(args) and "reduction" not in kwargs:
            given = place < len(node.args)
            kwargs["reduction"] = node.args[place] if given else slot.default_value
    return args, kwargs


def _keyword_value(writer: PythonWriter, key: str, arg: Any) -> Any:
    """A keyword, read from an argument where it is a property of one."""
    return {"device": writer.device, "dtype": writer.dtype}.get(key, lambda value: value)(arg)


SETTINGS = ("shifts", "kernel_size", "stride", "padding", "dilation", "output_size")
"""Lists of numbers, one per dimension: a number alone stands for equal ones.

Where the schema says how many (`int[2]`), that is: the strides of `as_strided` are always a list.
"""


def _alone(slot: Any, arg: Any) -> Any:
    name = slot.name if slot.N is not None else ""
    is_list = name in SETTINGS and isinstance(arg, list | tuple) and len(arg) > 0
    if not is_list or any(not isinstance(each, int) or each != arg[0] for each in arg):
        return arg
    return arg[0] if name != "shifts" or len(arg) == 1 else arg


def last_meant(node: fx.Node) -> int:
    """The position of the last argument that is not its default."""
    schema = op_schema(op_of(node)).arguments
    last = len(node.args) - 1
    while (
        last > 0 and last < len(schema) and is_default(schema, schema[last].name, node.args[last])
    ):
        last -= 1
    return last


def is_default(schema: Any, name: str, arg: Any) -> bool:
    """Whether an argument may be left out."""
    for slot in schema:
        if slot.name == name and slot.has_default_value():
            default = slot.default_value
            is_number = isinstance(arg, int | float) and isinstance(default, int | float)
            is_kind = is_number or type(default) is type(arg)
            return is_kind and isinstance(arg, bool) == isinstance(default, bool) and arg == default
    return False


def dims(node: fx.Node, arg: Any) -> Any:
    """A list of dimensions: one without brackets, counted from the end if it is the last."""
    if isinstance(arg, list | tuple) and all(isinstance(dim, int) for dim in arg):
        return last_as_minus_one(node, arg[0]) if len(arg) == 1 else tuple(arg)
    return last_as_minus_one(node, arg) if isinstance(arg, int) else arg


def last_as_minus_one(node: fx.Node, dim: int) -> int:
    """The last dimension of several counts from the end: it is the same for every rank."""
    is_of_result = isinstance(node.args[0], list | tuple) or op_name(node) == "unsqueeze"
    count = rank(node if is_of_result else node.args[0])
    return -1 if dim == count - 1 and count > 1 else dim


# ---- ops with a form of their own ----


def softmax(name: str) -> Spelling:
    """`x.softmax(-1)`; the flag that casts to float has no such form."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        source, dim, casts = node.args
        if casts or not isinstance(dim, int):
            return None
        return writer.method(source, name, last_as_minus_one(node, dim))

    return spell


def _where(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.where(mask, x, 0.0)`: a constant that no dtype rounds is a number."""
    if len(node.args) != 3:
        return None
    mask, x, y = node.args
    one, two = constant(x), constant(y)
    if one is not x and two is not y:  # two numbers have a dtype of their own
        one = x
    return writer.call("torch.where", mask, one, two)


def constant(arg: Any) -> Any:
    """A number in the place of the tensor that holds it, if every dtype holds it."""
    is_constant = isinstance(arg, fx.Node) and arg.target == aten.scalar_tensor.default
    value = tensor_of(arg) if is_constant else None
    if value is None or not value.is_floating_point():
        return arg
    number = arg.args[0]
    return float(number) if number in (-1, 0, 1) else arg


def conjugate(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.conj()`."""
    return writer.method(node.args[0], "conj")


def _cast(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.to(torch.float64)`."""
    kwargs = {key: arg for key, arg in node.kwargs.items() if arg not in NOISE.get(key, ())}
    source = tensor_of(node.args[0])
    if source is None or kwargs.get("device") in (None, source.device):
        kwargs.pop("device", None)
    else:
        kwargs["device"] = writer.device(kwargs["device"])
    if "dtype" in kwargs:
        kwargs["dtype"] = writer.dtype(kwargs["dtype"])
    if kwargs.keys() == {"dtype"}:
        return writer.method(node.args[0], "to", kwargs["dtype"])
    return writer.method(node.args[0], "to" if kwargs else "clone", **kwargs)


def clamped(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.clamp(min=0)`: a bound alone goes by its name."""
    source, low, high = [*plain(node), None, None][:3]
    if node.target == aten.clamp_max.default:
        low, high = None, low
    if low is not None and high is not None:
        return writer.method(source, "clamp", low, high)
    return writer.method(source, "clamp", **({"max": high} if low is None else {"min": low}))


def sign(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`x.sign()`, which for a real number is the same."""
    value = tensor_of(node.args[0])
    is_complex = value is None or value.is_complex()
    return writer.method(node.args[0], "sgn" if is_complex else "sign")


def created(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.zeros_like(x)`, or `x.new_zeros(...)`: both follow the dtype and device of x."""
    value = tensor_of(node)
    name = op_name(node).removeprefix("new_")
    sizes, *rest = node.args[1:] if op_name(node).startswith("new_") else node.args
    kin = [owner for owner in writer.placeholders if is_kin(value, tensor_of(owner))]
    for owner in kin:
        if value is not None and same_kind(value, tensor_of(owner)):
            return writer.call(f"torch.{name}_like", owner, *rest)
    if not kin:
        return None
    return writer.method(kin[0], f"new_{name}", PythonText(writer.shape(sizes)), *rest)


def is_kin(one: Any, two: Any) -> bool:
    """Whether two tensors have one dtype and device."""
    if one is None or two is None:
        return False
    return bool((one.dtype, one.device) == (two.dtype, two.device))


def embedding(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.functional.embedding(index, weight)`; padding matters to its gradient only."""
    if any(node.args[3:]):
        return None
    weight, index = node.args[:2]
    return writer.call(f"{FUNCTIONAL}.embedding", index, weight)


REDUCTIONS = ("none", "mean", "sum")


def _nll(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.functional.nll_loss(log_probs, labels, reduction="sum")`."""
    args: list[Any] = [*node.args]
    defaults: list[Any] = [None, 1, -100]
    source, target, weight, reduction, ignored = [*args, *defaults[len(args) - 2 :]]
    given: dict[str, Any] = {
        **({} if weight is None else {"weight": weight}),
        **({} if ignored == -100 else {"ignore_index": ignored}),
        **({} if reduction == 1 else {"reduction": REDUCTIONS[reduction]}),
    }
    return writer.call(f"{FUNCTIONAL}.nll_loss", source, target, **given)


def padded(writer: PythonWriter, node: fx.Node) -> Expression | None:
    """`torch.nn.functional.pad(x, (0, 4))`."""
    source, pads, *value = node.args
    if any(isinstance(fill, complex) for fill in value):
        return None
    extra: dict[str, Any] = {"value": value[0]} if value and value[0] != 0 else {}
    return writer.call(f"{FUNCTIONAL}.pad", source, tuple(pads), **extra)  # type: ignore[arg-type]


def activation(name: str, most: int) -> Spelling:
    """A function of `torch.nn.functional` that takes the first `most` arguments of the op."""

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        args, kwargs = arguments(writer, node)
        return writer.call(f"{FUNCTIONAL}.{name}", *args, **kwargs) if len(args) <= most else None

    return spell


def attention(count: int) -> Spelling:
    """A kernel of attention on a CPU with its first `count` arguments contiguous.

    It takes a last stride of 1 for granted and checks nothing. PyTorch chooses it for such inputs
    alone; the text must also run on others.
    """

    def spell(writer: PythonWriter, node: fx.Node) -> Expression | None:
        args = [PythonText(writer.method(arg, "contiguous").text) for arg in node.args[:count]]
        return writer.call(f"torch.ops.{op_of(node)}", *args, *node.args[count:], **node.kwargs)

    return spell


TABLE: Spellings = {
    aten._conj.default: conjugate,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention(3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention(4),
    aten._softmax.default: softmax("softmax"),
    aten._log_softmax.default: softmax("log_softmax"),
    aten.where.self: _where,
    aten._to_copy.default: _cast,
    **dict.fromkeys((aten.zeros.default, aten.ones.default, aten.full.default), created),
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default), created),
    aten.new_full.default: created,
    aten.embedding.default: embedding,
    aten.nll_loss.default: _nll,
    aten.constant_pad_nd.default: padded,
    **dict.fromkeys((aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default), clamped),
    aten.sgn.default: sign,
    **{
        getattr(aten, name).default: activation(name, most)
        for most, names in {
            1: ("gelu", "silu", "mish", "hardswish", "hardsigmoid"),
            2: ("leaky_relu", "elu", "glu"),
            3: ("linear", "softplus", "hardtanh"),
            7: ("avg_pool2d", "avg_pool3d"),
        }.items()
        for name in names
    },
}
