"""The functions that are derived in the tests, as people write them, each with rows of arguments.

`CASES` has one entry per function. A row holds drawn tensors (`normal(4, 3)`), and plain values,
passed as they are; `Case.arguments` draws the tensors, in double precision.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from pullback.derive.backward import derive_function


@dataclass(frozen=True)
class Case:
    """A function with rows of arguments, and what else is known about it.

    Arguments:
        program: The function.
        rows: Arguments for it, of several shapes; the first row is the example it is derived with.
        captures: How many captures serve all rows when every input requires grad.
        near: Why outputs may differ from the plain ones in the last digits; "" if they may not.
        low: Why the plain function has no lower precision; "" if it has.
        truth: The function in plain ops, if `program` holds Functions that PyTorch does not
            differentiate twice, forward, or in batches.
        common: Whether it is among those that every test is tried on, not only the slow ones.
    """

    program: Callable[..., Any]
    rows: Sequence[Sequence[Any]]
    captures: int = 1
    near: str = ""
    low: str = ""
    truth: Callable[..., Any] | None = None
    common: bool = False

    def arguments(
        self, row: int = 0, *, seed: int = 0, needs: bool | Sequence[bool] = True
    ) -> tuple[Any, ...]:
        """The arguments of a row: leaves, of which those that `needs` says require grad."""
        generator = torch.Generator().manual_seed(seed)
        arguments = tuple(_drawn(value, generator) for value in self.rows[row])
        inputs = inputs_of(arguments)
        flags = [needs] * len(inputs) if isinstance(needs, bool) else needs
        for tensor, flag in zip(inputs, flags, strict=True):
            tensor.requires_grad_(flag)
        return arguments

    @property
    def patterns(self) -> list[tuple[bool, ...]]:
        """Which inputs require grad: every subset but the empty one."""
        count = len(inputs_of(self.arguments()))
        return [p for p in itertools.product((False, True), repeat=count) if any(p)]


def _drawn(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, list):
        return [_drawn(each, generator) for each in value]
    return value.make(generator) if isinstance(value, Drawn) else value


CASES: dict[str, Case] = {}


def case(*rows: Sequence[Any], **known: Any) -> Callable[[Any], Any]:
    """Enter the decorated function into `CASES`."""

    def enter(program: Callable[..., Any]) -> Callable[..., Any]:
        CASES[program.__name__] = Case(program, rows, **known)
        return program

    return enter


# ---- tensors ----


@dataclass(frozen=True)
class Drawn:
    """A tensor yet to be made."""

    make: Callable[[torch.Generator], Tensor]


def normal(*shape: int) -> Drawn:
    """Normal numbers."""
    return Drawn(lambda g: torch.randn(shape, generator=g, dtype=torch.float64))


def positive(*shape: int) -> Drawn:
    """Numbers between a half and two."""
    return Drawn(lambda g: torch.rand(shape, generator=g, dtype=torch.float64) * 1.5 + 0.5)


def unlike(*shape: int) -> Drawn:
    """Numbers that are well apart: no two change places in a small step."""

    def make(g: torch.Generator) -> Tensor:
        count = math.prod(shape)
        order = torch.randperm(count, generator=g).to(torch.float64)
        return ((order - count / 2 + 0.25) / 3).reshape(shape)

    return Drawn(make)


def wave(*shape: int) -> Drawn:
    """Complex normal numbers."""
    return Drawn(lambda g: torch.randn(shape, generator=g, dtype=torch.complex128))


def below(count: int, *shape: int) -> Drawn:
    """Integers from 0, less than `count`."""
    return Drawn(lambda g: torch.randint(count, shape, generator=g))


def coins(*shape: int) -> Drawn:
    """Booleans; the first of each row is true."""

    def make(g: torch.Generator) -> Tensor:
        tossed = torch.rand(shape, generator=g) < 0.6
        tossed[..., 0] = True
        return tossed

    return Drawn(make)


MATRIX = ((normal(4, 3),), (normal(2, 5),), (normal(6, 7),))
PAIR = (
    (normal(4, 3), normal(4, 3)),
    (normal(2, 5), normal(2, 5)),
    (normal(6, 7), normal(6, 7)),
)
SEVERAL_RANKS = ((normal(4, 3),), (normal(2, 5),), (normal(7),), (normal(2, 3, 2),))


# ---- activations ----


@case(*SEVERAL_RANKS, captures=3, common=True)
def relu(x):
    """The positive part of x."""
    return torch.relu(x)


@case(*SEVERAL_RANKS, captures=3)
def logistic(x):
    """The logistic function."""
    decay = torch.exp(-x)
    return 1 / (1 + decay)


@case(*MATRIX, common=True)
def swish(x):
    """x times its own sigmoid."""
    gate = torch.sigmoid(x)
    return x * gate


@case(*MATRIX)
def gelu(x):
    """x times the normal distribution function."""
    share = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return x * share


@case(*MATRIX, common=True)
def gelu_tanh(x):
    """The tanh approximation of gelu."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


