"""Layers that keep no activations: invertible blocks, momentum nets, tiled attention."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wild.subject import Subject, integers, linear, load, normal


class Two(nn.Module):
    """A scale and a shift from one input, as affine coupling wants them."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        self.inner = linear(width, 2 * width, seed)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The two halves, the scale kept away from zero."""
        scale, shift = self.inner(x).chunk(2, dim=1)
        return torch.sigmoid(scale) + 0.5, shift


def coupling(kind: type[nn.Module] | None = None) -> tuple[Any, ...]:
    """An input of even width, two inner modules, and their parameters."""
    fm, gm = (kind(3, 1), kind(3, 2)) if kind else (linear(3, 3, 1), linear(3, 3, 2))
    return (normal(4, 6), fm, gm, *fm.parameters(), *gm.parameters())


def reversible(package: str, *more: Any, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A sequence, two reversible blocks of a package, and what their parts get besides."""
    block = load(f"{package}.reversible:ReversibleBlock")
    blocks = nn.ModuleList([block(linear(4, 4, s), linear(4, 4, s + 1)) for s in (1, 3)])
    return (normal(2, 3, 8), blocks, *more, kwargs)


def each(package: str, kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The same where the package keeps the arguments of each block apart."""
    x, blocks, _ = reversible(package, kwargs={})
    return x, blocks, [dict(kwargs) for _ in blocks]


def evoformer() -> tuple[Any, ...]:
    """Pairs and alignments in one tensor, and one block of four parts."""
    block = load("alphafold2_pytorch.reversible:ReversibleSelfAttnBlock")

    class Part(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.inner = linear(4, 4, seed)

        def forward(self, x: Tensor, **_: Any) -> Tensor:
            return self.inner(x)

    return normal(2, 5, 8), 3, nn.ModuleList([block(*(Part(s) for s in (1, 2, 3, 4)))]), {}


def momentum() -> tuple[Any, ...]:
    """A state, a speed, and two residual functions with their parameters."""
    functions = [linear(4, 4, 1), linear(4, 4, 2)]
    params = [p for f in functions for p in f.parameters()]
    speed = torch.zeros(3, 4, requires_grad=True)
    return (normal(3, 4), speed, 0.9, functions, None, True, 0, *params)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool, *_: int) -> Tensor:
    """Plain softmax attention with a mask over keys."""
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])


def heads(*more: Any) -> tuple[Any, ...]:
    """Queries, keys and values of two heads."""
    return (*(normal(1, 2, 6, 4, seed=seed) for seed in (0, 1, 2)), *more)


def cosine_heads() -> tuple[Any, ...]:
    """Queries and keys of unit length, as cosine attention gets them."""
    q, k, v = heads()
    q, k = (functional.normalize(t.detach(), dim=-1).requires_grad_() for t in (q, k))
    return q, k, v, None, 8.0, False, 4, 4


def skew() -> Tensor:
    """A skew-symmetric matrix, whose transform is orthogonal."""
    a = normal(4, 4, grad=False)
    return (0.3 * (a - a.T)).requires_grad_()


KEYS = {"f_args": {}, "g_args": {}}
MEMCNN = "memcnn.models"
SUBJECTS = [
    *(
        Subject("memcnn", f"{MEMCNN}.additive:AdditiveBlock{name}", coupling)
        for name in ("Function", "InverseFunction", "Function2", "InverseFunction2")
    ),
    *(
        Subject("memcnn", f"{MEMCNN}.affine:AffineBlock{name}", partial(coupling, Two))
        for name in ("Function", "InverseFunction", "Function2", "InverseFunction2")
    ),
    Subject("pytorchcv", "pytorchcv.models.revnet:ReversibleBlockFunction", coupling),
    Subject(
        "reformer-pytorch",
        "reformer_pytorch.reversible:_ReversibleFunction",
        partial(reversible, "reformer_pytorch", kwargs=KEYS),
    ),
    *(
        Subject(
            package.replace("_", "-"),
            f"{package}.reversible:_ReversibleFunction",
            partial(each, package, KEYS),
        )
        for package in (
            "performer_pytorch",
            "linear_attention_transformer",
            "sinkhorn_transformer",
            "memory_efficient_attention_pytorch",
        )
    ),
    Subject("alphafold2-pytorch", "alphafold2_pytorch.reversible:ReversibleFunction", evoformer),
    Subject("momentumnet", "momentumnet.momentum_net:MomentumTransformMemory", momentum),
    Subject("iunets", "iunets.cayley:cayley", lambda: (skew(),)),
    Subject("iunets", "iunets.expm:expm", lambda: (skew(),), reference=torch.linalg.matrix_exp),
    Subject(
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch.flash_attention:FlashAttentionFunction",
        lambda: heads(integers(2, 1, 6, seed=3).bool() | (torch.arange(6) < 2), False, 4, 4),
        reference=attention,
    ),
    Subject(
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch.cosine_sim_flash_attention:FlashAttentionFunction",
        cosine_heads,
        "cosine.FlashAttentionFunction",
    ),
]
