"""Rotations, rays, rendering and pair forces."""
import math
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, same_shape


class CrossProduct(Function):
    """Cross product over a last axis of 3."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b):
        real_floating("CrossProduct", a, b)
        same_shape("CrossProduct", a, b)
        if a.shape[-1:] != (3,):
            raise ValueError("CrossProduct: the last axis must be 3")
        return torch.linalg.cross(a, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, da, db):
        a, b = ctx.saved_tensors
        total = torch.zeros_like(a)
        if da is not None:
            total = total + torch.linalg.cross(da, b)
        if db is not None:
            total = total + torch.linalg.cross(a, db)
        return total

    @staticmethod
    def backward(ctx, grad_out):
        a, b = ctx.saved_tensors
        return torch.linalg.cross(b, grad_out), torch.linalg.cross(grad_out, a)


class QuaternionRotate(Function):
    """Rotate points (N, 3) by unit quaternions (N, 4), w first; far from unit length is refused."""

    @staticmethod
    def forward(ctx, q, p):
        real_floating("QuaternionRotate", q, p)
        if q.dim() != 2 or q.shape[1] != 4 or p.shape != (q.shape[0], 3):
            raise ValueError("QuaternionRotate: q (N, 4) and p (N, 3) expected")
        if bool(((q.square().sum(1) - 1).abs() > 2e-2).any()):
            raise ValueError("QuaternionRotate: unit quaternions expected")
        ctx.save_for_backward(q, p)
        w, v = q[:, :1], q[:, 1:]
        t = 2 * torch.linalg.cross(v, p)
        return p + w * t + torch.linalg.cross(v, t)

    @staticmethod
    def backward(ctx, grad_out):
        q, p = ctx.saved_tensors
        w, v = q[:, :1], q[:, 1:]
        cross = torch.linalg.cross
        gq = gp = None
        if ctx.needs_input_grad[0]:
            t = 2 * cross(v, p)
            gt = w * grad_out + cross(grad_out, v)
            gq = torch.cat(((grad_out * t).sum(1, keepdim=True), cross(t, grad_out) + 2 * cross(p, gt)), 1)
        if ctx.needs_input_grad[1]:
            gp = grad_out + 2 * w * cross(grad_out, v) + 2 * cross(cross(grad_out, v), v)
        return gq, gp


def series(sq, first, derive, terms=9):
    """sum_k (-sq)^k / (2k + first)!, or twice its derivative by sq."""
    total = torch.zeros_like(sq)
    for k in reversed(range(1 if derive else 0, terms)):
        c = (-1) ** k / math.factorial(2 * k + first)
        total = total * sq + (2 * k * c if derive else c)
    return total


class RotationFromVector(Function):
    """Rodrigues' formula (N, 3) -> (N, 3, 3), with a series near zero angle where the quotients lose digits."""

    @staticmethod
    def hat(w):
        z = torch.zeros_like(w[:, 0])
        return torch.stack((z, -w[:, 2], w[:, 1], w[:, 2], z, -w[:, 0], -w[:, 1], w[:, 0], z), 1).reshape(-1, 3, 3)

    @staticmethod
    def forward(ctx, w):
        real_floating("RotationFromVector", w)
        if w.dim() != 2 or w.shape[1] != 3 or w.dtype not in (torch.float32, torch.float64):
            raise TypeError("RotationFromVector: float32 or float64 (N, 3) expected")
        sq = w.square().sum(1)
        small = sq < 0.1
        safe = torch.where(small, torch.ones_like(sq), sq)
        th = safe.sqrt()
        a = torch.where(small, series(sq, 1, False), th.sin() / th)
        b = torch.where(small, series(sq, 2, False), (1 - th.cos()) / safe)
        da = torch.where(small, series(sq, 1, True), (th * th.cos() - th.sin()) / (safe * th))
        db = torch.where(small, series(sq, 2, True), (th * th.sin() - 2 * (1 - th.cos())) / safe ** 2)
        k = RotationFromVector.hat(w)
        k2 = w[:, :, None] * w[:, None] - sq[:, None, None] * torch.eye(3, dtype=w.dtype, device=w.device)
        ctx.save_for_backward(w, a, b, da, db)
        return torch.eye(3, dtype=w.dtype, device=w.device) + a[:, None, None] * k + b[:, None, None] * k2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, a, b, da, db = (t if t.dim() == 2 else t[:, None] for t in ctx.saved_tensors)
        skew = torch.stack((g[:, 2, 1] - g[:, 1, 2], g[:, 0, 2] - g[:, 2, 0], g[:, 1, 0] - g[:, 0, 1]), 1)
        trace = (g[:, 0, 0] + g[:, 1, 1] + g[:, 2, 2])[:, None]
        quad = ((g + g.mT) * w[:, None]).sum(2)
        wk = (skew * w).sum(1, keepdim=True)
        wk2 = (quad * w).sum(1, keepdim=True) / 2 - trace * w.square().sum(1, keepdim=True)
        return a * skew + b * (quad - 2 * trace * w) + (da * wk + db * wk2) * w