@case(*MATRIX)
def softplus(x):
    """A smooth positive part that never overflows."""
    tail = torch.log1p(torch.exp(-x.abs()))
    return x.clamp(min=0) + tail


@case(*MATRIX)
def mish(x):
    """x times the tanh of its softplus."""
    return x * torch.tanh(F.softplus(x))


@case(*MATRIX)
def elu(x):
    """The positive part of x, and an exponential below zero."""
    return torch.where(x > 0, x, torch.expm1(x))


@case(*MATRIX)
def hard_swish(x):
    """Swish with a piecewise linear gate."""
    gate = (x + 3).clamp(0, 6) / 6
    return x * gate


@case((normal(4, 3), 0.1), (normal(2, 5), 0.1), (normal(4, 3), 0.3), captures=2)
def leaky_relu(x, slope):
    """x, with a small slope below zero."""
    return torch.where(x > 0, x, slope * x)


@case((normal(4, 3), normal(3)), (normal(2, 5), normal(5)))
def prelu(x, slope):
    """x, with a slope below zero that is learned per channel."""
    return torch.relu(x) - slope * torch.relu(-x)


@case((normal(4, 3), positive(3)), (normal(2, 5), positive(5)))
def snake(x, a):
    """x and a periodic bump of a learned frequency."""
    bump = torch.sin(a * x) ** 2
    return x + bump / a


@case((normal(4, 6),), (normal(2, 10),))
def glu(x):
    """One half of the channels, gated by the other half."""
    value, gate = x.chunk(2, dim=-1)
    return value * torch.sigmoid(gate)


@case(
    (normal(4, 3), normal(3, 5), normal(3, 5)),
    (normal(2, 6), normal(6, 4), normal(6, 4)),
    common=True,
)
def swiglu(x, w, v):
    """A linear layer gated by the swish of another one."""
    gate = x @ w
    up = x @ v
    return F.silu(gate) * up


@case(*MATRIX)
def sine_squared(x):
    """The square of the sine of the square."""
    inner = x**2
    s = torch.sin(inner)
    return s * s


# ---- norms ----

ROWS_AND_CHANNELS = (
    (normal(4, 3), normal(3), normal(3)),
    (normal(2, 5), normal(5), normal(5)),
    (normal(6, 7), normal(7), normal(7)),
)


@case(*ROWS_AND_CHANNELS, common=True)
def layer_norm(x, weight, bias):
    """Each row with mean zero and variance one, then scaled and shifted."""
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    variance = (centered**2).mean(-1, keepdim=True)
    normed = centered / torch.sqrt(variance + 1e-5)
    return normed * weight + bias


@case(*ROWS_AND_CHANNELS)
def layer_norm_op(x, weight, bias):
    """Layer norm by PyTorch's own op."""
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


@case(
    (normal(4, 3), normal(3)),
    (normal(2, 5), normal(5)),
    (normal(2, 3, 5), normal(5)),
    captures=2,
    common=True,
)
def rms_norm(x, weight):
    """Each row divided by its root mean square, then scaled."""
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return x * scale * weight


@case(
    (normal(2, 6, 4), normal(6), normal(6)),
    (normal(3, 6, 5), normal(6), normal(6)),
)
def group_norm(x, weight, bias):
    """Each of three groups of channels with mean zero and variance one."""
    return F.group_norm(x, 3, weight, bias)


@case(
    (normal(4, 3), normal(3), positive(3), normal(3), normal(3)),
    (normal(2, 5), normal(5), positive(5), normal(5), normal(5)),
)
def batch_norm_eval(x, mean, variance, weight, bias):
    """Batch norm with running statistics."""
    scale = weight / torch.sqrt(variance + 1e-5)
    return (x - mean) * scale + bias


