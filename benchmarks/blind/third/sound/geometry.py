"""Rotations, unit vectors and small pieces of physics."""
import torch
import torch.nn as nn

from support import *


def _skew(w):
    z = torch.zeros_like(w[..., 0])
    return torch.stack([z, -w[..., 2], w[..., 1],
                        w[..., 2], z, -w[..., 0],
                        -w[..., 1], w[..., 0], z], -1).unflatten(-1, (3, 3))


class ExpSO3(Function):
    """Rotation matrix of a rotation vector (Rodrigues), safe at the zero vector."""

    @staticmethod
    def _coef(t2):
        small = t2 < 1e-2
        s = torch.where(small, torch.ones_like(t2), t2)
        t = s.sqrt()
        a = torch.where(small, 1 - t2 / 6 * (1 - t2 / 20 * (1 - t2 / 42 * (1 - t2 / 72))), t.sin() / t)
        b = torch.where(small, 0.5 - t2 / 24 * (1 - t2 / 30 * (1 - t2 / 56 * (1 - t2 / 90))), (1 - t.cos()) / s)
        c = torch.where(small, 1 / 6 - t2 / 120 * (1 - t2 / 42 * (1 - t2 / 72 * (1 - t2 / 110))), (t - t.sin()) / (s * t))
        return a[..., None, None], b[..., None, None], c[..., None, None]

    @staticmethod
    def forward(ctx, w):
        K = _skew(w)
        a, b, _ = ExpSO3._coef(w.square().sum(-1))
        R = torch.eye(3, dtype=w.dtype, device=w.device) + a * K + b * (K @ K)
        ctx.save_for_backward(w, R)
        return R

    @staticmethod
    @once_differentiable
    def backward(ctx, G):
        w, R = ctx.saved_tensors
        M = R.mT @ G
        tangent = torch.stack([M[..., 2, 1] - M[..., 1, 2], M[..., 0, 2] - M[..., 2, 0],
                               M[..., 1, 0] - M[..., 0, 1]], -1)
        K = _skew(w)
        _, b, c = ExpSO3._coef(w.square().sum(-1))
        right = torch.eye(3, dtype=w.dtype, device=w.device) - b * K + c * (K @ K)
        return (right.mT @ tangent.unsqueeze(-1)).squeeze(-1)


class QuatRotate(Function):
    """Rotates points by unit quaternions (w, x, y, z).  Quaternions that are not of unit length
    are refused."""

    @staticmethod
    def forward(ctx, q, p):
        if ((q.norm(dim=-1) - 1).abs() > 1e-3).any():
            raise ValueError("quaternions must have unit length")
        ctx.save_for_backward(q, p)
        w, v = q[..., :1], q[..., 1:]
        t = 2 * torch.linalg.cross(v, p)
        return p + w * t + torch.linalg.cross(v, t)

    @staticmethod
    def backward(ctx, g):
        q, p = ctx.saved_tensors
        w, v = q[..., :1], q[..., 1:]
        cross = torch.linalg.cross
        gq = gp = None
        if ctx.needs_input_grad[0]:
            t = 2 * cross(v, p)
            gt = w * g + cross(g, v)
            gv = cross(t, g) + 2 * cross(p, gt)
            gq = torch.cat([(g * t).sum(-1, keepdim=True), gv], -1)
        if ctx.needs_input_grad[1]:
            gt = w * g + cross(g, v)
            gp = g + 2 * cross(gt, v)
        return gq, gp


class GeodesicDistance(Function):
    """Angle between rotation matrices, from the clamped trace.  At angles 0 and pi the
    gradient is zero."""

    @staticmethod
    def forward(ctx, A, B):
        for R in (A, B):
            eye = torch.eye(3, dtype=R.dtype, device=R.device)
            if ((R @ R.mT - eye).abs() > 1e-4).any():
                raise ValueError("the arguments must be rotation matrices")
        c = (((A * B).sum((-1, -2)) - 1) / 2).clamp(-1, 1)
        ctx.save_for_backward(A, B)
        return torch.acos(c)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        A, B = ctx.saved_tensors
        c = ((A * B).sum((-1, -2)) - 1) / 2
        s2 = 1 - c * c
        flat = s2 <= 16 * torch.finfo(s2.dtype).eps
        k = torch.where(flat, torch.zeros_like(g), -0.5 * g * torch.rsqrt(s2.masked_fill(flat, 1)))
        k = k[..., None, None]
        return (k * B if ctx.needs_input_grad[0] else None, k * A if ctx.needs_input_grad[1] else None)


