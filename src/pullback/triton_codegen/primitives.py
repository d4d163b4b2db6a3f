"""A captured program in ops that a kernel computes element by element, cut for few bytes moved.

A fused op of PyTorch computes in float32 and rounds its result once. Here it is written out in
float32, by the same formulas that `graph.simplify` prints, with casts around them. What is saved is
decided after that: one number per row (`logsumexp`, `rstd`) rather than a copy of the rows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pullback.capture.joint import Capture
from pullback.derive.recipe import Parts
from pullback.derive.source import parts_in_order
from pullback.errors import InternalError
from pullback.graph.cut import cut
from pullback.graph.names import names_of
from pullback.graph.parts import BACKWARD, JointGraph, phase_of
from pullback.graph.rewrite import RewriteRule, Table, rule
from pullback.graph.simplify import READABLE, activations, losses, norms, simplify
from pullback.graph.split import split
from pullback.graph.values import (
    Value,
    aten,
    named_value,
    narrowed_to,
    same,
    same_layout,
    same_sizes,
    tensor_of,
)
from pullback.triton_codegen.formulas import FORMULAS, PLACES, computed_size

NARROW = (torch.bfloat16, torch.float16)


def kernel_parts(captured: Capture, save: str | int, wanted: Sequence[bool] = ()) -> Parts:
    """The program of a capture in primitive ops, cut and split.

    `wanted` says for each tensor among the arguments whether its gradient is computed; by default
    all are.
    """
    joint = simplify(captured.joint, TABLE, across_phases=True)
    if not isinstance(joint, JointGraph):
        raise InternalError("simplify must give back what it was given", got=type(joint).__name__)
    for node in joint.graph.find_nodes(op="call_function", target=aten.amax.default):
        node.meta["is_shift"] = all(_is_shifted(user, node) for user in node.users)
    free = frozenset(i for i, one in enumerate(captured.inputs) if one.free)
    needed = [i for i, one in enumerate(captured.inputs) if one.needs]
    asked = [n for n, i in enumerate(needed) if i >= len(wanted) or wanted[i]]
    chosen = cut(joint, save, free=free, needed=asked if wanted else None)
    forward, backward = split(joint, chosen)
    given = tuple(one.name for one in captured.inputs)
    names = names_of(joint, captured.local_names, given, differentiated=needed)
    return parts_in_order(Parts(joint, chosen, forward, backward, names))


def _is_shifted(user: fx.Node, largest: fx.Node) -> bool:
    """Whether NaN reaches what a user gives without its largest number, by exponentials."""
    if user.target in (aten.abs.default, aten.eq.Scalar, aten.masked_fill.Scalar):  # of `logsumexp`
        return all(_is_shifted(one, largest) for one in user.users)
    if user.target is aten.sub.Tensor and user.args[0] is largest.args[0]:
        return all(one.target is aten.exp.default for one in user.users)
    if user.target is not aten.add.Tensor:
        return False
    node: Any = user.args[1]
    for target in (aten.log.default, aten.sum.dim_IntList, aten.exp.default, aten.sub.Tensor):
        if not isinstance(node, fx.Node) or node.target is not target:
            return False
        node = node.args[0]
    return node is largest.args[0]


# ---- fused ops, in float32 ----


def fused(op: Any, formula: Callable[..., Any]) -> RewriteRule:
    """The rule that writes `op` out as `formula` in float32, and rounds its results once."""

    def rewrite(node: Value) -> Any:
        results = formula(*map(_widened, node.args), **node.kwargs)
        if not isinstance(results, tuple):
            return None if results is None else _like(results, node.val)
        pairs = zip(results, node.val, strict=False)
        return tuple(r if r is None else _like(r, v) for r, v in pairs)

    name = str(op.name()).partition("::")[2].removesuffix(".default").replace("_", "-")
    why = "the kernel of the op computes in float32 and rounds its result once"
    return RewriteRule(f"fused-{name.strip('-')}", why, (op,), rewrite, keeps_strides=False)


def _widened(arg: Any) -> Any:
    if isinstance(arg, Value) and isinstance(arg.val, torch.Tensor) and arg.val.dtype in NARROW:
        return arg.to(torch.float32)
    return arg


def _like(value: Any, expected: torch.Tensor) -> Any:
    """A result of a formula in the dtype and layout of the op's."""
    found = _rounded(value, expected.dtype)
    if same_sizes(found.val.shape, expected.shape) and not same_layout(found.val, expected):
        return found.made(aten.clone.default, memory_format=torch.contiguous_format)
    return found


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    if value.dtype == dtype:
        return value
    rounded = value.to(dtype)
    rounded.node.meta["is_implicit"] = True
    return rounded


