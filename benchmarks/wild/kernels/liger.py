"""Liger-Kernel: norms, activations, rotations, losses and attention for language models."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.wild.subject import Inputs, Subject, integers, normal

PACKAGE = "liger-kernel"
EPS = 1e-6


def on_gpu(inputs: Inputs) -> Inputs:
    """The same arguments on the GPU, where there is one; leaves stay leaves."""

    def moved() -> tuple[Any, ...]:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return tuple(_moved(arg, device) if isinstance(arg, Tensor) else arg for arg in inputs())

    return moved


def _moved(tensor: Tensor, device: str) -> Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


# ---- norms ----


def rms(x: Tensor, eps: float = EPS) -> Tensor:
    """`x` over the root of its mean square."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def rms_norm(x: Tensor, w: Tensor, eps: float, offset: float = 0.0, *rest: Any) -> Tensor:
    """The norm of Llama."""
    return rms(x, eps) * (w + offset)


def add_rms_norm(x: Tensor, r: Tensor, w: Tensor, eps: float, *rest: Any) -> tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum."""
    return rms(x + r, eps) * w, x + r


def modulated(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor, eps: float, *_: Any) -> Tensor:
    """The norm, scaled and shifted per sequence."""
    return (1 + scale.unsqueeze(1)) * (rms(x, eps) * w) + shift.unsqueeze(1)


def poly_norm(x: Tensor, w: Tensor, b: Tensor, eps: float = EPS, *rest: Any) -> Tensor:
    """Three powers, each of norm one, weighted."""
    return w[0] * rms(x**3, eps) + w[1] * rms(x**2, eps) + w[2] * rms(x, eps) + b


def group_norm(x: Tensor, w: Tensor, b: Tensor, channels: int, groups: int, eps: float) -> Tensor:
    """PyTorch's own, over all that follows the channels."""
    return functional.group_norm(x, groups, w, b, eps)


def residual_attention(v: Tensor, query: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Softmax over depth, by one learned query."""
    weights = ((rms(v, eps) * norm) @ query).softmax(0)
    return (weights.unsqueeze(-1) * v).sum(0)


# ---- rotations ----


def angles(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotations of a sequence."""
    rates = 10000 ** (-torch.arange(0, width, 2) / width)
    turned = torch.outer(torch.arange(length).float(), rates)
    return turned.cos().repeat(1, 2), turned.sin().repeat(1, 2)


def rope_inputs() -> tuple[Any, ...]:
    """Queries of four heads and keys of two."""
    cos, sin = angles(8, 16)
    return normal(2, 4, 8, 16), normal(2, 2, 8, 16, seed=1), cos[None], sin[None]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One half turned against the other."""
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat((-two, one), -1) * sin


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The rotation of Llama."""
    return turned(q, cos.unsqueeze(1), sin.unsqueeze(1)), turned(
        k, cos.unsqueeze(1), sin.unsqueeze(1)
    )


def mrope_inputs() -> tuple[Any, ...]:
    """Three kinds of position."""
    cos, sin = angles(8, 16)
    cos, sin = (a.expand(3, 2, 8, 16).contiguous() for a in (cos, sin))
    return normal(2, 4, 8, 16), normal(2, 2, 8, 16, seed=1), cos, sin, [2, 3, 3]


def mrope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, sections: Any, *_: Any) -> Any:
    """The rotation of Qwen2-VL, a part of the width for each kind of position."""
    parts = [*sections, *sections]

    def mixed(table: Tensor) -> Tensor:
        pieces = table.split(parts, -1)
        return torch.cat([piece[i % 3] for i, piece in enumerate(pieces)], -1).unsqueeze(1)

    return turned(q, mixed(cos), mixed(sin)), turned(k, mixed(cos), mixed(sin))


def complex_rope_inputs() -> tuple[Any, ...]:
    """Rotations as complex numbers of modulus one."""
    rates = 10000 ** (-torch.arange(0, 16, 2) / 16)
    turns = torch.outer(torch.arange(8).float(), rates)
    return normal(2, 8, 4, 16), normal(2, 8, 2, 16, seed=1), torch.polar(torch.ones(8, 8), turns)