@case((normal(4, 3, 5),), (normal(2, 6, 4),))
def instance_norm(x):
    """Each channel of each sample with mean zero and variance one."""
    return F.instance_norm(x)


@case(*MATRIX)
def unit_rows(x):
    """Each row divided by its length."""
    length = torch.sqrt((x * x).sum(-1, keepdim=True))
    return x / length


@case(*MATRIX)
def standardized(x):
    """Columns with mean zero and deviation one."""
    mean = x.mean(0)
    deviation = x.std(0)
    return (x - mean) / deviation


@case((normal(4, 3), normal(4)), (normal(2, 5), normal(2)))
def weight_norm(v, g):
    """A weight whose rows have the lengths g."""
    length = v.norm(dim=1, keepdim=True)
    return v * (g[:, None] / length)


# ---- softmax and losses ----

LOGITS_AND_LABELS = (
    (normal(4, 3), below(3, 4)),
    (normal(2, 5), below(5, 2)),
    (normal(6, 7), below(7, 6)),
)


@case(*MATRIX, common=True)
def softmax(x):
    """Exponentials of each row, divided by their sum."""
    shifted = x - x.max(-1, keepdim=True).values
    exps = torch.exp(shifted)
    return exps / exps.sum(-1, keepdim=True)


@case(*MATRIX)
def softmax_op(logits):
    """Softmax by PyTorch's own op, with a temperature."""
    return torch.softmax(logits / 0.7, dim=-1)


@case(*MATRIX)
def log_softmax(x):
    """The logarithm of softmax, without overflow."""
    return x - torch.logsumexp(x, dim=-1, keepdim=True)


@case(*LOGITS_AND_LABELS, common=True)
def cross_entropy(logits, labels):
    """The mean of the negative log-probabilities of the labels."""
    return F.cross_entropy(logits, labels)


@case(*LOGITS_AND_LABELS)
def cross_entropy_by_hand(logits, labels):
    """Cross-entropy from a log-sum-exp and a gather."""
    total = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(1, labels[:, None]).squeeze(1)
    return (total - picked).mean()


@case(*LOGITS_AND_LABELS)
def nll(log_probs, labels):
    """The sum of the negative log-probabilities of the labels."""
    return F.nll_loss(log_probs, labels, reduction="sum")


@case(*LOGITS_AND_LABELS)
def smoothed_cross_entropy(logits, labels):
    """Cross-entropy against labels mixed with the uniform distribution."""
    log_probs = F.log_softmax(logits, dim=-1)
    hit = log_probs.gather(1, labels[:, None]).squeeze(1)
    spread = log_probs.mean(-1)
    return -(0.9 * hit + 0.1 * spread).mean()


@case(*PAIR, common=True)
def mse(prediction, target):
    """The mean squared error."""
    error = prediction - target
    return (error**2).mean()


@case(*PAIR)
def huber(prediction, target):
    """Squared for small errors, linear for large ones."""
    error = (prediction - target).abs()
    quadratic = 0.5 * error**2
    linear = error - 0.5
    return torch.where(error < 1, quadratic, linear).mean()


