"""Programs that came out wrong or raised in somebody's hands, and others of their kind.

Each is a function and the tensors to call it with. Features and backends are asked of them as they
are of PyTorch's ops and of random programs: right, or refused in words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from tests.upstream.cases import Case

Program = Callable[..., Any]


@dataclass(frozen=True)
class _Reported:
    """A program, and the shapes or tensors of its examples."""

    program: Program
    examples: tuple[Any, ...]
    dtype: torch.dtype

    def case(self) -> Case:
        """The program with tensors: drawn where a shape stands, and then requiring grad."""
        generator = torch.Generator().manual_seed(0)
        drawn: list[Tensor] = []
        for example in self.examples:
            if isinstance(example, Tensor):
                drawn.append(example)
                continue
            wide = torch.complex128 if self.dtype.is_complex else torch.float64
            drawn.append(torch.randn(example, dtype=wide, generator=generator).to(self.dtype))
        needs = tuple(t.is_floating_point() or t.is_complex() for t in drawn)
        return Case(self.program, tuple(drawn), needs, self.program.__name__)


PROGRAMS: dict[str, _Reported] = {}


def _of(*examples: Any, dtype: torch.dtype = torch.float64) -> Callable[[Program], Program]:
    """Register a program with the shapes, or the tensors, of an example."""

    def register(program: Program) -> Program:
        name = program.__name__.strip("_")
        name = name if name not in PROGRAMS else f"{name}, {len(PROGRAMS)}"
        PROGRAMS[name] = _Reported(program, examples, dtype)
        return program

    return register


def case_of(name: str) -> Case:
    """The case of a program, by its name."""
    return PROGRAMS[name].case()


# ---- pools: what Inductor once lost ----


@_of((1, 1, 5, 5), (1, 1, 2, 2))
@_of((1, 1, 5, 5), (1, 1, 2, 2), dtype=torch.float32)
@_of((2, 3, 8, 6), (3, 3, 3, 3))
def conv_pools(x: Tensor, w: Tensor) -> Any:
    c = F.conv2d(x, w, padding=1)
    return (
        F.max_pool2d(c, 2),
        F.avg_pool2d(c, 2, 1),
        F.interpolate(c, scale_factor=2.0, mode="bilinear"),
    )


@_of((1, 2, 7, 7))
@_of((1, 2, 4, 6), dtype=torch.float32)
def pools(c: Tensor) -> Any:
    return (
        F.max_pool2d(c, 2),
        F.avg_pool2d(c, 2, 1),
        F.interpolate(c, scale_factor=2.0, mode="bilinear"),
    )


# ---- constants ----


@_of((3,))
@_of((2, 3), dtype=torch.float32)
def one_of_two_constants(x: Tensor) -> Any:
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    c = x * b
    del c
    return x * a


@_of((3,))
@_of((1, 3))
@_of((0, 3))
def two_constants(x: Tensor) -> Any:
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    return (x * a).sin() + x * b, (x + b) * a


@_of((3,), (3,))
def names_of_constants(constant: Tensor, constant_1: Tensor) -> Any:
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    return constant * a + constant_1.exp() * b


@_of((2, 2), (2, 2), (2, 2))
def names_of_the_text(grad: Tensor, ctx: Tensor, torch_: Tensor) -> Any:
    return grad * ctx.sin() * torch_


@_of((3, 4, 2, 3))
def two_lists(x: Tensor) -> Any:
    return x[:, [0, 1], :, [0, 1]]


@_of((3, 5))
def literal_targets(x: Tensor) -> Any:
    return F.cross_entropy(x, torch.tensor([1, 0, 4]))


@_of((4,))
def many_constants(x: Tensor) -> Any:
    mask = torch.tensor([True, False, True, True])
    order = torch.tensor([3, 1, 0, 2])
    small = torch.tensor(0.5, dtype=torch.float32)
    whole = torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    none = torch.empty(0, dtype=torch.float64)
    y = torch.where(mask, x, x[order]) * small + whole
    return torch.cat([y, none]), y.masked_fill(mask, 7.0)


@_of((3,))
def odd_constants(x: Tensor) -> Any:
    edge = torch.tensor([float("inf"), -0.0, 1e-300])
    return torch.minimum(x, edge) * torch.tensor([1.0, 1 / 3, 2.0])


# ---- sizes ----


@_of((5, 3))
@_of((1, 3))
@_of((4, 2), dtype=torch.float32)
def chunk_loop(x: Tensor) -> Any:
    total = x.new_zeros(())
    for i in range(0, x.shape[0], 2):
        total = total + x[i : i + 2].logsumexp(-1).sum()
    return total / x.shape[0]


@_of((4, 3))
@_of((1, 1))
@_of((0, 3))
def by_its_size(x: Tensor) -> Any:
    return x.sin().sum(0) / max(x.shape[0], 1), x * x.numel()


@_of((4, 3), (3, 6), torch.tensor([0, 5, 2, 2]))
def chunked_loss(x: Tensor, w: Tensor, y: Tensor) -> Any:
    parts = [
        F.cross_entropy(a @ w, b, reduction="sum")
        for a, b in zip(x.split(2), y.split(2), strict=True)
    ]
    return torch.stack(parts).sum() / x.shape[0]


class _MeanOfSquares(TorchFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * x).sum() / x.numel()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * g * x / x.numel()


@_of((2, 3))
def size_in_backward(x: Tensor) -> Any:
    return _MeanOfSquares.apply(x.sin())


@_of((3, 1))
@_of((1,))
@_of((0,))
@_of((0, 2), dtype=torch.float32)
def first_two_and_sums(x: Tensor) -> Any:
    return x[:2], x.cumsum(0), x.sum(-1, keepdim=True) * x


# ---- detached, aliased ----


@_of((3,))
@_of((2, 2), dtype=torch.float32)
def value_and_detached(x: Tensor) -> Any:
    y = x.sin() * 2
    return y, y.detach()


@_of((3,))
def detached_and_value(x: Tensor) -> Any:
    y = x.sin() * 2
    return {"kept": y.detach(), "value": y, "view": y.detach().view(-1)}


@_of((2, 3))
def detached_view(x: Tensor) -> Any:
    y = x.exp()
    return y.t(), y.t().detach(), y.detach().t(), x.detach() * y


# ---- casts ----


@_of((4, 3), dtype=torch.float32)
@_of((5,))
def cast_and_back(x: Tensor) -> Any:
    return x.bfloat16().to(x.dtype) * x


@_of((4, 4), dtype=torch.float32)
@_of((4, 4), dtype=torch.bfloat16)
def fake_quantised(x: Tensor) -> Any:
    scale = x.detach().abs().amax() / 7
    q = (x / scale).round().clamp(-8, 7) * scale
    return (x + (q - x).detach()).half().to(x.dtype) * x


# ---- as_strided ----


@_of((6,))
@_of((8,), dtype=torch.float32)
def strided_view(x: Tensor) -> Any:
    return x.as_strided((2, 2), (2, 1)).sin()


# ---- losses with nothing to lose ----


@_of((3, 5), torch.full((3,), -100))
@_of((3, 5), torch.tensor([-100, 2, -100]))
def ignored_labels(x: Tensor, y: Tensor) -> Any:
    return F.cross_entropy(x, y, reduction="sum"), F.nll_loss(x, y, reduction="none")


@_of((3, 5), torch.full((3,), -100), dtype=torch.float32)
@_of((3, 5), torch.full((3,), -100))
def mean_over_ignored_labels(x: Tensor, y: Tensor) -> Any:
    return F.cross_entropy(x, y)


# ---- numbers at the ends of what a dtype holds ----


@_of(torch.tensor([1e-35, -2e-36, 3e-38]))
@_of(torch.tensor([1e-300, 1e-310], dtype=torch.float64))
def large_factors(x: Tensor) -> Any:
    return (x * 1e30) * 1e30, (x / 1e-20) / 1e-20, (x + 1e30) - 1e30


@_of(torch.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]], dtype=torch.float64))
@_of(torch.tensor([[1.0, 0.0, 3.0], [4.0, 2.0, -1.0]], dtype=torch.float64))
def cumprod_with_zeros(x: Tensor) -> Any:
    return x.cumprod(-1) * x


@_of(torch.tensor([1.0, 0.0, float("inf")], dtype=torch.float64))
@_of(torch.tensor([1.0, 0.0, float("nan"), 0.0], dtype=torch.float64))
def prod_with_zeros(x: Tensor) -> Any:
    return x.prod() + x[:1].prod(0)


@_of(
    torch.tensor([float("nan"), 0.0, 1.0, -1.0, 3.0, -3.0, 6.0, float("inf")], dtype=torch.float64)
)
@_of(torch.tensor([float("nan"), 0.0, 1.0, -1.0, 3.0, -3.0, 6.0, -float("inf")]))
def activations(x: Tensor) -> Any:
    rows = F.elu(x), F.celu(x), F.selu(x), F.hardtanh(x), F.relu6(x), F.hardswish(x), F.relu(x)
    return torch.stack([*rows, F.leaky_relu(x), F.threshold(x, 0.1, 0.2), F.softplus(x)])


@_of(torch.tensor([float("nan"), 0.0, 0.5, -0.5, 2.0], dtype=torch.float64))
def shrinks(x: Tensor) -> Any:
    return F.hardshrink(x), F.tanhshrink(x), F.hardsigmoid(x.float())


# ---- complex ----


@_of((3,), dtype=torch.complex128)
@_of((3,))
@_of((2,), dtype=torch.complex64)
def complex_numbers(x: Tensor) -> Any:
    return x * 1j, x / 2j, 1j / x, (x + 1j) * (x - 2j), 2j - x


@_of((4,), dtype=torch.complex128)
@_of((4,))
def spectrum(x: Tensor) -> Any:
    y = torch.fft.fft(x)
    return (y * y.conj()).real, torch.fft.ifft(y)[:2], torch.fft.rfft(x.real, n=3)


@_of((3, 2, 2), dtype=torch.float64)
def as_complex(x: Tensor) -> Any:
    y = torch.view_as_complex(x * 1)
    return torch.view_as_real(y * y.conj() + 1j), y.abs()


@_of((2, 3), dtype=torch.complex128)
def complex_svd(x: Tensor) -> Any:
    return torch.linalg.svdvals(x), x.angle().sin()


# ---- views of what is expanded ----


@_of((4, 3))
@_of((1, 3))
def flat_views(x: Tensor) -> Any:
    return (x * 1).view(-1), x.clone().contiguous().view(-1), (x + 0).reshape(3, -1)


# ---- no dimension, or no element ----


@_of(())
@_of((), dtype=torch.float32)
def no_dimension(x: Tensor) -> Any:
    rows = [
        x.softmax(0),
        x.cumsum(0),
        x.logsumexp(0),
        x.sum(-1),
        x.amax(0),
        x.flip(0),
        x.sort(0)[0],
    ]
    return torch.stack([*rows, x.cumprod(0), x.log_softmax(-1), x.mean(0), x.prod(0), x.max(0)[0]])


@_of((0, 4))
@_of((2, 0))
def no_element(x: Tensor) -> Any:
    return x.reshape(0, 2, 2).sin(), x.reshape(-1, 1).sum(0), x.flatten() * 2


# ---- second order of the text ----


@_of((4,))
def changed_in_place(x: Tensor) -> Any:
    t = x.sin()
    t[0] = x[1] * x[2]
    t[1:] *= x[0]
    return t


@_of(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
def logits(x: Tensor) -> Any:
    return torch.logit(x), torch.logit(x, eps=0.2)


# ---- what users expect to work ----


@_of((1, 2, 5, 5))
@_of((2, 1, 7, 4), dtype=torch.float32)
def interpolated(x: Tensor) -> Any:
    return F.interpolate(x, scale_factor=1.7), F.interpolate(x, scale_factor=0.6, mode="bilinear")


@_of((4, 3))
def named_tuples(x: Tensor) -> Any:
    return x.max(0), x.sort(-1), x.topk(2, 0), x.cummax(0)


@_of((3, 3))
def qr_parts(x: Tensor) -> Any:
    return torch.linalg.qr(x)


@_of((3, 4))
def covariance(x: Tensor) -> Any:
    return torch.cov(x)


@_of((3, 4))
def correlation(x: Tensor) -> Any:
    return torch.corrcoef(x)


@_of((3,), (3,), torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
def gaussian_loss(x: Tensor, y: Tensor, v: Tensor) -> Any:
    return F.gaussian_nll_loss(x, y, v)


@_of((4, 3), ())
def filled_by_index(x: Tensor, value: Tensor) -> Any:
    return x.index_fill(0, torch.tensor([0, 2]), value)


@_of((4,))
def masked_in_place(x: Tensor) -> Any:
    y = x.clone()
    y[y > 0] *= 2
    return y


@_of((3,))
def conditional(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@_of((6,))
def segments(x: Tensor) -> Any:
    return torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 1, 3]), unsafe=True)


@_of((3,), (2,))
def loss_of_a_gradient(x: Tensor, y: Tensor) -> Any:
    return x.square().sum() * y, {"sum": y.sum(), "none": None}
