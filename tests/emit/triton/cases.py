"""Programs that people write kernels for, in plain PyTorch, with examples of their arguments."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

HALF = torch.bfloat16


def draw(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers, the same each time."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def labels(count: int, classes: int) -> torch.Tensor:
    """Classes, of which one row has none."""
    found = (torch.arange(count) * 7) % (classes // 2)
    found[1] = -100
    return found


# ---- norms ----


def rms_norm(x, weight):
    """Root mean square normalisation."""
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * rstd).to(x.dtype) * weight


def add_rms_norm(x, residual, weight):
    """A residual is added, the sum kept and normalised."""
    h = x + residual
    rstd = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h.float() * rstd).to(x.dtype) * weight, h


def layer_norm(x, weight, bias):
    """Layer normalisation."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def group_norm(x, weight, bias):
    """Group normalisation with four groups."""
    return F.group_norm(x, 4, weight, bias)


def l2_normalize(x):
    """Rows of length one."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)


def dyt(x, alpha, weight, bias):
    """Dynamic tanh."""
    return torch.tanh(alpha * x) * weight + bias


# ---- softmax and losses ----


def softmax(x):
    """Softmax of each row."""
    return torch.softmax(x, -1)


def log_softmax(x):
    """Logarithm of the softmax of each row."""
    return torch.log_softmax(x, -1)


def causal_softmax(scores, mask, scale=0.125):
    """Softmax of scaled scores where the mask allows."""
    return torch.softmax((scores * scale).masked_fill(mask == 0, float("-inf")), -1)


def cross_entropy(logits, target):
    """Cross-entropy with labels that are ignored."""
    return F.cross_entropy(logits.float(), target)


def smoothed_cross_entropy(logits, target):
    """Cross-entropy with label smoothing, per row."""
    return F.cross_entropy(logits, target, label_smoothing=0.1, reduction="none")


def z_loss(logits, target):
    """Cross-entropy, and the square of the logarithm of the partition function."""
    lse = torch.logsumexp(logits, -1)
    picked = logits.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (lse - picked + 1e-4 * lse * lse).mean()


def kl_div(logp, q):
    """Kullback-Leibler divergence, per batch."""
    return F.kl_div(logp, q, reduction="batchmean")


def js_div(x, y):
    """Jensen-Shannon divergence of two rows of logits."""
    p, q = torch.softmax(x, -1), torch.softmax(y, -1)
    m = 0.5 * (p + q)
    return 0.5 * ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)).mean()


def token_logprob(logits, target):
    """The log-probability of the token that was drawn, and the entropy."""
    logp = torch.log_softmax(logits.float(), -1)
    picked = logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return picked, -(logp.exp() * logp).sum(-1)


def cosine(x, y):
    """Cosine similarity of rows."""
    return F.cosine_similarity(x, y, dim=-1)


def focal_loss(x, y):
    """Binary focal loss."""
    p = torch.sigmoid(x)
    ce = -(y * torch.log(p + 1e-6) + (1 - y) * torch.log(1 - p + 1e-6))
    chosen = y * p + (1 - y) * (1 - p)
    return ((1 - chosen) ** 2 * ce).mean()


def huber(x, y):
    """Huber loss."""
    return F.huber_loss(x, y)


# ---- activations ----


def bias_gelu(x, bias):
    """A bias and the exact GELU."""
    return F.gelu(x + bias)


def swiglu(gate, up):
    """SiLU of one half times the other."""
    return F.silu(gate) * up


def geglu(gate, up):
    """GELU, by its tanh form, of one half times the other."""
    return F.gelu(gate, approximate="tanh") * up


def packed_swiglu(x):
    """SiLU of the first half of each row times the second."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def relu_squared(x):
    """The square of ReLU."""
    return F.relu(x).square()


def layer_scale(x, branch, gamma):
    """A residual branch, scaled per channel."""
    return x + gamma * branch


def softcap(x):
    """Scores held within 30 by tanh."""
    return 30.0 * torch.tanh(x / 30.0)


# ---- places ----


def rope(q, cos, sin):
    """Rotary embedding by half-turns, of a transposed view."""
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), -1)
    return q * cos + turned * sin


def bias_of_positions(x, position):
    """An embedding of positions added to a batch."""
    return torch.sin(x + position)


Case = tuple[Callable[..., Any], tuple[Any, ...]]


def cases() -> dict[str, Case]:
    """A program and its examples, by name."""
    view = draw(2, 6, 3, 16, dtype=HALF).transpose(1, 2).detach().requires_grad_()
    table = draw(6, 16, grad=False, dtype=HALF)
    rows = {
        rms_norm: (draw(4, 1056, dtype=HALF), draw(1056, dtype=HALF)),
        add_rms_norm: (draw(6, 40, dtype=HALF), draw(6, 40, dtype=HALF), draw(40, dtype=HALF)),
        layer_norm: (draw(2, 3, 1056), draw(1056), draw(1056)),
        group_norm: (draw(2, 8, 3, 4), draw(8), draw(8)),
        l2_normalize: (draw(5, 24),),
        dyt: (draw(6, 40), draw(1), draw(40), draw(40)),
        softmax: (draw(3, 1056),),
        log_softmax: (draw(2, 40000),),
        causal_softmax: (draw(6, 24), torch.ones(6, 24).tril()),
        cross_entropy: (draw(4, 33000, dtype=HALF), labels(4, 33000)),
        smoothed_cross_entropy: (draw(4, 50), labels(4, 50)),
        z_loss: (draw(4, 50), labels(4, 50).clamp(min=0)),
        kl_div: (draw(4, 50), torch.softmax(draw(4, 50, grad=False), -1)),
        js_div: (draw(4, 50), draw(4, 51)[:, 1:].detach().requires_grad_()),
        token_logprob: (draw(4, 50), labels(4, 50).clamp(min=0)),
        cosine: (draw(5, 24), draw(5, 25)[:, :24].detach().requires_grad_()),
        focal_loss: (draw(5, 24), (draw(5, 24, grad=False) > 0).float()),
        huber: (draw(5, 24), draw(24, 5).t().detach()),
        bias_gelu: (draw(6, 40), draw(40)),
        swiglu: (draw(6, 40, dtype=HALF), draw(6, 40, dtype=HALF)),
        geglu: (draw(6, 40), draw(6, 40)),
        packed_swiglu: (draw(6, 40),),
        relu_squared: (draw(6, 40),),
        layer_scale: (draw(2, 3, 40), draw(2, 3, 40), draw(40)),
        softcap: (draw(6, 40),),
        rope: (view, table, table.detach() * 0.5),
        bias_of_positions: (draw(4, 3, 20), draw(3, 20)),
    }
    return {program.__name__: (program, given) for program, given in rows.items()}