@case(*PAIR)
def kl_divergence(p_logits, q_logits):
    """How far the distribution of q is from that of p."""
    log_p = F.log_softmax(p_logits, dim=-1)
    log_q = F.log_softmax(q_logits, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean()


@case(
    (normal(4, 3), positive(4, 3)),
    (normal(2, 5), positive(2, 5)),
    near="with a gradient it is captured as a formula, without one as a kernel",
)
def binary_cross_entropy(logits, targets):
    """Binary cross-entropy of logits, by PyTorch's own op."""
    return F.binary_cross_entropy_with_logits(logits, targets)


@case((normal(4, 3), coins(4, 3)), (normal(2, 5), coins(2, 5)))
def focal_loss(logits, truth):
    """Binary cross-entropy that looks at hard examples."""
    probs = torch.sigmoid(logits)
    hit = torch.where(truth, probs, 1 - probs)
    return -((1 - hit) ** 2 * torch.log(hit)).mean()


@case(*PAIR)
def cosine_distance(a, b):
    """One minus the cosine of the angle between rows."""
    return 1 - F.cosine_similarity(a, b, dim=-1)


@case(*PAIR)
def contrastive(a, b):
    """Each row of a must be nearest to the same row of b."""
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.1
    labels = torch.arange(scores.shape[0], device=scores.device)
    return F.cross_entropy(scores, labels)


# ---- attention ----

HEADS = (
    (normal(2, 4, 3), normal(2, 5, 3), normal(2, 5, 6)),
    (normal(3, 2, 4), normal(3, 7, 4), normal(3, 7, 5)),
)


@case(*HEADS, common=True)
def attention(q, k, v):
    """Values averaged by how well keys fit queries."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(3)
    probs = torch.softmax(scores, dim=-1)
    return probs @ v


@case(
    (normal(2, 4, 3), normal(2, 5, 3), normal(2, 5, 6), coins(4, 5)),
    (normal(3, 2, 4), normal(3, 7, 4), normal(3, 7, 5), coins(2, 7)),
)
def masked_attention(q, k, v, mask):
    """Attention to the keys that the mask allows."""
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    probs = torch.softmax(scores, dim=-1)
    return probs @ v


@case(
    (normal(2, 4, 3), normal(2, 4, 3), normal(2, 4, 6)),
    (normal(3, 5, 4), normal(3, 5, 4), normal(3, 5, 2)),
    captures=2,  # `math.sqrt` makes a number of the width
)
def causal_attention(q, k, v):
    """Attention of each step to itself and to earlier steps."""
    steps = q.shape[1]
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    later = torch.ones(steps, steps, dtype=torch.bool, device=q.device).triu(1)
    probs = scores.masked_fill(later, float("-inf")).softmax(-1)
    return probs @ v


@case(
    (normal(2, 5, 8), normal(8, 24), normal(8, 8)),
    (normal(3, 4, 8), normal(8, 24), normal(8, 8)),
)
def self_attention(x, w_in, w_out):
    """Attention of two heads, with its projections."""
    batch, steps, width = x.shape
    q, k, v = (x @ w_in).view(batch, steps, 3, 2, 4).permute(2, 0, 3, 1, 4)
    probs = (q @ k.transpose(-1, -2) / 2).softmax(-1)
    mixed = (probs @ v).transpose(1, 2).reshape(batch, steps, width)
    return mixed @ w_out


@case(
    (normal(2, 4, 6), normal(4, 3), normal(4, 3)),
    (normal(3, 5, 8), normal(5, 4), normal(5, 4)),
    common=True,
)
def rope(x, cos, sin):
    """Pairs of channels turned by an angle per position."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned


# ---- convolution and images ----


@case((normal(2, 3, 8), normal(4, 3, 3)), (normal(3, 3, 9), normal(4, 3, 3)), common=True)
def conv1d(x, kernel):
    """A convolution over time."""
    return F.conv1d(x, kernel, padding=1)


@case(
    (normal(2, 3, 6, 5), normal(4, 3, 3, 3), normal(4)),
    (normal(1, 3, 7, 8), normal(4, 3, 3, 3), normal(4)),
    captures=2,
)
def conv2d(image, kernel, bias):
    """A convolution with a stride, and a rectifier."""
    features = F.conv2d(image, kernel, bias, stride=2, padding=1)
    return torch.relu(features)


@case((normal(2, 4, 8), normal(4, 1, 3)), (normal(3, 4, 6), normal(4, 1, 3)))
def depthwise_conv(x, kernel):
    """One filter per channel."""
    return F.conv1d(x, kernel, groups=4)


@case((unlike(2, 3, 6, 6),), (unlike(1, 2, 4, 8),), captures=2)
def max_pool(image):
    """The largest of each two by two block."""
    return F.max_pool2d(image, 2)


@case((normal(2, 3, 6, 6),), (normal(3, 2, 4, 8),))
def average_pool(image):
    """The mean of each two by two block."""
    return F.avg_pool2d(image, 2)


@case((normal(2, 3, 4, 4),), (normal(3, 2, 3, 5),), near="it is captured as a formula")
def upsample(image):
    """An image of twice the size, with linear weights."""
    return F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)


@case((normal(2, 3, 4, 4),), (normal(3, 2, 3, 5),))
def upsample_nearest(image):
    """An image of twice the size, each pixel repeated."""
    return F.interpolate(image, scale_factor=2, mode="nearest")


@case((normal(2, 8, 3, 2),), (normal(1, 4, 2, 2),), captures=2)
def pixel_shuffle(image):
    """Channels that become pixels."""
    return F.pixel_shuffle(image, 2)


@case((normal(4, 5),), (normal(6, 3),))
def diffusion_step(u):
    """One explicit step of the heat equation on a torus."""
    around = u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1)
    laplacian = around - 4 * u
    return u + 0.1 * laplacian