@rule("unrounded", aten._to_copy.default, why="what a fused op rounds for the next is its affair")
def unrounded(node: Value) -> Any:
    """float32(bfloat16(x)) -> x, where the program itself does not round x"""
    inner: Any = node.node.args[0]
    if not isinstance(inner, fx.Node) or inner.target is not aten._to_copy.default:
        return None
    source = inner.args[0]
    is_own = inner.meta.get("is_implicit") or phase_of(inner) == BACKWARD
    is_output = any(user.op == "output" for user in inner.users)  # it is in memory anyway
    if not is_own or is_output or narrowed_to(inner) is None or not isinstance(source, fx.Node):
        return None
    wide, value = tensor_of(source), tensor_of(node.node)
    is_back = wide is not None and value is not None and wide.dtype == value.dtype
    return node.maker.wrap(source) if is_back else None


def half_gelu(node: Value) -> Any:
    """x times the share of the normal distribution below it, in a half type."""
    x, kind = node.args[0], node.kwargs.get("approximate", "none")
    if x.dtype not in NARROW or kind != "none":
        return None
    x = x.to(torch.float32)
    return _rounded(x * x.made(aten.special_ndtr.default), node.dtype)


def half_gelu_backward(node: Value) -> Any:
    """Its gradient, in a half type: that of `tanh` and of float32 has its own formula."""
    g, x = node.args[0], node.args[1]
    if x.dtype not in NARROW or node.kwargs.get("approximate", "none") != "none":
        return None
    g, x = g.to(torch.float32), x.to(torch.float32)
    share = named_value("share", x.made(aten.special_ndtr.default))
    density = named_value("density", (x * x * -0.5).exp() * (1 / math.sqrt(2 * math.pi)))
    return _rounded(g * (share + x * density), node.dtype)


def softmax_by_rows(x: Any, dim: int, half_to_float: bool) -> Any:
    """exp(x), shifted by its largest number, as a share of the sum."""
    e = named_value("e", (x - _largest(x, dim)).exp())
    return e / e.sum(dim, keepdim=True)


def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """x less one number per row."""
    return x - _logsumexp(x, dim)


def _largest(x: Any, dim: int) -> Any:
    return named_value("largest", x.made(aten.amax.default, [dim], True))


def _logsumexp(x: Any, dim: int) -> Any:
    largest = _largest(x, dim)
    total = named_value("total", (x - largest).exp().sum(dim, keepdim=True))
    return named_value("lse", largest + total.made(aten.log.default))


def logsumexp(x: Any, dims: Any, keepdim: bool = False) -> Any:
    """log(sum(exp(x))), which is infinite where all or one of x is."""
    if len(dims) != 1:
        return None
    largest = _largest(x, dims[0])
    shift = largest.masked_fill(largest.made(aten.abs.default).eq(float("inf")), 0.0)
    total = (x - shift).exp().sum(dims[0], keepdim=True)
    found = shift + total.made(aten.log.default)
    return found if keepdim else found.squeeze(dims[0])


