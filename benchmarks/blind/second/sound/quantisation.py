"""Quantisers: straight-through and exact ones."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, in_range, full_precision


class FakeQuantAffine(Function):
    """Affine fake quantisation; straight through inside the range, zero outside."""

    @staticmethod
    def forward(ctx, x, scale, zero_point, qmin=-128, qmax=127):
        real_floating("FakeQuantAffine", x)
        if not scale > 0 or not qmin <= zero_point <= qmax:
            raise ValueError("FakeQuantAffine: scale > 0 and qmin <= zero_point <= qmax expected")
        q = torch.round(x / scale) + zero_point
        ctx.save_for_backward((q >= qmin) & (q <= qmax))
        return (q.clamp(qmin, qmax) - zero_point) * scale

    @staticmethod
    def backward(ctx, grad_out):
        inside, = ctx.saved_tensors
        return grad_out * inside, None, None, None, None


class LearnedStepSize(Function):
    """LSQ (Esser et al. 2020): both x and the positive scalar scale get straight-through gradients."""

    @staticmethod
    def forward(ctx, x, scale, bits=4):
        real_floating("LearnedStepSize", x, scale)
        if scale.numel() != 1 or not float(scale) > 0 or not 2 <= bits <= 16:
            raise ValueError("LearnedStepSize: one positive scale and 2 to 16 bits expected")
        ctx.save_for_backward(x, scale)
        ctx.low, ctx.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return (x / scale).clamp(ctx.low, ctx.high).round() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        x, scale = ctx.saved_tensors
        v = x / scale
        inside = (v >= ctx.low) & (v <= ctx.high)
        gx = grad_out * inside if ctx.needs_input_grad[0] else None
        gs = None
        if ctx.needs_input_grad[1]:
            q = v.clamp(ctx.low, ctx.high).round()
            gs = (grad_out * (q - v * inside)).sum() * (max(x.numel(), 1) * ctx.high) ** -0.5
            gs = gs.reshape(scale.shape)
        return gx, gs, None


class BinarySign(Function):
    """Sign to -1 and +1 (zero goes up) with the hard-tanh straight-through window."""

    @staticmethod
    def forward(ctx, weight):
        real_floating("BinarySign", weight)
        ctx.save_for_backward(weight)
        return torch.where(weight >= 0, 1.0, -1.0).to(weight.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        weight, = ctx.saved_tensors
        return grad_out * (weight.abs() <= 1)


class TernaryWeight(Function):
    """Ternary weight network: {-a, 0, a} per row, threshold 0.7 mean|w|; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, weight):
        real_floating("TernaryWeight", weight)
        if weight.dim() < 2 or weight[:1].numel() == 0:
            raise ValueError("TernaryWeight: at least two axes with non-empty rows expected")
        flat = weight.flatten(1)
        on = flat.abs() > 0.7 * flat.abs().mean(1, keepdim=True)
        size = (flat.abs() * on).sum(1, keepdim=True) / on.sum(1, keepdim=True).clamp_min(1)
        return (flat.sign() * on * size).reshape(weight.shape)

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out


class StochasticRound(Function):
    """Round up with probability of the fraction; the generator's seed is an argument, so that runs repeat."""

    @staticmethod
    def forward(ctx, x, step, seed):
        real_floating("StochasticRound", x)
        if not step > 0:
            raise ValueError("StochasticRound: step must be positive")
        gen = torch.Generator(device=x.device).manual_seed(seed)
        noise = torch.rand(x.shape, generator=gen, dtype=torch.float32, device=x.device).to(x.dtype)
        return torch.floor(x / step + noise) * step

    @staticmethod
    def backward(ctx, grad_out):
        return grad_out, None, None