@case((normal(3, 5),), (normal(2, 7),))
def padded_difference(x):
    """Differences of neighbours, with zeros at both ends."""
    padded = F.pad(x, (1, 1))
    return padded[:, 1:] - padded[:, :-1]


# ---- scans and steps ----


@case(*MATRIX)
def cumulative_mean(x):
    """The mean of each element and those before it."""
    count = torch.arange(1, x.shape[1] + 1, device=x.device)
    return x.cumsum(1) / count


# PyTorch's derivative of a product along a dimension goes through it step by step.
@case((positive(4, 3),), (positive(2, 5),), captures=2)
def survival(hazard):
    """The chance to survive each step."""
    return torch.cumprod(1 - 0.4 * hazard, dim=1)


@case((normal(2, 4, 3), positive(3)), (normal(3, 4, 5), positive(5)), common=True)
def linear_scan(x, decay):
    """A state that decays and takes up the input, four steps of it."""
    state = torch.zeros_like(x[:, 0])
    states = []
    for step in range(4):
        state = decay * state + x[:, step]
        states.append(state)
    return torch.stack(states, dim=1)


@case((normal(5), normal(5)), (normal(3), normal(3)), common=True)
def leapfrog(q, p):
    """Three steps of a pendulum that keep its energy."""
    dt = 0.1
    for _ in range(3):
        p = p - 0.5 * dt * torch.sin(q)
        q = q + dt * p
        p = p - 0.5 * dt * torch.sin(q)
    return q, p


@case((normal(5, 2), positive()), (normal(3, 2), positive()))
def runge_kutta(y, dt):
    """One step of fourth order of a nonlinear oscillator."""

    def slope(state):
        position, speed = state.unbind(-1)
        return torch.stack([speed, (1 - position**2) * speed - position], dim=-1)

    k1 = slope(y)
    k2 = slope(y + dt / 2 * k1)
    k3 = slope(y + dt / 2 * k2)
    k4 = slope(y + dt * k3)
    return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@case(
    (normal(4, 3), normal(4, 5), normal(4, 5), normal(20, 3), normal(20, 5)),
    (normal(2, 6), normal(2, 5), normal(2, 5), normal(20, 6), normal(20, 5)),
)
def lstm_cell(x, h, c, w_x, w_h):
    """One step of a long short-term memory."""
    gates = x @ w_x.T + h @ w_h.T
    i, f, g, o = gates.chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, c


# ---- indices and segments ----


@case(
    (normal(6, 3), below(4, 6), 4),
    (normal(5, 2), below(3, 5), 3),
    captures=2,
    common=True,
)
def segment_sum(values, segment, count):
    """The sum of the values of each segment."""
    sums = values.new_zeros(count, values.shape[1])
    return sums.index_add(0, segment, values)


@case((normal(7, 3), below(7, 2, 4)), (normal(5, 2), below(5, 3, 2)))
def embedding(table, index):
    """Rows of a table."""
    return F.embedding(index, table)


@case((normal(4, 5), below(5, 4, 2)), (normal(3, 6), below(6, 3, 4)))
def gathered(x, index):
    """The squares of some elements of each row."""
    picked = torch.gather(x, 1, index)
    return picked**2


@case((normal(4, 6), below(5, 4, 6)), (normal(3, 4), below(5, 3, 4)))
def histogram(weights, bins):
    """The weights of each row, summed into five bins."""
    counts = torch.zeros(weights.shape[0], 5, dtype=weights.dtype, device=weights.device)
    return counts.scatter_add(1, bins, weights)


@case(
    (normal(5, 3), below(5, 8), below(5, 8), normal(3, 3)),
    (normal(4, 2), below(4, 6), below(4, 6), normal(2, 2)),
)
def message_passing(nodes, source, target, w):
    """Each node takes up the messages that its neighbours send."""
    messages = torch.tanh(nodes[source] @ w)
    inbox = torch.zeros_like(nodes).index_add(0, target, messages)
    return nodes + inbox


# ---- complex ----


@case((wave(4, 3), wave(4, 3)), (wave(2, 5), wave(2, 5)), low="complex")
def complex_multiply(a, b):
    """The product of two complex tensors."""
    return a * b


@case((wave(4, 3),), (wave(2, 5),), low="complex")
def complex_power(z):
    """The squared size of a wave, and its size."""
    size = z.abs()
    return z.real**2 + z.imag**2, size


