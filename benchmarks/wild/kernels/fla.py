"""flash-linear-attention (`fla-core`): activations, norms, shifts, gates, losses, recurrences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.wild.kernels.liger import angles, on_gpu, rms
from benchmarks.wild.subject import Inputs, Subject, integers, normal

PACKAGE = "fla-core"


def two() -> tuple[Any, ...]:
    """A gate and what it lets through."""
    return normal(8, 64), normal(8, 64, seed=1)


def sequences(*more: Tensor) -> tuple[Any, ...]:
    """Two sequences of sixteen tokens."""
    return normal(2, 16, 64), *more


def layer_norm(x: Tensor, w: Tensor, b: Tensor, residual: Any, eps: float, *_: Any) -> Tensor:
    """PyTorch's own."""
    return functional.layer_norm(x, x.shape[-1:], w, b, eps)


def gated_norm(x: Tensor, g: Tensor, w: Tensor, *rest: Any) -> Tensor:
    """The norm of a row, times a gate."""
    return rms(x, 1e-6) * w * functional.silu(g)


def shifted(x: Tensor, *rest: Any) -> Any:
    """The token before each one, less itself."""
    before = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
    return before - x, None


def pooled(x: Tensor, size: int, *rest: Any) -> Tensor:
    """The mean over pieces of a sequence."""
    return torch.stack([piece.mean(1) for piece in x.split(size, 1)], 1)


def hgrn(x: Tensor, g: Tensor, *rest: Any) -> Any:
    """A gated recurrence, `g` the logarithm of the decay."""
    state, found = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = g[:, t].exp() * state + x[:, t]
        found.append(state)
    return torch.stack(found, 1), None


def gates() -> tuple[Any, ...]:
    """Inputs, and logarithms of decays."""
    decays = functional.logsigmoid(normal(2, 16, 32, seed=1, grad=False))
    return normal(2, 16, 32), decays.requires_grad_()


def addcmul(x: Tensor, delta: Tensor, *mixes: Any) -> Any:
    """Six mixtures of a token and its difference."""
    return tuple(None if m is None else x + delta * m for m in mixes)


def convolved(x: Tensor, w: Tensor, *rest: Any) -> Any:
    """A causal convolution of each channel."""
    taps = w.shape[-1]
    padded = functional.pad(x.transpose(1, 2), (taps - 1, 0))
    return functional.conv1d(padded, w.unsqueeze(1), groups=x.shape[-1]).transpose(1, 2), None


def rotary_inputs() -> tuple[Any, ...]:
    """Heads of sixteen, and half as many angles."""
    cos, sin = (table[:, :8].contiguous() for table in angles(8, 16))
    return normal(2, 8, 4, 16), cos, sin


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> Tensor:
    """One half turned against the other."""
    one, two = x.chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat((one * cos - two * sin, one * sin + two * cos), -1)


def linear_kl(x: Tensor, target: Tensor, w: Tensor, other: Tensor, *rest: Any) -> Tensor:
    """The divergence of two linear layers' predictions."""
    want = (target @ other.T).softmax(-1)
    return functional.kl_div((x @ w.T).log_softmax(-1), want, reduction="batchmean")


def _subject(path: str, inputs: Inputs, reference: Any = None, name: str = "") -> Subject:
    return Subject(PACKAGE, f"fla.{path}", on_gpu(inputs), name, reference)