class DoReFaWeight(Function):
    """DoReFa weights: tanh squashed to [-1, 1] by its largest size (a constant in backward), then k-bit levels."""

    @staticmethod
    def forward(ctx, weight, bits):
        real_floating("DoReFaWeight", weight)
        if bits < 2 or weight.numel() == 0 or not bool((weight != 0).any()):
            raise ValueError("DoReFaWeight: bits >= 2 and a weight that is not all zero expected")
        t = torch.tanh(weight)
        ctx.peak = float(t.abs().max())
        ctx.save_for_backward(weight)
        n = 2 ** bits - 1
        return 2 * torch.round((t / (2 * ctx.peak) + 0.5) * n) / n - 1

    @staticmethod
    def backward(ctx, grad_out):
        weight, = ctx.saved_tensors
        return grad_out * (1 - torch.tanh(weight).square()) / ctx.peak, None


class VectorQuantize(Function):
    """Nearest code of each row: straight through to z, exact gradient to the chosen rows of the codebook."""

    @staticmethod
    def forward(ctx, z, codebook):
        real_floating("VectorQuantize", z, codebook)
        if z.dim() != 2 or codebook.dim() != 2 or z.shape[1] != codebook.shape[1] or codebook.shape[0] == 0:
            raise ValueError("VectorQuantize: z (N, D) and a non-empty codebook (K, D) expected")
        index = (z[:, None] - codebook[None]).square().sum(-1).argmin(1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.codes = codebook.shape[0]
        return codebook[index], index

    @staticmethod
    def backward(ctx, grad_out, _):
        index, = ctx.saved_tensors
        gc = None
        if ctx.needs_input_grad[1]:
            gc = grad_out.new_zeros(ctx.codes, grad_out.shape[1]).index_add(0, index, grad_out)
        return grad_out if ctx.needs_input_grad[0] else None, gc


class Int4Linear(Function):
    """x @ W^T with W stored as two 4-bit numbers per byte and one scale per group of input columns."""

    @staticmethod
    def unpack(packed, scales):
        nibbles = torch.stack((packed & 15, packed >> 4), -1).flatten(1).to(torch.int16) - 8
        return nibbles.to(scales.dtype).unflatten(1, (scales.shape[1], -1))

    @staticmethod
    def forward(ctx, x, packed, scales):
        real_floating("Int4Linear", x, scales)
        if packed.dtype != torch.uint8 or packed.dim() != 2 or scales.dim() != 2 or packed.numel() == 0:
            raise TypeError("Int4Linear: a non-empty uint8 matrix and a matrix of scales expected")
        if scales.shape[0] != packed.shape[0] or 2 * packed.shape[1] % scales.shape[1] or x.shape[-1] != 2 * packed.shape[1]:
            raise ValueError("Int4Linear: sizes do not fit")
        ctx.save_for_backward(x, packed, scales)
        with full_precision(x):
            return x @ (Int4Linear.unpack(packed, scales) * scales[..., None]).flatten(1).t()

    @staticmethod
    def backward(ctx, grad_out):
        x, packed, scales = ctx.saved_tensors
        gx = gs = None
        with full_precision(x):
            ints = Int4Linear.unpack(packed, scales)
            if ctx.needs_input_grad[0]:
                gx = grad_out @ (ints * scales[..., None]).flatten(1)
            if ctx.needs_input_grad[2]:
                gw = grad_out.reshape(-1, grad_out.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
                gs = (gw.unflatten(1, (scales.shape[1], -1)) * ints).sum(-1)
        return gx, None, gs


class Float8RoundTrip(Function):
    """Round to float8 e4m3 with saturation at 448 and back; the gradient passes where nothing saturates."""

    @staticmethod
    def forward(ctx, x):
        real_floating("Float8RoundTrip", x)
        ctx.save_for_backward(x.abs() <= 448)
        return x.clamp(-448, 448).to(torch.float32).to(torch.float8_e4m3fn).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        inside, = ctx.saved_tensors
        return grad_out * inside


class LookupDequant(Function):
    """table[codes] * scale: integer codes, a learnable table of levels and one scale per row, all exact."""

    @staticmethod
    def forward(ctx, codes, table, scale):
        real_floating("LookupDequant", table, scale)
        if codes.dtype != torch.int64 or codes.dim() != 2 or table.dim() != 1 or scale.shape != codes.shape[:1]:
            raise TypeError("LookupDequant: int64 codes (N, M), table (K,), scale (N,) expected")
        in_range("LookupDequant", codes, table.numel())
        ctx.save_for_backward(codes, table, scale)
        return table[codes] * scale[:, None]

    @staticmethod
    def backward(ctx, grad_out):
        codes, table, scale = ctx.saved_tensors
        gt = gs = None
        if ctx.needs_input_grad[1]:
            gt = torch.zeros_like(table).index_add(0, codes.reshape(-1), (grad_out * scale[:, None]).reshape(-1))
        if ctx.needs_input_grad[2]:
            gs = (grad_out * table[codes]).sum(1)
        return None, gt, gs


def lsq_reference(x, scale, bits=4):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    k = (x.numel() * high) ** -0.5
    s = scale * k + (scale - scale * k).detach()
    q = (x / s).clamp(low, high)
    return (q + (q.round() - q).detach()) * s


def small_codebook():
    book = rand(4, 3, seed=9, grad=False)
    z = book[torch.tensor([0, 2, 2, 1, 0])] + 0.05 * rand(5, 3, grad=False)
    return z.requires_grad_(), book.requires_grad_()


def packed_weight():
    return integers(0, 256, 3, 4).to(torch.uint8)


CASES = [
    case("fake_quant_affine", FakeQuantAffine, lambda: (rand(4, 5, dtype=torch.float32), 0.1, 3, -8, 7), "Straight-through estimator, declared.",
         declares={"surrogate": ["x"]}, ref=lambda x, s, z, a, b: torch.where((torch.round(x / s) + z >= a) & (torch.round(x / s) + z <= b), x, 0 * x.detach())),
    case("learned_step_size", LearnedStepSize, lambda: (rand(3, 4), torch.tensor(0.21, dtype=torch.float64, requires_grad=True), 3),
         "Straight-through for the input and the step, declared for both.", declares={"surrogate": ["x", "scale"]}, ref=lsq_reference, second="refused", loose16=True),
    case("binary_sign", BinarySign, lambda: (rand(4, 3),), "Sign with a straight-through window, not declared.", ref=lambda w: w.clamp(-1, 1)),
    case("ternary_weight", TernaryWeight, lambda: (rand(3, 2, 2),), "Ternary weights with the identity as gradient, not declared.", ref=lambda w: w * 1),
    case("stochastic_round", StochasticRound, lambda: (rand(3, 4), 0.25, 11), "Random rounding from a seed, identity gradient, not declared.",
         ref=lambda x, s, k: x * 1, more=[lambda: (rand(0), 0.5, 1)]),
    case("dorefa_weight", DoReFaWeight, lambda: (rand(3, 3), 3), "Levels of a squashed weight, straight through the rounding, declared.", declares={"surrogate": ["weight"]},
         ref=lambda w, b: torch.tanh(w) / torch.tanh(w).abs().max().detach()),
    case("vector_quantize", VectorQuantize, lambda: small_codebook(), "z gets the straight-through gradient (declared), the codebook its true one.",
         declares={"surrogate": ["z"]}, ref=lambda z, c: c[(z[:, None] - c[None]).square().sum(-1).argmin(1)] + (z - z.detach())),
    case("int4_linear", Int4Linear, lambda: (rand(2, 5, 8), packed_weight(), uniform(3, 2, low=0.1)), "Packed integer weights with a learnable scale per group; exact.",
         more=[lambda: (rand(8), packed_weight(), uniform(3, 8, seed=1)), lambda: (rand(0, 8), packed_weight(), uniform(3, 1))]),
    case("float8_round_trip", Float8RoundTrip, lambda: (rand(3, 4, scale=300, dtype=torch.float32),), "Float8 rounding with a saturation mask, not declared.",
         ref=lambda x: x.clamp(-448, 448), second="refused"),
    case("lookup_dequant", LookupDequant, lambda: (integers(0, 5, 3, 4), rand(5), uniform(3)), "Table entries used several times add up; exact.",
         more=[lambda: (torch.zeros(0, 2, dtype=torch.int64), rand(2), uniform(0))]),
]