@case((wave(4, 3), normal(3)), (wave(2, 5), normal(5)), low="complex")
def phase_shift(z, angle):
    """A wave turned by an angle."""
    turn = torch.polar(torch.ones_like(angle), angle)
    return z * turn


# ---- matrices ----


@case((normal(4, 3), normal(5, 3), normal(5)), (normal(2, 6), normal(4, 6), normal(4)))
def linear(x, weight, bias):
    """A linear layer."""
    return F.linear(x, weight, bias)


@case(
    (normal(4, 3), normal(3, 5), normal(5), normal(5, 2), normal(2)),
    (normal(6, 2), normal(2, 4), normal(4), normal(4, 3), normal(3)),
    common=True,
)
def mlp(x, w1, b1, w2, b2):
    """Two layers with a tanh between them."""
    hidden = torch.tanh(x @ w1 + b1)
    return hidden @ w2 + b2


@case(
    (normal(2, 3), normal(3, 4), normal(4, 5)),
    (normal(5, 2), normal(2, 6), normal(6, 3)),
)
def matmul_chain(a, b, c):
    """The product of three matrices."""
    return a @ b @ c


@case(
    (normal(4, 3), normal(5, 3, 2), normal(4, 2)),
    (normal(2, 4), normal(3, 4, 5), normal(2, 5)),
)
def bilinear(x, w, y):
    """A form that is linear in x and in y."""
    return torch.einsum("bi,oij,bj->bo", x, w, y)


@case((normal(3, 3), normal(3, 2)), (normal(4, 4), normal(4, 1)), captures=2, low="linalg")
def ridge_solve(a, b):
    """The solution of regularized normal equations."""
    gram = a.T @ a + torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    return torch.linalg.solve(gram, a.T @ b)


@case((normal(3, 5),), (normal(4, 6),), low="linalg")
def gaussian_log_det(a):
    """The log-determinant of a covariance, from its Cholesky factor."""
    covariance = a @ a.T / a.shape[1] + torch.eye(a.shape[0], dtype=a.dtype, device=a.device)
    factor = torch.linalg.cholesky(covariance)
    return 2 * factor.diagonal().log().sum()


@case((normal(3, 3),), (normal(4, 4),), low="linalg")
def volume(a):
    """The determinant of a matrix near the identity."""
    return torch.linalg.det(torch.eye(a.shape[0], dtype=a.dtype, device=a.device) + 0.1 * a)


@case((normal(4), normal(3), normal(4, 3)), (normal(2), normal(5), normal(2, 5)))
def rank_one_update(u, v, m):
    """A matrix plus an outer product, and how large it is."""
    updated = m + torch.outer(u, v)
    return updated, (updated * updated).sum().sqrt()


@case((normal(3, 4), normal(3, 4)), (normal(5, 4), normal(5, 4)))
def quaternion_product(a, b):
    """The product of two rows of quaternions."""
    w1, x1, y1, z1 = a.unbind(-1)
    w2, x2, y2, z2 = b.unbind(-1)
    w = w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2
    x = w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2
    y = w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2
    z = w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2
    return torch.stack([w, x, y, z], dim=-1)


@case((normal(4, 3), normal(5, 3)), (normal(2, 4), normal(3, 4)))
def gaussian_kernel(x, y):
    """How near each row of x is to each row of y."""
    difference = x[:, None, :] - y[None, :, :]
    squared = (difference**2).sum(-1)
    return torch.exp(-0.5 * squared)


# ---- broadcasting, reductions, choices ----


@case(
    (normal(4, 1, 3), normal(2, 1), normal(3)),
    (normal(5, 1, 2), normal(3, 1), normal(2)),
)
def broadcast_mix(a, b, c):
    """Three tensors of three shapes."""
    scaled = a * b
    return torch.sin(scaled + c).mean(1)


@case((normal(4, 3, 2),), (normal(2, 5, 3),))
def reduce_mix(x):
    """Means over some dimensions, combined."""
    by_row = x.mean(2, keepdim=True)
    overall = x.mean()
    return (x - by_row + overall).square().sum((0, 2))


@case(*MATRIX)
def log_sum_exp(x):
    """A smooth maximum of each row."""
    return torch.logsumexp(x, dim=1)


@case(*MATRIX)
def geometric_mean(x):
    """The product of what each row is, squashed."""
    return torch.prod(1 + 0.1 * torch.tanh(x), dim=1)