def _rotations(seed, n):
    q, r = torch.linalg.qr(randn(n, 3, 3, seed=seed, grad=False))
    q = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)
    q[..., 0] *= torch.linalg.det(q)[:, None]
    return q


def _geodesic_inputs():
    A, B = _rotations(4, 3), _rotations(5, 3)
    B[1] = A[1]
    return A.requires_grad_(), B.requires_grad_()


class SphereExp(Function):
    """Exponential map of the unit sphere: from point x along the tangent v, <x, v> = 0."""

    @staticmethod
    def forward(ctx, x, v):
        if ((x * v).sum(-1).abs() > 1e-4).any() or ((x.norm(dim=-1) - 1).abs() > 1e-4).any():
            raise ValueError("x must be on the sphere and v tangent to it")
        ctx.save_for_backward(x, v)
        n = v.norm(dim=-1, keepdim=True)
        return torch.cos(n) * x + torch.sinc(n / math.pi) * v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, v = ctx.saved_tensors
        n = v.norm(dim=-1, keepdim=True)
        sc = torch.sinc(n / math.pi)
        gx = gv = None
        if ctx.needs_input_grad[0]:
            gx = torch.cos(n) * g
        if ctx.needs_input_grad[1]:
            small = n < 1e-2
            n2 = n * n
            m = n.masked_fill(small, 1)
            dsc = torch.where(small, -1 / 3 + n2 / 30 - n2 * n2 / 840, (torch.cos(m) - torch.sin(m) / m) / (m * m))
            radial = -sc * (g * x).sum(-1, keepdim=True) + dsc * (g * v).sum(-1, keepdim=True)
            gv = sc * g + radial * v
        return gx, gv


def _sphere_inputs():
    x = F.normalize(randn(4, 3, seed=6, grad=False), dim=-1)
    v = randn(4, 3, seed=7, grad=False)
    v = v - (v * x).sum(-1, keepdim=True) * x
    v[2] = 0
    return x.requires_grad_(), v.requires_grad_()


class LennardJones(Function):
    """Pairwise 12-6 energy of points in a periodic box with a cut-off; no neighbour gives zero."""

    @staticmethod
    def _pairs(pos, box, cutoff):
        i, j = torch.triu_indices(pos.size(0), pos.size(0), 1, device=pos.device)
        d = pos[i] - pos[j]
        d = d - box * torch.round(d / box)
        r2 = d.square().sum(1)
        near = r2 < cutoff ** 2
        return i[near], j[near], d[near], r2[near]

    @staticmethod
    def forward(ctx, pos, box, cutoff):
        if cutoff > box / 2:
            raise ValueError("the cut-off must be within half the box")
        ctx.save_for_backward(pos)
        ctx.box, ctx.cutoff = box, cutoff
        _, _, _, r2 = LennardJones._pairs(pos, box, cutoff)
        s6 = r2 ** -3
        return 4 * (s6 * s6 - s6).sum()

    @staticmethod
    def backward(ctx, g):
        pos, = ctx.saved_tensors
        i, j, d, r2 = LennardJones._pairs(pos, ctx.box, ctx.cutoff)
        s6 = r2 ** -3
        f = ((24 * s6 - 48 * s6 * s6) / r2)[:, None] * d
        grad = torch.zeros_like(pos).index_add(0, i, f).index_add(0, j, -f)
        return g * grad, None, None


def _lattice():
    grid = torch.cartesian_prod(*[torch.arange(2, dtype=torch.float64)] * 3)[:6] * 1.3
    return ((grid + randn(6, 3, seed=8, grad=False, scale=0.08)).requires_grad_(), 6.0, 2.5)


