"""Vision, point-cloud and differentiable-rendering operators."""
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
import torch.nn.functional as F


class TemporalShift(Function):
    """TSM shift: 1/div of the channels one step back in time, 1/div one step forward.

    Input (batch, time, channels, ...); frames shifted in from outside are zero.
    """

    @staticmethod
    def _shift(x, div, forward):
        fold = x.shape[2] // div
        out = torch.zeros_like(x, memory_format=torch.contiguous_format)
        left, right = slice(0, fold), slice(fold, 2 * fold)
        if not forward:
            left, right = right, left
        out[:, :-1, left] = x[:, 1:, left]
        out[:, 1:, right] = x[:, :-1, right]
        out[:, :, 2 * fold:] = x[:, :, 2 * fold:]
        return out

    @staticmethod
    def forward(ctx, x, div):
        if x.dim() < 3 or x.shape[2] // div == 0:
            raise ValueError("need (B, T, C, ...) with at least div channels")
        ctx.div = div
        return TemporalShift._shift(x, div, True)

    @staticmethod
    def backward(ctx, grad_output):
        return TemporalShift._shift(grad_output, ctx.div, False), None


class LocalCorrelation(Function):
    """Correlation volume of two feature maps over displacements in a (2r+1)^2 window.

    Returns (B, (2r+1)^2, H, W), the channel mean of f1(x) * f2(x + d).
    """

    @staticmethod
    def _offsets(r):
        return [(dy, dx) for dy in range(2 * r + 1) for dx in range(2 * r + 1)]

    @staticmethod
    def forward(ctx, f1, f2, radius):
        if f1.shape != f2.shape:
            raise ValueError("feature maps must have the same shape")
        ctx.save_for_backward(f1, f2)
        ctx.radius = radius
        h, w = f1.shape[-2:]
        padded = F.pad(f2, [radius] * 4)
        planes = [(f1 * padded[:, :, dy:dy + h, dx:dx + w]).mean(1) for dy, dx in LocalCorrelation._offsets(radius)]
        return torch.stack(planes, dim=1)

    @staticmethod
    def backward(ctx, grad_output):
        f1, f2 = ctx.saved_tensors
        r = ctx.radius
        c, h, w = f1.shape[1:]
        grad1 = grad2 = None
        offsets = LocalCorrelation._offsets(r)
        if ctx.needs_input_grad[0]:
            padded = F.pad(f2, [r] * 4)
            grad1 = sum(grad_output[:, k:k + 1] * padded[:, :, dy:dy + h, dx:dx + w]
                        for k, (dy, dx) in enumerate(offsets)) / c
        if ctx.needs_input_grad[1]:
            total = 0
            for k, (dy, dx) in enumerate(offsets):
                plane = grad_output[:, k:k + 1] * f1
                total = total + F.pad(plane, [dx, 2 * r - dx, dy, 2 * r - dy])
            grad2 = total[:, :, r:r + h, r:r + w] / c
        return grad1, grad2, None


class GatherPoints(Function):
    """Pick point features: (B, C, N) and int64 (B, M) -> (B, C, M)."""

    @staticmethod
    def forward(ctx, features, idx):
        if idx.dtype != torch.int64:
            raise TypeError("idx must be int64")
        b, c, n = features.shape
        ctx.save_for_backward(idx)
        ctx.num_points = n
        return features.gather(2, idx.unsqueeze(1).expand(b, c, -1))

    @staticmethod
    def backward(ctx, grad_output):
        (idx,) = ctx.saved_tensors
        b, c, _ = grad_output.shape
        zeros = grad_output.new_zeros(b, c, ctx.num_points)
        return zeros.scatter_add(2, idx.unsqueeze(1).expand(b, c, -1), grad_output), None