def complex_rope(q: Tensor, k: Tensor, turns: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """The rotation of Llama 4: neighbours are the two parts of a number."""

    def rotated(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        kind = pairs.dtype
        return torch.view_as_real(pairs * turns[None, :, None].to(kind)).flatten(3)

    return rotated(q), rotated(k)


# ---- losses ----


def log_probabilities(seed: int, *, grad: bool) -> Tensor:
    """Log probabilities of eight tokens."""
    return normal(8, 64, seed=seed, grad=False).log_softmax(-1).requires_grad_(grad)


def probabilities(seed: int, *, grad: bool) -> Tensor:
    """Probabilities of eight tokens."""
    return normal(8, 64, seed=seed, grad=False).softmax(-1).requires_grad_(grad)


def cross_entropy(x: Tensor, target: Tensor, *rest: Any) -> Any:
    """PyTorch's own."""
    return functional.cross_entropy(x, target), None, None, None


def linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor, *rest: Any) -> Any:
    """A linear layer and the loss."""
    return functional.cross_entropy(x @ w.T, target), None, None, None


def jsd(x: Tensor, target: Tensor, labels: Any = None, beta: float = 0.5, *rest: Any) -> Tensor:
    """The generalised divergence of Jensen and Shannon, per token."""
    mean = torch.log(beta * target.exp() + (1 - beta) * x.exp())
    both = beta * target.exp() * (target - mean) + (1 - beta) * x.exp() * (x - mean)
    return both.sum() / x.shape[0]


def linear_jsd(x: Tensor, w: Tensor, teacher: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """The divergence of two models' predictions."""
    return jsd((x @ w.T).log_softmax(-1), (teacher @ weight.T).log_softmax(-1))


def linear_kl(x: Tensor, w: Tensor, target: Tensor, *rest: Any) -> Tensor:
    """The divergence of a linear layer's prediction from a distribution."""
    return functional.kl_div((x @ w.T).log_softmax(-1), target, reduction="batchmean")


def ce_tvd(student: Tensor, teacher: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Cross entropy and half the distance of the distributions, per token."""
    apart = (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2
    return functional.cross_entropy(student, target, reduction="none"), apart


def tvd(p: Tensor, q: Tensor, *rest: Any) -> Tensor:
    """Half the distance of two distributions, per token."""
    return (p - q).abs().sum() / 2 / p.shape[0]


def grpo_inputs() -> tuple[Any, ...]:
    """Two completions of seven tokens each."""
    logits = normal(2, 8, 64)
    chosen = integers(64, 2, 7, seed=1)
    with torch.no_grad():
        logp = logits[:, :-1].log_softmax(-1).gather(-1, chosen[..., None]).squeeze(-1)
    old = logp + 0.05 * normal(2, 7, seed=2, grad=False)
    mask = torch.ones(2, 7, dtype=torch.int64)
    advantages = torch.tensor([0.7, -1.1])
    options = (1.0, 0.04, 0.2, 0.4, False)
    return (logits, old, old + 0.1, chosen, advantages, mask, *options, "grpo", None, False)


# ---- attention and layers ----


def neighbours(q: Tensor, k: Tensor, v: Tensor, size: int, dilation: int, *_: Any) -> Tensor:
    """Attention to the nearest tokens."""
    length = q.shape[-2]
    apart = torch.arange(length, device=q.device)
    apart = apart[:, None] - apart[None]
    near = (apart.abs() <= size // 2 * dilation) & (apart % dilation == 0)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    return scores.masked_fill(~near, -math.inf).softmax(-1) @ v


def multi_token(scores: Tensor, weight: Tensor, bias: Any, stride: int, padding: int) -> Any:
    """Causal attention weights, mixed by a convolution."""
    above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(above, -1e9).softmax(-1)
    mixed = functional.conv2d(weights, weight, bias, stride, padding)
    return mixed.masked_fill(above, 0)


def moe_inputs() -> tuple[Any, ...]:
    """Eight tokens, four experts, two for each token."""
    chosen = torch.stack([torch.randperm(4, generator=_seeded(i))[:2] for i in range(8)])
    shares = normal(8, 2, seed=3, grad=False).softmax(-1).requires_grad_()
    sizes = normal(4, 64, 32, seed=1, scale=0.2), normal(4, 32, 32, seed=2, scale=0.2)
    return normal(8, 32), *sizes, chosen.int(), shares


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moe(x: Tensor, up: Tensor, down: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Each token through its experts."""
    weights = up[chosen.long()], down[chosen.long()]
    gate, value = torch.einsum("th,tkih->tki", x, weights[0]).chunk(2, -1)
    made = torch.einsum("tki,tkhi->tkh", functional.silu(gate) * value, weights[1])
    return (shares.unsqueeze(-1) * made).sum(1)


def mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *rest: Any) -> Tensor:
    """The gated layer of Llama."""
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def sparsemax(x: Tensor, dim: int) -> Tensor:
    """The projection onto the simplex."""
    ordered = x.sort(dim, descending=True).values
    total = ordered.cumsum(dim) - 1
    count = torch.arange(1, x.shape[dim] + 1, device=x.device, dtype=x.dtype)
    kept = (count * ordered > total).sum(dim, keepdim=True)
    return (x - total.gather(dim, kept - 1) / kept).clamp(min=0)


def dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """A tanh in the place of a norm."""
    return gamma * torch.tanh(alpha * x) + beta


def mixed_streams(x: Tensor, f: Tensor, post: Tensor, res: Tensor) -> Tensor:
    """Residual streams mixed, and a layer's result added to each."""
    return res @ x + post.unsqueeze(-1) * f.unsqueeze(-2)


def _tokens(*more: Tensor) -> tuple[Any, ...]:
    return normal(8, 64), *more


def _subject(path: str, inputs: Inputs, reference: Any = None, name: str = "") -> Subject:
    return Subject(PACKAGE, f"liger_kernel.ops.{path}", on_gpu(inputs), name, reference)


SUBJECTS = [
    _subject(
        "rms_norm:LigerRMSNormFunction",
        lambda: (normal(8, 64), normal(64, seed=1), EPS, 0.0, "llama", False),
        rms_norm,
    ),
    _subject(
        "rms_norm:LigerRMSNormFunction",
        lambda: (normal(8, 64), normal(64, seed=1), EPS, 0.0, "llama", True),
        rms_norm,
        "LigerRMSNormFunction in place",
    ),
    _subject(
        "fused_add_rms_norm:LigerFusedAddRMSNormFunction",
        lambda: (normal(8, 64), normal(8, 64, seed=1), normal(64, seed=2), EPS),
        add_rms_norm,
    ),
    _subject(
        "modulated_rms_norm:LigerModulatedRMSNormFunction",
        lambda: (
            *(normal(2, 4, 64), normal(64, seed=1)),
            *(normal(2, 64, seed=2), normal(2, 64, seed=3), EPS, 0.0, "llama", False),
        ),
        modulated,
    ),
    _subject(
        "poly_norm:LigerPolyNormFunction",
        lambda: (normal(8, 64), normal(3, seed=1), normal(1, seed=2), EPS, False),
        poly_norm,
    ),
    _subject(
        "layer_norm:LigerLayerNormFunction",
        lambda: (normal(8, 64), normal(64, seed=1), normal(64, seed=2), EPS),
        lambda x, w, b, eps: functional.layer_norm(x, x.shape[-1:], w, b, eps),
    ),
    _subject(
        "group_norm:LigerGroupNormFunction",
        lambda: (normal(2, 8, 16), normal(8, seed=1), normal(8, seed=2), 8, 2, EPS),
        group_norm,
    ),
    _subject(
        "attn_res:LigerAttnResFunction",
        lambda: (normal(3, 2, 4, 64), normal(64, seed=1, scale=0.2), normal(64, seed=2), EPS),
        residual_attention,
    ),
    _subject(
        "dyt:LigerDyTFunction",
        lambda: (normal(8, 64), normal(1, seed=1), normal(64, seed=2), normal(64, seed=3)),
        dyt,
    ),
    _subject("relu_squared:LigerReLUSquaredFunction", _tokens, lambda x: x.relu().square()),
    _subject(
        "geglu:LigerGELUMulFunction",
        lambda: (normal(8, 64), normal(8, 64, seed=1)),
        lambda a, b: functional.gelu(a, approximate="tanh") * b,
    ),
    _subject(
        "swiglu:LigerSiLUMulFunction",
        lambda: (normal(8, 64), normal(8, 64, seed=1)),
        lambda a, b, *_: functional.silu(a) * b,
    ),
    _subject(
        "swiglu:LigerFusedGateUpSiLUMulFunction",
        _tokens,
        lambda y: functional.silu(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1],
    ),
    _subject("softmax:LigerSoftmaxFunction", _tokens, lambda x: x.softmax(-1)),
    _subject("sparsemax:LigerSparsemaxFunction", lambda: (normal(8, 64), -1), sparsemax),
    _subject("rope:LigerRopeFunction", rope_inputs, rope),
    _subject("qwen2vl_mrope:LigerQwen2VLMRopeFunction", mrope_inputs, mrope),
    _subject("llama4_rope:LigerLlama4RopeFunction", complex_rope_inputs, complex_rope),
    _subject(
        "cross_entropy:LigerCrossEntropyFunction",
        lambda: (normal(8, 64), integers(64, 8), None),
        cross_entropy,
    ),
    _subject(
        "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",
        lambda: (normal(8, 32), normal(64, 32, seed=1, scale=0.2), integers(64, 8)),
        linear_cross_entropy,
    ),
    _subject(
        "jsd:LigerJSDFunction",
        lambda: (log_probabilities(0, grad=True), log_probabilities(1, grad=False)),
        jsd,
    ),
    _subject(
        "fused_linear_jsd:LigerFusedLinearJSDFunction",
        lambda: (
            *(normal(8, 32), normal(64, 32, seed=1, scale=0.2)),
            *(normal(8, 32, seed=2, grad=False), normal(64, 32, seed=3, scale=0.2, grad=False)),
        ),
        linear_jsd,
    ),
    _subject(
        "fused_linear_kl_div:LigerFusedLinearKLDivFunction",
        lambda: (
            *(normal(8, 32), normal(64, 32, seed=1, scale=0.2)),
            probabilities(2, grad=False),
        ),
        linear_kl,
    ),
    _subject(
        "kl_div:LigerKLDivLossFunction",
        lambda: (log_probabilities(0, grad=True), probabilities(1, grad=False)),
        lambda x, y, *_: functional.kl_div(x, y, reduction="batchmean"),
    ),
    _subject(
        "tvd:LigerTVDLossFunction",
        lambda: (probabilities(0, grad=True), probabilities(1, grad=False)),
        tvd,
    ),
    _subject(
        "fused_ce_tvd:LigerFusedCETVDFunction",
        lambda: (normal(8, 64), normal(8, 64, seed=1, grad=False), integers(64, 8)),
        ce_tvd,
    ),
    _subject("grpo_loss:GrpoLossFunction", grpo_inputs),
    _subject(
        "fused_neighborhood_attention:LigerFusedNeighborhoodAttentionFunction",
        lambda: (*(normal(1, 2, 16, 16, seed=s) for s in range(3)), 3, 1),
        neighbours,
    ),
    _subject(
        "multi_token_attention:LigerMultiTokenAttentionFunction",
        lambda: (normal(1, 2, 16, 16), normal(2, 2, 3, 3, seed=1), normal(2, seed=2), 1, 1),
        multi_token,
    ),
    _subject("fused_moe:LigerFusedMoEFunction", moe_inputs, moe),
    _subject(
        "mlp:LigerMLPFunction",
        lambda: (
            *(normal(8, 64), normal(64, 64, seed=1, scale=0.2)),
            *(normal(64, 64, seed=2, scale=0.2), normal(64, 64, seed=3, scale=0.2)),
        ),
        mlp,
    ),
    _subject(
        "mhc:LigerMHCPreFunction",
        lambda: (normal(8, 4, 64), normal(8, 4, seed=1)),
        lambda x, h: (h.unsqueeze(-1) * x).sum(-2),
    ),
    _subject(
        "mhc:LigerMHCPostResFunction",
        lambda: (
            *(normal(8, 4, 64), normal(8, 64, seed=1)),
            *(normal(8, 4, seed=2), normal(8, 4, 4, seed=3)),
        ),
        mixed_streams,
    ),
]