class InterpSorted(Function):
    """Piecewise linear interpolation at ``x`` of values ``fp`` at rising knots ``xp``; constant
    outside.  Gradients for x and fp, the knots are fixed."""

    @staticmethod
    def forward(ctx, x, xp, fp):
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("interp: no gradient with respect to the knots")
        if not bool((xp.diff() > 0).all()):
            raise ValueError("the knots must rise")
        k = (torch.searchsorted(xp.contiguous(), x.contiguous(), right=True) - 1).clamp(0, xp.numel() - 2)
        h = xp[k + 1] - xp[k]
        raw = (x - xp[k]) / h
        t = raw.clamp(0, 1)
        inside = (raw >= 0) & (raw <= 1)
        ctx.save_for_backward(x, xp, fp, k, inside)
        return fp[k] + t * (fp[k + 1] - fp[k])

    @staticmethod
    def backward(ctx, g):
        x, xp, fp, k, inside = ctx.saved_tensors
        h = xp[k + 1] - xp[k]
        gx = gf = None
        if ctx.needs_input_grad[0]:
            gx = g * inside * (fp[k + 1] - fp[k]) / h
        if ctx.needs_input_grad[2]:
            t = ((x - xp[k]) / h).clamp(0, 1)
            gf = torch.zeros_like(fp).index_add(0, k.reshape(-1), (g * (1 - t)).reshape(-1))
            gf = gf.index_add(0, k.reshape(-1) + 1, (g * t).reshape(-1))
        return gx, None, gf


class PlanckRadiance(Function):
    """Spectral radiance of a black body, W / (m^2 sr m), for wavelengths in metres and
    temperatures in kelvin."""

    H, C, K = 6.62607015e-34, 2.99792458e8, 1.380649e-23

    @staticmethod
    def forward(ctx, wavelength, temperature):
        if (wavelength <= 0).any() or (temperature <= 0).any():
            raise ValueError("wavelengths and temperatures must be positive")
        ctx.save_for_backward(wavelength, temperature)
        P = PlanckRadiance
        u = (P.H * P.C / P.K) / (wavelength * temperature)
        return (2 * P.H * P.C ** 2) / wavelength ** 2 / wavelength ** 3 / torch.expm1(u)

    @staticmethod
    def backward(ctx, g):
        lam, T = ctx.saved_tensors
        P = PlanckRadiance
        u = (P.H * P.C / P.K) / (lam * T)
        gB = g * ((2 * P.H * P.C ** 2) / lam ** 2 / lam ** 3 / torch.expm1(u))
        slope = u / -torch.expm1(-u)
        return (gB * (slope - 5) / lam if ctx.needs_input_grad[0] else None,
                gB * slope / T if ctx.needs_input_grad[1] else None)


CASES = [
    case("exp_so3", ExpSO3,
         lambda: (torch.cat([torch.zeros(1, 3, dtype=torch.float64), randn(3, 3, seed=1, grad=False)]).requires_grad_(),),
         "one rotation vector is zero; series there"),
    case("quat_rotate_unit", QuatRotate,
         lambda: (F.normalize(randn(4, 4, seed=2, grad=False), dim=-1).requires_grad_(), randn(4, 3, seed=3)),
         "quaternions must be of unit length"),
    case("rotation_geodesic_distance", GeodesicDistance, _geodesic_inputs,
         "rotation matrices only; one pair is equal and takes gradient zero by convention"),
    case("sphere_exp_map", SphereExp, _sphere_inputs,
         "v must be tangent at x; one tangent is zero"),
    case("lennard_jones_cutoff", LennardJones, _lattice,
         "pairs beyond the cut-off are dropped"),
    case("planck_radiance_si_units", PlanckRadiance,
         lambda: (torch.tensor([4e-7, 5.5e-7, 1e-6, 1e-5], dtype=torch.float64, requires_grad=True),
                  torch.tensor([5800.0, 5800.0, 3000.0, 300.0], dtype=torch.float64, requires_grad=True)),
         "SI units: inputs near 1e-6, results near 1e13, gradients near 1e20"),
    case("interp_sorted_knots", InterpSorted,
         lambda: (torch.tensor([-0.5, 0.2, 0.7, 1.4, 3.5], dtype=torch.float64, requires_grad=True),
                  torch.tensor([0.0, 0.5, 1.1, 3.0], dtype=torch.float64), randn(4, seed=9)),
         "knots must rise and are refused aloud if they require a gradient; kinks at the knots"),
]
