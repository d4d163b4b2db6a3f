"""Image operators with hand-written gradients."""
import math
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _pair(v):
    return (v, v) if isinstance(v, int) else tuple(v)


class Conv2dIm2Col(Function):
    """2d convolution by unfold and matrix products, as in memory-lean training code."""

    @staticmethod
    def forward(ctx, x, weight, bias=None, stride=1, padding=0):
        stride, padding = _pair(stride), _pair(padding)
        n, _, h, w = x.shape
        o, c, kh, kw = weight.shape
        oh = (h + 2 * padding[0] - kh) // stride[0] + 1
        ow = (w + 2 * padding[1] - kw) // stride[1] + 1
        cols = F.unfold(x, (kh, kw), padding=padding, stride=stride)
        out = weight.reshape(o, -1) @ cols
        if bias is not None:
            out = out + bias.view(1, -1, 1)
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding, ctx.has_bias = stride, padding, bias is not None
        return out.view(n, o, oh, ow)

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        o, c, kh, kw = weight.shape
        g = grad_output.flatten(2)
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            cols = weight.reshape(o, -1).t() @ g
            w, h = x.shape[-2:]
            grad_x = F.fold(cols, (h, w), (kh, kw), padding=ctx.padding, stride=ctx.stride)
            grad_x = grad_x.view_as(x)
        if ctx.needs_input_grad[1]:
            cols = F.unfold(x, (kh, kw), padding=ctx.padding, stride=ctx.stride)
            grad_w = torch.einsum("nol,nkl->ok", g, cols).view_as(weight)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = g.sum((0, 2))
        return grad_x, grad_w, grad_b, None, None