@case((unlike(4, 3),), (unlike(2, 5),))
def row_range(x):
    """The largest minus the smallest of each row."""
    return x.amax(1) - x.amin(1)


@case((unlike(4, 5),), (unlike(3, 6),))
def trimmed_mean(x):
    """The mean of each row without its smallest and largest element."""
    ordered, _ = torch.sort(x, dim=1)
    return ordered[:, 1:-1].mean(1)


@case((unlike(4, 5), 2), (unlike(3, 6), 2), (unlike(4, 5), 3), captures=2)
def top_mean(x, k):
    """The mean of the k largest of each row."""
    return x.topk(k, dim=-1).values.mean(-1)


@case(*PAIR)
def clipped_objective(advantage, log_ratio):
    """The pessimistic of two objectives, one of them with a clipped ratio."""
    ratio = torch.exp(log_ratio)
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


@case((positive(4, 3), positive(4, 3)), (positive(2, 5), positive(2, 5)))
def polar(x, y):
    """The radius and the angle of points."""
    radius = torch.hypot(x, y)
    angle = torch.atan2(y, x)
    return radius, angle


@case((normal(5), normal(4)), (normal(7), normal(4)))
def polynomial(x, coefficients):
    """A polynomial of third degree, by Horner's rule."""
    total = torch.zeros_like(x)
    for c in coefficients.unbind():
        total = total * x + c
    return total


# ---- several outputs, plain arguments, things from around ----


@case(*MATRIX, common=True)
def moments(x):
    """The mean and the variance of each row."""
    mean = x.mean(-1)
    variance = ((x - mean[:, None]) ** 2).mean(-1)
    return mean, variance


@case((unlike(4, 3),), (unlike(2, 5),))
def best(x):
    """The largest of each row, and where it is."""
    values, index = x.max(dim=-1)
    return values, index


@case(
    (normal(4, 3), 2.0, "sum"),
    (normal(2, 5), 2.0, "sum"),
    (normal(4, 3), 3.0, "mean"),
    captures=2,
)
def power_loss(x, exponent, reduction):
    """The sum or mean of powers of absolute values."""
    powers = x.abs() ** exponent
    return powers.sum() if reduction == "sum" else powers.mean()


@case((normal(4, 3), normal(3), None), (normal(4, 3), normal(3), normal(3)), captures=2)
def affine(x, weight, bias):
    """x scaled, and shifted if there is a shift."""
    scaled = x * weight
    return scaled if bias is None else scaled + bias


@case(([normal(4), normal(4)], normal(4)), ([normal(3), normal(3)], normal(3)))
def ensemble(members, target):
    """The squared error of the mean of several predictions."""
    mean = sum(members) / len(members)
    return ((mean - target) ** 2).sum()


GAIN = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64, requires_grad=True)
OFFSET = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)


@case((normal(4, 3),), (normal(2, 3),), low="the closures are in double precision")
def calibrated(x):
    """x with a gain and an offset from around the function."""
    return torch.tanh(GAIN * x) + OFFSET


@case((normal(4, 3),), (normal(2, 5),))
def transposed_halves(x):
    """Two views of the input, turned."""
    turned = x.T
    return turned[:1], turned[1:] * 2


# ---- with hand-written Functions inside ----


class ExpSquare(torch.autograd.Function):
    """The square of the exponential; its backward uses a saved intermediate."""

    @staticmethod
    def forward(ctx, x):
        grown = torch.exp(x)
        ctx.save_for_backward(grown)
        return grown * grown

    @staticmethod
    def backward(ctx, cotangent):
        (grown,) = ctx.saved_tensors
        return 2 * cotangent * grown * grown


class RoundThrough(torch.autograd.Function):
    """Rounds; the gradient goes straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent


class Reversal(torch.autograd.Function):
    """The identity, with a reversed gradient."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, cotangent):
        return -ctx.strength * cotangent, None


def with_saved_plainly(x, scale):
    return torch.sin(torch.exp(x * scale) ** 2)


@case((normal(4, 3), normal(3)), (normal(2, 5), normal(5)), truth=with_saved_plainly)
def with_saved(x, scale):
    """A hand-written Function that saves an intermediate, between plain ops."""
    inner = x * scale
    return torch.sin(ExpSquare.apply(inner))


def quantized_plainly(x, step):
    level = x / step
    return (level + (torch.round(level) - level).detach()) * step