class CompositeRays(Function):
    """Volume rendering: (R, S) densities >= 0 and step lengths, (R, S, C) colours -> colours and opacity per ray."""

    @staticmethod
    def forward(ctx, density, colour, steps):
        real_floating("CompositeRays", density, colour, steps)
        same_shape("CompositeRays", density, steps)
        if density.dim() != 2 or colour.shape[:2] != density.shape or colour.dim() != 3:
            raise ValueError("CompositeRays: (R, S), (R, S, C), (R, S) expected")
        if ctx.needs_input_grad[2]:
            raise ValueError("CompositeRays: step lengths are constants")
        depth = density * steps
        before = depth.cumsum(1) - depth
        weight = torch.exp(-before) * -torch.expm1(-depth)
        ctx.save_for_backward(density, colour, steps)
        return (weight[..., None] * colour).sum(1), weight.sum(1)

    @staticmethod
    def backward(ctx, grad_colour, grad_opacity):
        density, colour, steps = ctx.saved_tensors
        depth = density * steps
        total = depth.cumsum(1)
        left = torch.exp(-(total - depth))
        weight = left * -torch.expm1(-depth)
        gd = None
        if ctx.needs_input_grad[0]:
            gw = (grad_colour[:, None] * colour).sum(-1) + grad_opacity[:, None]
            behind = (gw * weight).flip(1).cumsum(1).flip(1) - gw * weight
            gd = steps * (gw * torch.exp(-total) - behind)
        gc = weight[..., None] * grad_colour[:, None] if ctx.needs_input_grad[1] else None
        return gd, gc, None


class NearestPoint(Function):
    """Squared distance from each point of a to its nearest in b, and which one (first of equals); a Chamfer half."""

    @staticmethod
    def forward(ctx, a, b):
        real_floating("NearestPoint", a, b)
        if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1] or b.shape[0] == 0:
            raise ValueError("NearestPoint: (N, D) and a non-empty (M, D) expected")
        dist, index = (a[:, None] - b).square().sum(-1).min(1)
        ctx.save_for_backward(a, b, index)
        ctx.mark_non_differentiable(index)
        return dist, index

    @staticmethod
    def backward(ctx, grad_dist, _):
        a, b, index = ctx.saved_tensors
        g = 2 * grad_dist[:, None] * (a - b[index])
        gb = torch.zeros_like(b).index_add(0, index, -g) if ctx.needs_input_grad[1] else None
        return g if ctx.needs_input_grad[0] else None, gb


class PairEnergy(Function):
    """Lennard-Jones energy of (N, 3) positions over a list of pairs within a cutoff; forces as second, constant output."""

    @staticmethod
    def forward(ctx, pos, pairs, sigma=1.0, eps=1.0, cutoff=3.0):
        real_floating("PairEnergy", pos)
        if pos.dim() != 2 or pos.shape[1] != 3 or pairs.dim() != 2 or pairs.shape[1] != 2:
            raise ValueError("PairEnergy: pos (N, 3) and pairs (P, 2) expected")
        d = pos[pairs[:, 0]] - pos[pairs[:, 1]]
        sq = d.square().sum(1)
        if bool((sq == 0).any()):
            raise ValueError("PairEnergy: two points of a pair coincide")
        near = sq < cutoff ** 2
        s6 = (sigma ** 2 / sq) ** 3 * near
        pull = (24 * eps * (s6 - 2 * s6 * s6) / sq)[:, None] * d
        force = torch.zeros_like(pos).index_add(0, pairs[:, 0], -pull).index_add(0, pairs[:, 1], pull)
        ctx.save_for_backward(force)
        ctx.mark_non_differentiable(force)
        return 4 * eps * (s6 * s6 - s6).sum(), force

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_energy, _):
        force, = ctx.saved_tensors
        return -grad_energy * force, None, None, None, None