class GlobalResponseNorm(Function):
    """ConvNeXt V2 GRN over the spatial plane: y = gamma * x * n + beta + x, with
    n = g / (mean_c g + eps) and g = ||x||_2 over (H, W)."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps=1e-6):
        g = x.pow(2).sum((2, 3), keepdim=True).add(1e-12).sqrt()
        n = g / (g.mean(1, keepdim=True) + eps)
        ctx.save_for_backward(x, gamma, g, n)
        return gamma.view(1, -1, 1, 1) * (x * n) + beta.view(1, -1, 1, 1) + x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, gamma, g, n = ctx.saved_tensors
        gam = gamma.view(1, -1, 1, 1)
        grad_x = grad_output * (1 + gam * n)
        grad_gamma = (grad_output * x * n).sum((0, 2, 3))
        grad_beta = grad_output.sum((0, 2, 3))
        return grad_x, grad_gamma, grad_beta, None


class BilinearSampleFn(Function):
    """Samples a (C, H, W) map at continuous pixel positions (P, 2) given as (x, y)."""

    @staticmethod
    def _corners(feat, pts):
        _, h, w = feat.shape
        x, y = pts[:, 0], pts[:, 1]
        x0 = x.floor().clamp(0, w - 2)
        y0 = y.floor().clamp(0, h - 2)
        wx, wy = x - x0, y - y0
        x0, y0 = x0.long(), y0.long()
        return x0, y0, wx, wy

    @staticmethod
    def forward(ctx, feat, pts):
        x0, y0, wx, wy = BilinearSampleFn._corners(feat, pts)
        ctx.save_for_backward(feat, pts)
        top = feat[:, y0, x0] * (1 - wx) + feat[:, y0, x0 + 1] * wx
        bot = feat[:, y0 + 1, x0] * (1 - wx) + feat[:, y0 + 1, x0 + 1] * wx
        return top * (1 - wy) + bot * wy

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        feat, pts = ctx.saved_tensors
        c, h, w = feat.shape
        x0, y0, wx, wy = BilinearSampleFn._corners(feat, pts)
        grad_feat = torch.zeros_like(feat).view(c, -1)
        for dy, gy in ((0, 1 - wy), (1, wy)):
            for dx, gx in ((0, 1 - wx), (1, wx)):
                grad_feat.index_add_(1, (y0 + dy) * w + x0 + dx, grad_output * (gx * gy))
        f00, f01 = feat[:, y0, x0], feat[:, y0, x0 + 1]
        f10, f11 = feat[:, y0 + 1, x0], feat[:, y0 + 1, x0 + 1]
        gx = (grad_output * ((f01 - f00) * (1 - wy) + (f11 - f10) * wy)).sum(0)
        gy = (grad_output * ((f10 - f00) * (1 - wx) + (f11 - f01) * wx)).sum(0)
        return grad_feat.view(c, h, w), torch.stack([gy, gx], dim=1)


class CornerPoolTop(Function):
    """CornerNet top pooling: running maximum from the bottom row upwards."""

    @staticmethod
    def forward(ctx, x):
        flipped = x.flip(2)
        out, idx = torch.cummax(flipped, dim=2)
        ctx.save_for_backward(idx)
        return out.flip(2)

    @staticmethod
    def backward(ctx, grad_output):
        idx, = ctx.saved_tensors
        g = grad_output.flip(2)
        grad = torch.zeros_like(g).scatter(2, idx, g)
        return grad.flip(2)


class DepthwiseConv1dFn(Function):
    """Causal depthwise convolution on (N, C, T) with a kernel (C, K), as in Mamba blocks."""

    @staticmethod
    def forward(ctx, x, weight):
        k = weight.size(1)
        ctx.save_for_backward(x, weight)
        return F.conv1d(F.pad(x, (k - 1, 0)), weight.unsqueeze(1), groups=x.size(1))

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        k = weight.size(1)
        grad_x = grad_w = None
        if ctx.needs_input_grad[0]:
            grad_x = F.conv1d(F.pad(grad_output, (0, k - 1)), weight.flip(1).unsqueeze(1),
                              groups=x.size(1))
        if ctx.needs_input_grad[1]:
            windows = F.pad(x, (k - 1, 0)).unfold(2, k, 1)
            grad_w = (windows * grad_output.unsqueeze(-1)).sum(2)[0]
        return grad_x, grad_w


class RoIAvgPool(Function):
    """Average pooling of integer boxes (R, 5) = (batch, x1, y1, x2, y2), inclusive ends."""

    @staticmethod
    def forward(ctx, feat, rois):
        out = []
        for b, x1, y1, x2, y2 in rois.tolist():
            out.append(feat[b, :, y1:y2 + 1, x1:x2 + 1].mean((1, 2)))
        ctx.save_for_backward(rois)
        ctx.shape = feat.shape
        return torch.stack(out)

    @staticmethod
    def backward(ctx, grad_output):
        rois, = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.shape)
        for r, (b, x1, y1, x2, y2) in enumerate(rois.tolist()):
            area = (x2 - x1 + 1) * (y2 - y1 + 1)
            grad[b, :, y1:y2 + 1, x1:x2 + 1] += grad_output[r].view(-1, 1, 1) / area
        return grad, None


class PixelShuffleFn(Function):
    """Sub-pixel convolution rearrangement (N, C r^2, H, W) -> (N, C, rH, rW)."""

    @staticmethod
    def forward(ctx, x, upscale):
        n, c, h, w = x.shape
        r = int(upscale)
        if c % (r * r):
            raise ValueError("channels must be divisible by upscale ** 2")
        ctx.r = r
        ctx.in_shape = x.shape
        y = x.reshape(n, c // (r * r), r, r, h, w)
        return y.permute(0, 1, 4, 2, 5, 3).reshape(n, c // (r * r), h * r, w * r)

    @staticmethod
    def backward(ctx, grad_output):
        n, c, h, w = ctx.in_shape
        r = ctx.r
        g = grad_output.reshape(n, c // (r * r), h, r, w, r)
        return g.permute(0, 1, 5, 3, 2, 4).reshape(n, c, h, w), None


class LocalContrastNorm(Function):
    """(x - mean) / sqrt(var + eps) over the last two dims of an image batch."""

    @staticmethod
    def forward(ctx, x, eps=1e-5):
        mu = x.mean((-2, -1), keepdim=True)
        std = (x.var((-2, -1), unbiased=False, keepdim=True) + eps).sqrt()
        y = (x - mu) / std
        ctx.save_for_backward(y, std)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, std = ctx.saved_tensors
        gm = grad_output.mean((-2, -1), keepdim=True)
        gy = (grad_output * y).mean((-2, -1), keepdim=True)
        return (grad_output - gm - y * gy) / std, None


class BlurPool(Function):
    """Fixed binomial anti-aliasing filter followed by stride-2 subsampling, any channels."""

    @staticmethod
    def _kernel(c, like):
        k = torch.tensor([1.0, 2.0, 1.0], dtype=like.dtype)
        k = torch.outer(k, k)
        return (k / k.sum()).expand(c, 1, 3, 3)

    @staticmethod
    def forward(ctx, x):
        c = x.size(1)
        ctx.size = x.shape[-2:]
        return F.conv2d(x, BlurPool._kernel(c, x), stride=2, padding=1, groups=c)

    @staticmethod
    def backward(ctx, grad_output):
        c = grad_output.size(1)
        return F.conv_transpose2d(grad_output, BlurPool._kernel(c, grad_output), stride=2,
                                  padding=1, output_padding=1, groups=c)


class SpatialSoftArgmax(Function):
    """Expected (x, y) position under a softmax of each heatmap; returns (N, K, 2)."""

    @staticmethod
    def forward(ctx, heatmaps, temperature=1.0):
        n, k, h, w = heatmaps.shape
        p = torch.softmax(heatmaps.flatten(2) / temperature, -1)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([xs, ys], -1).reshape(-1, 2).to(p.dtype)
        out = p @ grid
        onehot = torch.eye(h * w, dtype=p.dtype)
        jac = (p.unsqueeze(-1) * (onehot - p.unsqueeze(-2)))
        ctx.save_for_backward(jac, grid)
        ctx.temperature, ctx.shape = temperature, heatmaps.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        jac, grid = ctx.saved_tensors
        gp = grad_output @ grid.t()
        grad = torch.einsum("nkij,nkj->nki", jac, gp) / ctx.temperature
        return grad.view(ctx.shape), None


# ------------------------------------------------------------------ tests ---

def _t(seed, *shape, grad=True, dtype=torch.float64, scale=1.0):
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen, dtype=dtype) * scale).requires_grad_(grad)


def _u(seed, *shape, grad=True, dtype=torch.float64, lo=0.1, hi=0.9):
    gen = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=gen, dtype=dtype) * (hi - lo) + lo).requires_grad_(grad)


def _i(seed, high, *shape):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=gen)


def _fn(target):
    return target.apply if isinstance(target, type) else target


def _copy(args):
    return [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]


def _outs(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _isf(o):
    return torch.is_tensor(o) and (o.is_floating_point() or o.is_complex())


def _cots(outs, seed=7):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=gen, dtype=o.dtype) for o in outs]


def _grads(target, args, keep=None, cots=None):
    """Reverse-mode gradients; keep = indices of the outputs that get a cotangent."""
    xs = _copy(args)
    torch.manual_seed(11)
    outs = _outs(_fn(target)(*xs))
    if keep is None:
        keep = [k for k, o in enumerate(outs) if _isf(o) and o.requires_grad]
    picked = [outs[k] for k in keep]
    if cots is None:
        cots = _cots(picked)
    wrt = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
    got = torch.autograd.grad(picked, wrt, [c.clone() for c in cots], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach().clone() for g, x in zip(got, wrt)], keep, cots


def _numeric(target, args, keep, cots, eps=1e-6):
    def value(xs):
        torch.manual_seed(11)
        with torch.no_grad():
            outs = _outs(_fn(target)(*_copy(xs)))
        total = 0.0
        for k, c in zip(keep, cots):
            total += (outs[k] * c.conj()).sum().real.item()
        return total
    res = []
    for n, a in enumerate(args):
        if not (torch.is_tensor(a) and a.requires_grad):
            continue
        base = a.detach().clone()
        cplx = base.is_complex()
        real = torch.view_as_real(base).clone() if cplx else base.clone()
        out = torch.zeros(real.numel(), dtype=real.dtype)
        for j in range(real.numel()):
            vals = []
            for sgn in (1, -1):
                p = real.clone().contiguous()
                p.view(-1)[j] += sgn * eps
                xs = list(args)
                xs[n] = (torch.view_as_complex(p) if cplx else p).requires_grad_(True)
                vals.append(value(xs))
            out[j] = (vals[0] - vals[1]) / (2 * eps)
        out = out.view(real.shape)
        res.append(torch.view_as_complex(out) if cplx else out)
    return res


def _agrees(target, args, ref=None, keep=None, cots=None, tol=1e-5):
    got, keep, cots = _grads(target, args, keep, cots)
    want = _grads(ref, args, keep, cots)[0] if ref is not None else _numeric(target, args, keep, cots)
    return all(g.shape == w.shape and torch.allclose(g, w.to(g.dtype), rtol=tol, atol=tol) for g, w in zip(got, want))


def _wrong(target, args, ref=None, **kw):
    return not _agrees(target, args, ref, **kw)


def _second_ok(target, args):
    return torch.autograd.gradgradcheck(_fn(target), tuple(_copy(args)), raise_exception=False)


def _raises(target, args, **kw):
    try:
        _grads(target, args, **kw)
    except Exception:
        return True
    return False


def _ops(call, name):
    """How often the aten operator `name` runs inside call()."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(1 for n in seen if n == name)