@case(
    (normal(4, 3), positive()),
    (normal(2, 5), positive()),
    truth=quantized_plainly,
    common=True,
)
def quantized(x, step):
    """x rounded to multiples of a learned step, straight through."""
    return RoundThrough.apply(x / step) * step


def domain_adversary_plainly(x, w):
    return torch.tanh((1.5 * x.detach() - 0.5 * x) @ w)


@case((normal(4, 3), normal(3, 2)), (normal(2, 5), normal(5, 2)), truth=domain_adversary_plainly)
def domain_adversary(x, w):
    """A critic whose gradient is reversed on its way to the features."""
    reversed_ = Reversal.apply(x, 0.5)
    return torch.tanh(reversed_ @ w)


# ---- which ----

EVERY = list(CASES)
COMMON = [name for name, each in CASES.items() if each.common]
MANY_THEN_EVERY = [
    pytest.param(name, marks=() if each.common or place % 3 == 0 else pytest.mark.slow)
    for place, (name, each) in enumerate(CASES.items())
]
SOME_THEN_EVERY = [
    pytest.param(name, marks=() if each.common or place % 9 == 0 else pytest.mark.slow)
    for place, (name, each) in enumerate(CASES.items())
]
COMMON_THEN_EVERY = [
    pytest.param(name, marks=() if each.common else pytest.mark.slow)
    for name, each in CASES.items()
]


# One of each kind: pointwise, matrix products, reductions, several outputs, indices, Functions.
FEW = (
    "swish",
    "swiglu",
    "layer_norm",
    "attention",
    "conv1d",
    "leapfrog",
    "segment_sum",
    "quantized",
)
FEW_THEN_EVERY = [
    pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in CASES
]


@functools.cache
def derived(name: str, save: str | int = "auto") -> Any:
    """The derived Function of a case: one for all tests."""
    return derive_function(CASES[name].program, *CASES[name].arguments(), save=save)


# ---- what a call gives ----


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nest of tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def inputs_of(arguments: Any) -> list[Tensor]:
    """The tensors among arguments that can have a gradient."""
    return [t for t in tensors_of(arguments) if t.is_floating_point() or t.is_complex()]


def weights_for(tensors: Sequence[Tensor], seed: int = 7) -> list[Tensor]:
    """A normal tensor like each of `tensors`."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=_wide(t)).to(t.dtype) for t in tensors]


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def pulled(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    layout: Callable[[Tensor], Tensor] = lambda cotangent: cotangent,
) -> list[Tensor | None]:
    """The gradients of all inputs that require one, for normal cotangents."""
    outputs = [y for y in tensors_of(function(*arguments)) if y.requires_grad]
    wanted = [x for x in inputs_of(arguments) if x.requires_grad]
    cotangents = [layout(c) for c in weights_for(outputs)]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


def pulled_twice(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Tensor | None]:
    """The gradients, then their own gradients with respect to inputs and cotangents."""
    outputs = [y for y in tensors_of(function(*arguments)) if y.requires_grad]
    wanted = [x for x in inputs_of(arguments) if x.requires_grad]
    cotangents = [c.requires_grad_() for c in weights_for(outputs)]
    first = torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True, create_graph=True)
    linked = [g for g in first if g is not None and g.requires_grad]
    second = torch.autograd.grad(
        linked, [*wanted, *cotangents], weights_for(linked, 8), allow_unused=True
    )
    return [*first, *second]


def differences(got: Any, expected: Any, *, tolerance: float = 1e-9) -> list[str]:
    """How two nests of tensors and plain values differ, one line for each pair; [] if they do not.

    A tolerance of 0 asks for the same bits.
    """
    ours, theirs = tree_leaves(got), tree_leaves(expected)
    if len(ours) != len(theirs):
        return [f"{len(ours)} values, not {len(theirs)}"]
    pairs = zip(ours, theirs, strict=True)
    return [f"{i}: {line}" for i, (a, b) in enumerate(pairs) for line in _differ(a, b, tolerance)]


def _differ(got: Any, expected: Any, tolerance: float) -> Iterator[str]:
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        if type(got) is not type(expected) or got != expected:
            yield f"{got}, not {expected}"
    elif (got.shape, got.dtype) != (expected.shape, expected.dtype):
        yield f"{got.dtype} {list(got.shape)}, not {expected.dtype} {list(expected.shape)}"
    elif not torch.allclose(got, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True):
        yield f"apart by {(got - expected).abs().max():.3g}"