ACTIVATIONS = "modules.activations.ops"
SUBJECTS = [
    _subject(f"{ACTIVATIONS}:SigmoidFunction", lambda: (normal(8, 64),), torch.sigmoid),
    _subject(
        f"{ACTIVATIONS}:LogSigmoidFunction",
        lambda: (normal(8, 64), 1.0),
        lambda x, t: functional.logsigmoid(x) / t,
    ),
    _subject(
        f"{ACTIVATIONS}:ELUPlusOneFunction",
        lambda: (normal(8, 64),),
        lambda x: functional.elu(x) + 1,
    ),
    _subject(f"{ACTIVATIONS}:SwishFunction", lambda: (normal(8, 64),), functional.silu),
    _subject(
        f"{ACTIVATIONS}:GeLUFunction",
        lambda: (normal(8, 64), normal(64, seed=1)),
        lambda x, b: functional.gelu(x + b, approximate="tanh"),
    ),
    _subject(
        f"{ACTIVATIONS}:FastGeLUFunction",
        lambda: (normal(8, 64),),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    _subject(
        f"{ACTIVATIONS}:SquaredReLUFunction", lambda: (normal(8, 64),), lambda x: x.relu().square()
    ),
    _subject(f"{ACTIVATIONS}:SwiGLUFunction", two, lambda x, y: functional.silu(x) * y),
    _subject(
        f"{ACTIVATIONS}:SwiGLULinearFunction",
        lambda: (*two(), normal(32, 64, seed=2, scale=0.2), normal(32, seed=3)),
        lambda x, y, w, b: functional.linear(functional.silu(x) * y, w, b),
    ),
    _subject(f"{ACTIVATIONS}:SigmoidGLUFunction", two, lambda x, y: x.sigmoid() * y),
    _subject(
        "modules.norm.l2norm:L2NormFunction",
        lambda: (normal(8, 64),),
        lambda x, *_: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6),
    ),
    _subject(
        "modules.norm.layernorm:LayerNormFunction",
        lambda: (normal(8, 64), normal(64, seed=1), normal(64, seed=2), None, 1e-5),
        layer_norm,
    ),
    _subject(
        "modules.norm.fused_norm_gate:LayerNormGatedFunction",
        lambda: (
            *(normal(8, 64), normal(8, 64, seed=1), normal(64, seed=2), None, "swish"),
            *(None, 1e-6, False, False, True),
        ),
        gated_norm,
    ),
    _subject("modules.token_shift:TokenShift", sequences, shifted),
    _subject("ops.utils.pooling:MeanPoolingFunction", lambda: (normal(2, 16, 2, 32), 8), pooled),
    _subject(
        "ops.common.gate:BetaSigmoidFunction",
        lambda: (normal(2, 16, 4), 2.0),
        lambda x, scale: x.sigmoid() * scale,
    ),
    _subject(
        "modules.fused_cross_entropy.ops:FusedCrossEntropyFunction",
        lambda: (normal(8, 64), integers(64, 8)),
        lambda x, y, *_: (
            functional.cross_entropy(x, y, reduction="none"),
            torch.zeros_like(x[:, 0].detach()),
        ),
    ),
    _subject(
        "modules.fused_linear_cross_entropy.ops:FusedLinearCrossEntropyFunction",
        lambda: (normal(8, 32), integers(64, 8), normal(64, 32, seed=1, scale=0.2)),
        lambda x, y, w, *_: functional.cross_entropy(x @ w.T, y),
    ),
    _subject(
        "modules.fused_kl_div.ops:FusedKLDivLossFunction",
        lambda: (
            *(normal(8, 32), normal(8, 32, seed=1, grad=False)),
            normal(64, 32, seed=2, scale=0.2),
            *(normal(64, 32, seed=3, scale=0.2, grad=False), "batchmean", True, True),
        ),
        linear_kl,
    ),
    _subject(
        "ops.rwkv7.fused_addcmul:Rwkv7FusedAddcmul",
        lambda: (
            *(normal(2, 8, 32), normal(2, 8, 32, seed=1)),
            *(normal(1, 1, 32, seed=s) for s in range(2, 8)),
        ),
        addcmul,
    ),
    _subject("ops.hgrn.chunk:ChunkHGRNFunction", gates, hgrn),
    _subject("ops.hgrn.fused_recurrent:FusedRecurrentHGRNFunction", gates, hgrn),
    _subject(
        "modules.causal_conv1d.ops:CausalConv1dFunction",
        lambda: sequences(normal(64, 4, seed=1)),
        convolved,
    ),
    _subject("modules.rotary.ops:RotaryEmbeddingFunction", rotary_inputs, rotary),
]