class ThreeInterpolate(Function):
    """PointNet++ feature propagation: weighted sum of three known neighbours.

    Args:
        features: (B, C, M) known features.
        idx: (B, N, 3) int64 neighbours.
        weight: (B, N, 3) interpolation weights.
    """

    @staticmethod
    def _neighbours(features, idx):
        b, c, _ = features.shape
        flat = idx.reshape(b, 1, -1).expand(b, c, -1)
        return features.gather(2, flat).reshape(b, c, *idx.shape[1:])

    @staticmethod
    def forward(ctx, features, idx, weight):
        if idx.shape != weight.shape or idx.shape[-1] != 3:
            raise ValueError("idx and weight must be (B, N, 3)")
        ctx.save_for_backward(features, idx, weight)
        return (ThreeInterpolate._neighbours(features, idx) * weight.unsqueeze(1)).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        features, idx, weight = ctx.saved_tensors
        grad_features = grad_weight = None
        if ctx.needs_input_grad[0]:
            b, c, m = features.shape
            spread = (grad_output.unsqueeze(-1) * weight.unsqueeze(1)).reshape(b, c, -1)
            flat = idx.reshape(b, 1, -1).expand(b, c, -1)
            grad_features = features.new_zeros(b, c, m).scatter_add(2, flat, spread)
        if ctx.needs_input_grad[2]:
            near = ThreeInterpolate._neighbours(features, idx)
            grad_weight = (grad_output.unsqueeze(-1) * near).sum(1)
        return grad_features, None, grad_weight


class BlurDownsample(Function):
    """Anti-aliased stride-2 downsampling by a fixed depthwise kernel (BlurPool), zero padded."""

    @staticmethod
    def forward(ctx, x, kernel):
        if kernel.dim() != 2 or kernel.shape[0] % 2 == 0 or kernel.shape[0] != kernel.shape[1]:
            raise ValueError("kernel must be square with odd size")
        if ctx.needs_input_grad[1]:
            raise ValueError("the blur kernel is a fixed buffer")
        ctx.save_for_backward(kernel)
        ctx.in_shape = x.shape
        c, pad = x.shape[1], kernel.shape[0] // 2
        weight = kernel.expand(c, 1, *kernel.shape)
        return F.conv2d(x, weight, stride=2, padding=pad, groups=c)

    @staticmethod
    def backward(ctx, grad_output):
        (kernel,) = ctx.saved_tensors
        c, h, w = ctx.in_shape[1:]
        pad = kernel.shape[0] // 2
        weight = kernel.expand(c, 1, *kernel.shape)
        extra = ((h - 1) % 2, (w - 1) % 2)
        grad = F.conv_transpose2d(grad_output, weight, stride=2, padding=pad, output_padding=extra, groups=c)
        return grad, None


class SoftPool2x2(Function):
    """SoftPool over non-overlapping 2x2 windows: softmax-weighted average of each window."""

    @staticmethod
    def _windows(x):
        b, c, h, w = x.shape
        return x.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 2, 4, 3, 5).reshape(b, c, h // 2, w // 2, 4)

    @staticmethod
    def _merge(win):
        b, c, h, w, _ = win.shape
        return win.reshape(b, c, h, w, 2, 2).permute(0, 1, 2, 4, 3, 5).reshape(b, c, 2 * h, 2 * w)

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] % 2 or x.shape[-2] % 2:
            raise ValueError("height and width must be even")
        ctx.save_for_backward(x)
        win = SoftPool2x2._windows(x)
        return (torch.softmax(win, -1) * win).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        win = SoftPool2x2._windows(x)
        p = torch.softmax(win, -1)
        pooled = (p * win).sum(-1, keepdim=True)
        return SoftPool2x2._merge(grad_output.unsqueeze(-1) * p * (1 + win - pooled))


class AlphaComposite(Function):
    """Front-to-back compositing of (rays, samples) densities and colours (NeRF).

    Returns the pixel colour (R, 3) and the accumulated opacity (R,).
    The backward runs one reverse sweep over suffix sums.
    """

    @staticmethod
    def _weights(sigma, delta):
        tau = sigma * delta
        before = torch.cumsum(tau, dim=1) - tau
        return torch.exp(-before) * -torch.expm1(-tau)

    @staticmethod
    def forward(ctx, sigma, color, delta):
        if ctx.needs_input_grad[2]:
            raise ValueError("sample spacings are treated as constants")
        w = AlphaComposite._weights(sigma, delta)
        ctx.save_for_backward(sigma, color, delta)
        return (w.unsqueeze(-1) * color).sum(1), w.sum(1)

    @staticmethod
    def backward(ctx, grad_rgb, grad_acc):
        sigma, color, delta = ctx.saved_tensors
        tau = sigma * delta
        after = torch.cumsum(tau, dim=1)
        w = AlphaComposite._weights(sigma, delta)
        grad_sigma = grad_color = None
        if ctx.needs_input_grad[0]:
            value = (color * grad_rgb.unsqueeze(1)).sum(-1) + grad_acc.unsqueeze(1)
            contrib = w * value
            suffix = contrib.flip(1).cumsum(1).flip(1) - contrib
            grad_sigma = delta * (torch.exp(-after) * value - suffix)
        if ctx.needs_input_grad[1]:
            grad_color = w.unsqueeze(-1) * grad_rgb.unsqueeze(1)
        return grad_sigma, grad_color, None