class HarmonicEncoding(Function):
    """NeRF encoding of (*, D): sines and cosines at 2^0 .. 2^(L-1) times pi, and x itself when asked."""

    @staticmethod
    def forward(x, levels, include_input=True):
        real_floating("HarmonicEncoding", x)
        if x.dim() == 0 or levels < 1:
            raise ValueError("HarmonicEncoding: a last axis and at least one level expected")
        parts = [x] if include_input else []
        for k in range(levels):
            parts += [torch.sin(2 ** k * math.pi * x), torch.cos(2 ** k * math.pi * x)]
        return torch.cat(parts, -1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.levels, ctx.include_input = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        parts = list(grad_out.unflatten(-1, (-1, x.shape[-1])).unbind(-2))
        g = parts.pop(0) if ctx.include_input else torch.zeros_like(x)
        for k in range(ctx.levels):
            f = 2 ** k * math.pi
            g = g + f * (parts[2 * k] * torch.cos(f * x) - parts[2 * k + 1] * torch.sin(f * x))
        return g, None, None


def unit_quaternions(n):
    q = rand(n, 4, seed=3, grad=False)
    return (q / q.norm(dim=1, keepdim=True)).requires_grad_()


def lattice(n):
    base = torch.tensor([[0, 0, 0], [1.1, 0, 0], [0, 1.2, 0], [0, 0, 1.15], [4, 4, 4]], dtype=torch.float64)[:n]
    return base.requires_grad_(), torch.combinations(torch.arange(n), 2)


def angles():
    w = rand(4, 3, grad=False)
    w[0], w[1] = 0, w[1] * 1e-3
    return w.requires_grad_()


CASES = [
    case("cross_product", CrossProduct, lambda: (rand(4, 3), rand(4, 3, seed=1)), "The last axis must be 3; new-style with jvp and a generated vmap rule.", jvp=True, vmap=True, more=[lambda: (rand(3), rand(3, seed=1)), lambda: (rand(0, 3), rand(0, 3))],
         refuses=[lambda: (rand(3, 2), rand(3, 2))]),
    case("quaternion_rotate", QuaternionRotate, lambda: (unit_quaternions(4), rand(4, 3)), "Unit quaternions, differentiated as plain polynomials of their four numbers."),
    case("rotation_from_vector", RotationFromVector, lambda: (angles(),), "Zero and tiny angles take a series.", second="refused", more=[lambda: (rand(1, 3, scale=2),), lambda: (rand(0, 3),)]),
    case("composite_rays", CompositeRays, lambda: (uniform(2, 5, high=2), uniform(2, 5, 3, seed=1), uniform(2, 5, seed=2, grad=False, low=0.1)),
         "Alpha compositing with two outputs; backward needs no division.", more=[lambda: (uniform(1, 1), uniform(1, 1, 1), uniform(1, 1, grad=False)), lambda: (torch.zeros(1, 2, dtype=torch.float64, requires_grad=True), uniform(1, 2, 2), uniform(1, 2, grad=False))]),
    case("nearest_point", NearestPoint, lambda: (rand(5, 3), rand(4, 3, seed=1)), "Distance and index; the index carries no gradient.", more=[lambda: (rand(0, 2), rand(1, 2)), lambda: (rand(3, 1), rand(1, 1, seed=1))], loose16=True),
    case("pair_energy", PairEnergy, lambda: lattice(5), "Energy with its force as an output that carries no gradient.", second="refused", loose16=True),
    case("harmonic_encoding", HarmonicEncoding, lambda: (rand(3, 2), 3), "Sines and cosines at rising frequencies.", more=[lambda: (rand(1), 1, False), lambda: (rand(0, 2), 2)], loose16=True, tol32=1e-2),
]