def _saved_numel(out):
    return [t.numel() for t in out.grad_fn.saved_tensors if t is not None]


def _conv_in():
    return (_t(0, 2, 3, 6, 6), _t(1, 4, 3, 3, 3), _t(2, 4), 1, 1)


def _ev_conv():
    return _wrong(Conv2dIm2Col, (_t(0, 2, 3, 5, 7), _t(1, 4, 3, 3, 3), _t(2, 4), 1, 1))


def _ev_softargmax():
    x = _t(0, 1, 2, 6, 6)
    out = SpatialSoftArgmax.apply(x)
    return max(t.numel() for t in out.grad_fn.saved_tensors) >= 36 * x.numel()


CASES = [
    dict(name="conv2d_im2col", target=Conv2dIm2Col, inputs=_conv_in,
         fault="height and width are swapped for fold in backward and the result is viewed back; gradient of x is wrong for non-square images",
         kind="wrong", visible=False, evidence=_ev_conv),
    dict(name="global_response_norm", target=GlobalResponseNorm,
         inputs=lambda: (_t(0, 2, 3, 4, 4), _t(1, 3), _t(2, 3)),
         fault="gradient through the normaliser n (a function of x) is left out",
         kind="wrong", visible=True,
         evidence=lambda: _wrong(GlobalResponseNorm, (_t(0, 2, 3, 4, 4), _t(1, 3), _t(2, 3)))),
    dict(name="bilinear_sample_points", target=BilinearSampleFn,
         inputs=lambda: (_t(0, 3, 5, 6), _u(1, 7, 2, lo=0.2, hi=3.8)),
         fault="the x and y gradients of the points are swapped in the stacked result",
         kind="wrong", visible=True,
         evidence=lambda: _wrong(BilinearSampleFn, (_t(0, 3, 5, 6), _u(1, 7, 2, lo=0.2, hi=3.8)))),
    dict(name="corner_pool_top", target=CornerPoolTop, inputs=lambda: (_t(0, 2, 2, 5, 4),),
         fault="scatter overwrites instead of adding: an element that is the maximum of several rows keeps one cotangent",
         kind="wrong", visible=True, evidence=lambda: _wrong(CornerPoolTop, (_t(0, 2, 2, 5, 4),))),
    dict(name="causal_depthwise_conv1d", target=DepthwiseConv1dFn,
         inputs=lambda: (_t(0, 1, 3, 8), _t(1, 3, 4)),
         fault="the weight gradient takes only the first batch element; wrong for batch > 1",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(DepthwiseConv1dFn, (_t(0, 2, 3, 8), _t(1, 3, 4)))),
    dict(name="roi_avg_pool", target=RoIAvgPool,
         inputs=lambda: (_t(0, 2, 3, 6, 6), torch.tensor([[0, 0, 0, 2, 2], [0, 3, 3, 5, 4], [1, 1, 0, 4, 3]])),
         fault="the area comes from the unclipped box while slicing clips at the border; wrong when a box reaches beyond the image",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(RoIAvgPool, (_t(0, 2, 3, 6, 6), torch.tensor([[0, 0, 0, 3, 3], [0, 2, 2, 8, 4]])))),
    dict(name="pixel_shuffle", target=PixelShuffleFn, inputs=lambda: (_t(0, 2, 8, 3, 4), 2),
         fault="backward's permutation swaps the two sub-pixel axes (transposed r x r block)",
         kind="wrong", visible=True, evidence=lambda: _wrong(PixelShuffleFn, (_t(0, 2, 8, 3, 4), 2))),
    dict(name="local_contrast_norm", target=LocalContrastNorm, inputs=lambda: (_t(0, 2, 2, 4, 4),),
         fault="std is a saved intermediate: double backward silently misses its dependence on x",
         kind="wrong", visible=False, evidence=lambda: not _second_ok(LocalContrastNorm, (_t(0, 2, 1, 2, 3),))),
    dict(name="blur_pool", target=BlurPool, inputs=lambda: (_t(0, 2, 3, 6, 8),),
         fault="fixed output_padding=1: gradient has the wrong size for odd image sides (error in backward)",
         kind="fragile", visible=False, evidence=lambda: _raises(BlurPool, (_t(0, 1, 2, 5, 7),))),
    dict(name="spatial_soft_argmax", target=SpatialSoftArgmax, inputs=lambda: (_t(0, 2, 2, 3, 4),),
         fault="saves the full (HW x HW) softmax Jacobian: quadratic memory for a linear-memory gradient",
         kind="wasteful", visible=False, evidence=_ev_softargmax),
]