class TruncExp(Function):
    """exp(x) whose backward clamps the exponent to [-15, 15] (torch-ngp density activation)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.exp(x.clamp(-15, 15))


class QuaternionToMatrix(Function):
    """Rotation matrices (..., 3, 3) of quaternions (..., 4) in (w, x, y, z) order.

    Uses the homogeneous form, so quaternions should have unit norm to give rotations.
    """

    @staticmethod
    def forward(ctx, q):
        if q.shape[-1] != 4:
            raise ValueError("last dimension must be 4")
        ctx.save_for_backward(q)
        w, x, y, z = q.unbind(-1)
        return torch.stack([
            w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z,
        ], dim=-1).reshape(*q.shape[:-1], 3, 3)

    @staticmethod
    def backward(ctx, grad_output):
        (q,) = ctx.saved_tensors
        w, x, y, z = q.unbind(-1)
        g = grad_output.flatten(-2)
        g00, g01, g02, g10, g11, g12, g20, g21, g22 = g.unbind(-1)
        dw = w * (g00 + g11 + g22) + x * (g21 - g12) + y * (g02 - g20) + z * (g10 - g01)
        dx = x * (g00 - g11 - g22) + y * (g01 + g10) + z * (g02 + g20) + w * (g21 - g12)
        dy = y * (g11 - g00 - g22) + x * (g01 + g10) + z * (g12 + g21) + w * (g02 - g20)
        dz = z * (g22 - g00 - g11) + x * (g02 + g20) + y * (g12 + g21) + w * (g10 - g01)
        return 2 * torch.stack([dw, dx, dy, dz], dim=-1)


class RaySphere(Function):
    """Entry distance of unit-direction rays into one sphere (rays starting inside count as missed).

    Returns the distance (0 where missed) and a bool hit mask (non-differentiable).
    Differentiable in the sphere's centre (3,) and radius (0-dim); rays are constants.
    """

    @staticmethod
    def _geometry(origin, direction, center):
        oc = origin - center
        return oc, (oc * direction).sum(-1)

    @staticmethod
    def forward(ctx, origin, direction, center, radius):
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            raise ValueError("rays are treated as constants")
        oc, b = RaySphere._geometry(origin, direction, center)
        disc = b * b - (oc * oc).sum(-1) + radius * radius
        t = -b - torch.sqrt(disc.clamp_min(0))
        hit = (disc > 0) & (t > 0)
        t = torch.where(hit, t, torch.zeros_like(t))
        ctx.save_for_backward(origin, direction, center, radius, t, hit)
        ctx.mark_non_differentiable(hit)
        return t, hit

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_t, _grad_hit):
        origin, direction, center, radius, t, hit = ctx.saved_tensors
        # Implicit function |o + t d - c|^2 = r^2 at the hit point.
        normal = origin + t.unsqueeze(-1) * direction - center
        slope = (normal * direction).sum(-1)
        coeff = torch.where(hit, grad_t / torch.where(hit, slope, torch.ones_like(slope)), torch.zeros_like(t))
        grad_center = (coeff.unsqueeze(-1) * normal).sum(0) if ctx.needs_input_grad[2] else None
        grad_radius = (coeff * radius).sum() if ctx.needs_input_grad[3] else None
        return None, None, grad_center, grad_radius


class GridLookup1D(Function):
    """Linear interpolation in a feature grid (R, F) at coordinates in [0, 1].

    Differentiable in the grid and in the coordinates.
    """

    @staticmethod
    def _cell(coords, resolution):
        pos = coords * (resolution - 1)
        low = pos.detach().floor().clamp(0, resolution - 2).long()
        return pos - low, low

    @staticmethod
    def forward(ctx, grid, coords):
        if grid.dim() != 2 or coords.dim() != 1 or grid.shape[0] < 2:
            raise ValueError("expected grid (R, F) with R >= 2 and coords (N,)")
        ctx.save_for_backward(grid, coords)
        frac, low = GridLookup1D._cell(coords, grid.shape[0])
        return torch.lerp(grid[low], grid[low + 1], frac.unsqueeze(-1))

    @staticmethod
    def backward(ctx, grad_output):
        grid, coords = ctx.saved_tensors
        frac, low = GridLookup1D._cell(coords, grid.shape[0])
        grad_grid = grad_coords = None
        if ctx.needs_input_grad[0]:
            right = grad_output * frac.unsqueeze(-1)
            grad_grid = torch.zeros_like(grid).index_add(0, low, grad_output - right).index_add(0, low + 1, right)
        if ctx.needs_input_grad[1]:
            grad_coords = (grad_output * (grid[low + 1] - grid[low])).sum(-1) * (grid.shape[0] - 1)
        return grad_grid, grad_coords


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


def _blur_kernel():
    k = torch.tensor([1., 2., 1.], dtype=torch.float64)
    return torch.outer(k, k) / 16


def _rays():
    o = torch.tensor([[0., 0., -3.]], dtype=torch.float64).expand(5, 3).clone()
    target = torch.cat([0.6 * _randn(4, 2), torch.tensor([[5., 5.]], dtype=torch.float64)])
    d = F.normalize(torch.cat([target, torch.full((5, 1), 3., dtype=torch.float64)], 1), dim=1)
    return o, d, torch.tensor([0.1, -0.1, 0.2], dtype=torch.float64, requires_grad=True), \
        torch.tensor(1.3, dtype=torch.float64, requires_grad=True)


CASES = [
    dict(name="local_correlation", target=LocalCorrelation,
         inputs=lambda: (_randn(1, 2, 4, 3).requires_grad_(), _randn(1, 2, 4, 3, seed=1).requires_grad_(), 1),
         declares={}, note="bilinear; both gradients from saved inputs"),
    dict(name="three_interpolate", target=ThreeInterpolate,
         inputs=lambda: (_randn(2, 3, 5).requires_grad_(),
                         torch.tensor([[[0, 1, 2], [2, 3, 4], [1, 1, 0], [4, 0, 2]], [[3, 1, 2], [0, 3, 4], [2, 1, 0], [4, 4, 2]]]),
                         torch.softmax(_randn(2, 4, 3, seed=2), -1).requires_grad_()),
         declares={}, note="gradient for features and for weights"),
    dict(name="blur_downsample", target=BlurDownsample,
         inputs=lambda: (_randn(2, 3, 6, 5).requires_grad_(), _blur_kernel()),
         declares={}, note="constant kernel (requires_grad refused); odd/even sizes handled by output_padding"),
    dict(name="soft_pool_2x2", target=SoftPool2x2, inputs=lambda: (_randn(2, 2, 4, 4).requires_grad_(),),
         declares={}, note="saves x only"),
    dict(name="alpha_composite", target=AlphaComposite,
         inputs=lambda: (_randn(3, 5).abs().requires_grad_(), torch.sigmoid(_randn(3, 5, 3, seed=1)).requires_grad_(),
                         0.1 + _randn(3, 5, seed=2).abs() * 0.2),
         declares={}, note="two outputs; suffix-sum gradient; everything recomputed from inputs"),
    dict(name="trunc_exp", target=TruncExp, inputs=lambda: (_randn(4, 6, dtype=torch.float32).requires_grad_(),),
         declares={"surrogate": "x"}, note="exact for |x| <= 15, deliberately clamped beyond"),
    dict(name="quaternion_to_matrix", target=QuaternionToMatrix,
         inputs=lambda: (F.normalize(_randn(5, 4), dim=-1).requires_grad_(),),
         declares={}, note="unit-norm quaternions; gradient of the homogeneous polynomial, right off the sphere too"),
    dict(name="ray_sphere", target=RaySphere, inputs=_rays,
         declares={}, note="implicit gradient; hit mask non-differentiable; one ray misses"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="temporal_shift", target=TemporalShift,
         inputs=lambda: (_randn(2, 4, 6, 3, dtype=torch.float32).requires_grad_(), 3),
         declares={}, note="linear op; backward is the adjoint shift"),
    dict(name="gather_points", target=GatherPoints,
         inputs=lambda: (_randn(2, 3, 6).requires_grad_(), torch.tensor([[0, 5, 5, 2], [1, 1, 3, 0]])),
         declares={}, note="duplicate indices accumulate"),
    dict(name="grid_lookup_1d", target=GridLookup1D,
         inputs=lambda: (_randn(6, 3).requires_grad_(), torch.tensor([0.03, 0.27, 0.5, 0.52, 0.91], dtype=torch.float64).requires_grad_()),
         declares={}, note="linear interpolation; both gradients"),
]
