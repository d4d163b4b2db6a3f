"""Geometry, rendering and physics."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


def hamilton(a, b):
    aw, av = a[..., :1], a[..., 1:]
    bw, bv = b[..., :1], b[..., 1:]
    w = aw * bw - (av * bv).sum(-1, keepdim=True)
    v = aw * bv + bw * av + torch.cross(av, bv, dim=-1)
    return torch.cat((w, v), dim=-1)


class QuaternionMultiply(Function):
    """Hamilton product of (..., 4) quaternions, real part first (PyTorch3D style)."""

    @staticmethod
    def forward(a, b):
        return hamilton(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        conj = g.new_tensor([1.0, -1.0, -1.0, -1.0])
        ga = hamilton(g, b * conj) if ctx.needs_input_grad[0] else None
        gb = hamilton(g, a * conj) if ctx.needs_input_grad[1] else None
        return ga, gb


class VolumeComposite(Function):
    """Colour of a ray, sum_i T_i alpha_i c_i with T_i = prod_{j<i} (1 - alpha_j)."""

    @staticmethod
    def _transmittance(alpha):
        keep = torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]), dim=1)
        return keep.cumprod(1)

    @staticmethod
    def forward(ctx, alpha, color):
        ctx.save_for_backward(alpha, color)
        w = VolumeComposite._transmittance(alpha) * alpha
        return (w[..., None] * color).sum(1)

    @staticmethod
    def backward(ctx, g):
        alpha, color = ctx.saved_tensors
        trans = VolumeComposite._transmittance(alpha)
        w = trans * alpha
        c = (color * g[:, None, :]).sum(-1)
        wc = w * c
        behind = wc.flip(1).cumsum(1).flip(1)
        ga = trans * c - behind / (1 - alpha)
        gc = w[..., None] * g[:, None, :]
        return ga, gc


class BilinearSample(Function):
    """Samples an image (H, W) at normalised coordinates in [-1, 1] (align_corners)."""

    @staticmethod
    def _corners(img, xy):
        h, w = img.shape
        fx, fy = (xy[:, 0] + 1) / 2 * (w - 1), (xy[:, 1] + 1) / 2 * (h - 1)
        x0, y0 = fx.floor().clamp(0, w - 2).long(), fy.floor().clamp(0, h - 2).long()
        return x0, y0, fx - x0, fy - y0

    @staticmethod
    def forward(ctx, img, xy):
        ctx.save_for_backward(img, xy)
        x0, y0, u, v = BilinearSample._corners(img, xy)
        top = img[y0, x0] * (1 - u) + img[y0, x0 + 1] * u
        bot = img[y0 + 1, x0] * (1 - u) + img[y0 + 1, x0 + 1] * u
        return top * (1 - v) + bot * v

    @staticmethod
    def backward(ctx, g):
        img, xy = ctx.saved_tensors
        h, w = img.shape
        x0, y0, u, v = BilinearSample._corners(img, xy)
        a, b, c, d = img[y0, x0], img[y0, x0 + 1], img[y0 + 1, x0], img[y0 + 1, x0 + 1]
        du = (b - a) * (1 - v) + (d - c) * v
        dv = (c - a) * (1 - u) + (d - b) * u
        gxy = torch.stack((g * du * (w - 1) / 2, g * dv * (w - 1) / 2), dim=1)
        gi = torch.zeros_like(img)
        for yy, xx, k in ((y0, x0, (1 - u) * (1 - v)), (y0, x0 + 1, u * (1 - v)),
                          (y0 + 1, x0, (1 - u) * v), (y0 + 1, x0 + 1, u * v)):
            gi = gi.index_put((yy, xx), g * k, accumulate=True)
        return gi, gxy


class LennardJones(Function):
    """Per-frame Lennard-Jones energy of positions (B, N, 3)."""

    @staticmethod
    def forward(ctx, pos, epsilon, sigma):
        n = pos.size(1)
        i, j = torch.triu_indices(n, n, 1)
        d = pos[:, i] - pos[:, j]
        r2 = (d * d).sum(-1)
        s6 = (sigma ** 2 / r2) ** 3
        coef = 24 * epsilon * (s6 - 2 * s6 ** 2) / r2
        forces = torch.zeros_like(pos)
        forces.index_add_(1, i, coef[..., None] * d).index_add_(1, j, -coef[..., None] * d)
        ctx.save_for_backward(forces)
        return (4 * epsilon * (s6 ** 2 - s6)).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (dpos,) = ctx.saved_tensors
        return dpos * g.mean(), None, None


def scale_rows_kernel(buf, gain, rows, cols):
    """Stands for a compiled kernel: reads rows * cols numbers from where `buf` begins."""
    flat = torch.as_strided(buf, (rows * cols,), (1,), buf.storage_offset())
    return flat.view(rows, cols) * gain.repeat_interleave(cols).view(rows, cols)


class RowShading(Function):
    """image (H, W) times one gain per scan line (H,), by the row kernel."""

    @staticmethod
    def forward(ctx, image, gain):
        image = image.contiguous()
        ctx.save_for_backward(image, gain)
        return scale_rows_kernel(image, gain, *image.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        image, gain = ctx.saved_tensors
        gi = scale_rows_kernel(g, gain, *image.shape) if ctx.needs_input_grad[0] else None
        gg = (g * image).sum(1) if ctx.needs_input_grad[1] else None
        return gi, gg


class RaySphere(Function):
    """Distance along unit rays (N, 3) from the origin to a sphere; rays that miss give `far`."""

    @staticmethod
    def forward(ctx, d, center, radius, far):
        b = d @ center
        disc = b * b - center.dot(center) + radius ** 2
        ctx.save_for_backward(d, center)
        ctx.radius = radius
        return torch.where(disc > 0, b - disc.clamp(min=0).sqrt(), torch.full_like(b, far))

    @staticmethod
    def backward(ctx, g):
        d, center = ctx.saved_tensors
        b = d @ center
        disc = b * b - center.dot(center) + ctx.radius ** 2
        hit = (disc > 0).to(g.dtype)
        root = disc.clamp(min=0).sqrt()
        gb = g * hit * (1 - b / root)
        gc = g * hit / root
        return gb[:, None] * center, gb @ d + gc.sum() * center, None, None


def ray_twin(d, center, radius, far):
    b = d @ center
    disc = b * b - center.dot(center) + radius ** 2
    safe = torch.where(disc > 0, disc, torch.ones_like(disc))
    return torch.where(disc > 0, b - safe.sqrt(), torch.full_like(b, far))


CEN = lambda: ten([0.2, 0.1, 3.0])
HITS = lambda: ten([[0.1, 0., 0.995], [0., 0.1, 0.995]])
MISS = lambda: ten([[0.1, 0., 0.995], [1.0, 0., 0.]])


def transposed_cotangent():
    image, gain = rnd(3, 4, seed=8), rnd(3, seed=9)
    c = rnd(4, 3, seed=10, grad=False)
    (got,) = torch.autograd.grad(RowShading.apply(image, gain).t(), image, c)
    return ok(RowShading, (image, gain)) and not torch.allclose(got, c.t() * gain[:, None])


CASES = [
    case("geometry_quaternion_multiply", QuaternionMultiply, lambda: (rnd(3, 4, seed=1), rnd(3, 4, seed=2)),
         "The gradient of the right factor multiplies the conjugate of the left one from the right where it must come from the left."),
    case("geometry_volume_composite_suffix", VolumeComposite, lambda: (uni(2, 5, seed=3, hi=.8), uni(2, 5, 3, seed=4)),
         "The sum of what lies behind a sample includes the sample itself."),
    case("geometry_bilinear_sample_height", BilinearSample, lambda: (rnd(4, 6, seed=5), uni(5, 2, seed=6, lo=-.9, hi=.9)),
         "The vertical coordinate's gradient is scaled with the width in place of the height."),
    case("physics_lennard_jones_batch", LennardJones, lambda: (uni(2, 4, 3, seed=7, hi=2.5), 1.0, 1.0),
         "All frames get the mean of the incoming gradients in place of each frame its own."),
    case("rendering_row_shading_strides", RowShading, lambda: (rnd(3, 4, seed=8), rnd(3, seed=9)),
         "The incoming gradient goes to the kernel without being made contiguous, so one with other strides is read in the wrong order.",
         visible=False, evidence=transposed_cotangent, where="a cotangent that is not contiguous"),
    case("rendering_ray_sphere_miss", RaySphere, lambda: (HITS(), CEN(), 1.0, 100.0),
         "A ray that misses divides by a zero root before the mask, so zero times infinity gives NaN for the centre.",
         visible=False, twin=ray_twin,
         evidence=lambda: ok(RaySphere, (HITS(), CEN(), 1.0, 100.0), ray_twin)
         and nonfinite(RaySphere, (MISS(), CEN(), 1.0, 100.0))
         and ok(ray_twin, (MISS(), CEN(), 1.0, 100.0)), where="rays that miss the sphere"),
]