def variance(x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The mean square of what differs from the mean."""
    if correction not in (0, 1, None):
        return None
    dims = dims or list(range(x.dim()))
    d = x - x.mean(dims, keepdim=True)
    if correction == 0:
        return (d * d).mean(dims, keepdim=keepdim)
    count: Any = 1
    for dim in dims:
        count = computed_size(operator.mul, x.shape[dim], count)
    return (d * d).sum(dims, keepdim=keepdim) / computed_size(operator.sub, count, 1)


def deviation(x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The root of the variance."""
    found = variance(x, dims, correction=correction, keepdim=keepdim)
    return None if found is None else found.made(aten.sqrt.default)


# ---- losses of classes ----


def nll_loss_by_rows(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    """Less the value at the class of each row that counts, and what the sum is divided by."""
    if x.dim() != 2:
        return None
    keep = named_value("counts", target.ne(ignored))
    classes = named_value("classes", target.masked_fill(target.eq(ignored), 0))
    picked = -x.gather(1, classes.unsqueeze(1)).squeeze(1)
    share = keep.to(x.dtype)
    if weight is not None:
        share = share * weight.gather(0, classes)
        picked = picked * weight.gather(0, classes)
    loss = picked.masked_fill(target.eq(ignored), 0)
    if not reduction:
        return loss, x.new_zeros([])
    count = named_value("count", share.sum())
    total = loss.sum()
    return (total / count if reduction == losses.MEAN else total), count


def nll_loss_backward_by_rows(
    g: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, count: Any
) -> Any:
    """Less the share of each row that counts, at its class."""
    if x.dim() != 2:
        return None
    skip = target.eq(ignored).unsqueeze(1)
    classes = target.unsqueeze(1).masked_fill(skip, 0)
    share = -g / count if reduction == losses.MEAN else -g
    share = share if reduction else share.unsqueeze(1)
    if weight is not None:
        share = share * weight.gather(0, classes.squeeze(1)).unsqueeze(1)
    elif reduction:
        share = share.expand(list(classes.shape))
    share = named_value("share", share.masked_fill(skip, 0))
    return x.new_zeros(x.shape).scatter(1, classes, share)


def huber(x: Any, y: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    """Half the square of x - y, linear past delta."""
    d = (x - y).made(aten.abs.default)
    loss = (0.5 * d * d).where(d <= delta, (d - 0.5 * delta) * delta)
    return losses.reduced(loss, reduction)


def smooth_l1(x: Any, y: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    """As `huber`, divided by beta."""
    d = (x - y).made(aten.abs.default)
    loss = d if not beta else (d * d * (0.5 / beta)).where(d < beta, d - 0.5 * beta)
    return losses.reduced(loss, reduction)


def binary_cross_entropy(x: Any, y: Any, weight: Any = None, reduction: int = losses.MEAN) -> Any:
    """y log(x) + (1 - y) log(1 - x), each logarithm at least -100."""
    log = x.made(aten.log.default).clamp(min=-100.0)
    rest = (-x).made(aten.log1p.default).clamp(min=-100.0)
    loss = (y - 1) * rest - y * log
    return losses.reduced(loss if weight is None else loss * weight, reduction)


def fused_rms_norm(x: Any, shape: Any, weight: Any, eps: Any) -> Any:
    """The output, and the inverse root of the mean square."""
    dims = list(range(-len(shape), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = named_value("rstd", ((x * x).mean(dims, keepdim=True) + eps).rsqrt())
    return norms.scaled(x * rstd, weight), rstd


def fused_rms_norm_backward(g: Any, x: Any, shape: Any, rstd: Any, weight: Any, mask: Any) -> Any:
    """The gradients of x and of the weight."""
    inner, outer = list(range(-len(shape), 0)), list(range(x.dim() - len(shape)))
    xhat = named_value("xhat", x * rstd)
    grad_xhat = g if weight is None else named_value("grad_xhat", g * weight)
    slope = named_value("slope", (grad_xhat * xhat).mean(inner, keepdim=True))
    grad_x = rstd * (grad_xhat - xhat * slope)
    has_weight = mask[1] and weight is not None
    return grad_x, ((g * xhat).sum(outer) if outer else g * xhat) if has_weight else None


@rule(
    "one-hot",
    *(aten.scatter.src, aten.scatter.value, aten.scatter_add.default),
    why="one element of each row is replaced, or added to",
)
def one_hot(node: Value) -> Any:
    """scatter(x, dim, index, y) -> y where the place is the index, else x"""
    into, dim, index, source = node.args
    if not isinstance(index, Value) or not into.dim():
        return None
    dim %= into.dim()
    sizes = tuple(index.val.shape)
    if not isinstance(sizes[dim], int) or sizes[dim] != 1:
        return None
    pairs = enumerate(zip(sizes, into.val.shape, strict=True))
    if not all(same(a, b) for d, (a, b) in pairs if d != dim):
        return None
    across = [1] * into.dim()
    across[dim] = -1
    size = into.shape[dim]
    places = node.maker.call(aten.arange.default, size, dtype=torch.int64, device=into.val.device)
    places = places.made(aten.view.default, across)
    chosen = places.made(aten.eq.Tensor, index)
    chosen.node.meta["one_hot"] = dim
    if not isinstance(source, Value):
        source = node.maker.call(
            aten.full.default, [], source, dtype=into.val.dtype, device=into.val.device
        )
    if node.target is aten.scatter_add.default and into.target not in _ZEROS:
        source = into + source
    return node.maker.call(aten.where.self, chosen, source, into)


@rule("one-hot-sum", aten.sum.dim_IntList, why="all but one element of each row are zero")
def one_hot_sum(node: Value) -> Any:
    """sum(y where the place is the index, else 0) -> y"""
    chosen, dims = node.args[0], node.args[1]
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    if chosen.target is not aten.where.self or len(dims) != 1 or not keepdim:
        return None
    mask, source, rest = chosen.args
    dim = dims[0] % chosen.dim()
    is_one_hot = mask.node.meta.get("one_hot") == dim and rest.node.target in _ZEROS
    fits = source.dim() in (0, chosen.dim()) and (
        not source.dim() or same(source.val.shape[dim], 1)
    )
    if not is_one_hot or not fits or source.dtype != node.dtype:
        return None
    return source if source.dim() else None


_ZEROS = (aten.zeros_like.default, aten.new_zeros.default, aten.zeros.default)


@rule("var-mean", aten.var_mean.correction, why="both are computed of the same row")
def var_mean(node: Value) -> Any:
    """The variance and the mean."""
    x, dims = node.args[0], node.args[1]
    wide = _widened(x)
    found = variance(wide, dims, **node.kwargs)
    if found is None:
        return None
    mean = wide.mean(dims, keepdim=node.kwargs.get("keepdim", False))
    return _rounded(found, x.dtype), _rounded(mean, x.dtype)


_FUSED: dict[Any, Callable[..., Any]] = {
    aten._softmax.default: softmax_by_rows,
    aten._log_softmax.default: log_softmax,
    aten.logsumexp.default: logsumexp,
    aten.var.correction: variance,
    aten.std.correction: deviation,
    aten.nll_loss_forward.default: nll_loss_by_rows,
    aten.nll_loss_backward.default: nll_loss_backward_by_rows,
    aten.huber_loss.default: huber,
    aten.smooth_l1_loss.default: smooth_l1,
    aten.binary_cross_entropy.default: binary_cross_entropy,
    aten.binary_cross_entropy_backward.default: losses.binary_cross_entropy_backward,
    aten.mse_loss.default: losses.mse_loss,
    aten.mse_loss_backward.default: losses.mse_loss_backward,
    aten.huber_loss_backward.default: losses.huber_loss_backward,
    aten.smooth_l1_loss_backward.default: losses.smooth_l1_loss_backward,
    aten.native_layer_norm.default: norms.layer_norm,
    aten.native_layer_norm_backward.default: norms.layer_norm_backward,
    aten.native_group_norm.default: norms.group_norm,
    aten.native_group_norm_backward.default: norms.group_norm_backward,
    aten.sigmoid_backward.default: activations.sigmoid_backward,
    aten.tanh_backward.default: activations.tanh_backward,
    aten.threshold_backward.default: activations.threshold_backward,
    aten.leaky_relu_backward.default: activations.leaky_relu_backward,
    aten.silu_backward.default: activations.silu_backward,
    aten.gelu_backward.default: activations.gelu_backward,
    aten.mish_backward.default: activations.mish_backward,
    aten.softplus_backward.default: activations.softplus_backward,
    aten.log_sigmoid_backward.default: activations.log_sigmoid_backward,
    aten._softmax_backward_data.default: lambda g, y, dim, dtype: activations.softmax_backward(
        g, y, dim, g.dtype
    ),
    aten._log_softmax_backward_data.default: lambda g, y, dim, dtype: (
        activations.log_softmax_backward(g, y, dim, g.dtype)
    ),
}
_LATER = ("_fused_rms_norm", fused_rms_norm), ("_fused_rms_norm_backward", fused_rms_norm_backward)
for _name, _formula in _LATER:  # in newer releases of PyTorch
    if hasattr(aten, _name):
        _FUSED[getattr(aten, _name).default] = _formula

_WHY = "exact to 2e-6, where the dtype is to 5e-4 or 4e-3"

TABLE: Table = (
    RewriteRule("half-gelu", _WHY, (aten.gelu.default,), half_gelu),
    RewriteRule("half-gelu-backward", _WHY, (aten.gelu_backward.default,), half_gelu_backward),
    *(fused(op, formula) for op, formula in (_FUSED | FORMULAS).items()),
    *PLACES,
    one_hot,
    one_hot_sum,
    var_mean,
    unrounded,
    *READABLE,
)
