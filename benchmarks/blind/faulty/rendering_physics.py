"""Differentiable rendering, geometry and physics."""
import math
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class AlphaComposite(Function):
    """Front-to-back compositing of S samples a ray: C = sum_i T_i a_i c_i, T_i = prod_{j<i}(1 - a_j)."""

    @staticmethod
    def _trans(alpha):
        ones = torch.ones_like(alpha[:, :1])
        return torch.cat([ones, (1 - alpha[:, :-1]).cumprod(1)], 1)

    @staticmethod
    def forward(ctx, alpha, color):
        if color.shape[:2] != alpha.shape:
            raise ValueError("alpha is (R, S), color is (R, S, C)")
        w = AlphaComposite._trans(alpha) * alpha
        ctx.save_for_backward(alpha, color)
        return (w.unsqueeze(-1) * color).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        alpha, color = ctx.saved_tensors
        t = AlphaComposite._trans(alpha)
        w = t * alpha
        grad_color = w.unsqueeze(-1) * grad_output.unsqueeze(1)
        gw = (color * grad_output.unsqueeze(1)).sum(-1)
        contrib = gw * w
        suffix = contrib.flip(1).cumsum(1).flip(1)
        grad_alpha = gw * t - suffix / (1 - alpha).clamp_min(1e-10)
        return grad_alpha, grad_color


class TruncatedDensity(Function):
    """exp activation for densities; the exponent is limited to keep half precision finite."""

    @staticmethod
    def forward(ctx, x, limit=15.0):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(max=limit).exp()

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        g = grad_output.clamp(-5.0, 5.0)
        return g * x.clamp(max=ctx.limit).exp() * (x <= ctx.limit), None


class QuatToRotation(Function):
    """Unnormalised quaternions (N, 4) as (w, x, y, z) to rotation matrices (N, 3, 3)."""

    @staticmethod
    def forward(ctx, quat):
        q = quat / quat.norm(dim=1, keepdim=True).clamp_min(1e-12)
        w, x, y, z = q.unbind(1)
        ctx.save_for_backward(quat)
        return torch.stack([
            1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
            2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
            2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1).view(-1, 3, 3)

    @staticmethod
    def backward(ctx, grad_output):
        quat, = ctx.saved_tensors
        norm = quat.norm(dim=1, keepdim=True).clamp_min(1e-12)
        w, x, y, z = (quat / norm).unbind(1)
        g = grad_output.reshape(-1, 9).unbind(1)
        gw = 2 * (z * (g[3] - g[1]) + y * (g[2] - g[6]) + x * (g[7] - g[5]))
        gx = 2 * (y * (g[1] + g[3]) + z * (g[2] + g[6]) + w * (g[7] - g[5])) - 4 * x * (g[4] + g[8])
        gy = 2 * (x * (g[1] + g[3]) + z * (g[5] + g[7]) + w * (g[2] - g[6])) - 4 * y * (g[0] + g[8])
        gz = 2 * (x * (g[2] + g[6]) + y * (g[5] + g[7]) + w * (g[3] - g[1])) - 4 * z * (g[0] + g[4])
        return torch.stack([gw, gx, gy, gz], 1) / norm


class LennardJonesEnergy(Function):
    """Total Lennard-Jones energy of N particles, each pair counted once."""

    @staticmethod
    def _pairs(pos):
        n = pos.size(0)
        i, j = torch.triu_indices(n, n, 1)
        d = pos[i] - pos[j]
        return i, j, d, d.pow(2).sum(1)

    @staticmethod
    def forward(ctx, pos, sigma=1.0, epsilon=1.0):
        _, _, _, r2 = LennardJonesEnergy._pairs(pos)
        s6 = (sigma * sigma / r2).pow(3)
        ctx.save_for_backward(pos)
        ctx.params = (sigma, epsilon)
        return 4 * epsilon * (s6 * s6 - s6).sum()

    @staticmethod
    def backward(ctx, grad_output):
        pos, = ctx.saved_tensors
        sigma, epsilon = ctx.params
        i, j, d, r2 = LennardJonesEnergy._pairs(pos)
        s6 = (sigma * sigma / r2).pow(3)
        coef = 24 * epsilon * (s6 - s6 * s6) / r2
        f = grad_output * coef.unsqueeze(1) * d
        grad = torch.zeros_like(pos).index_add(0, i, f).index_add(0, j, -f)
        return grad, None, None


class EulerRollout(Function):
    """Explicit Euler for dy/dt = tanh(A y) with the discrete adjoint in backward."""

    @staticmethod
    def forward(ctx, y0, A, steps=4, dt=0.1):
        y, ys = y0, [y0]
        for _ in range(steps):
            y = y + dt * torch.tanh(y @ A.t())
            ys.append(y)
        ctx.save_for_backward(A, torch.stack(ys))
        ctx.steps, ctx.dt = steps, dt
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        A, ys = ctx.saved_tensors
        lam, grad_a = grad_output, torch.zeros_like(A)
        for t in range(ctx.steps - 1, -1, -1):
            s = torch.tanh(ys[t] @ A.t())
            u = ctx.dt * lam * (1 - s * s)
            grad_a = grad_a + u.t() @ ys[t + 1]
            lam = lam + u @ A
        return lam, grad_a, None, None


class SphericalHarmonics(Function):
    """Real spherical harmonics of directions (N, 3) up to degree 1 or 2."""

    C1 = 0.4886025119029199
    C2 = (1.0925484305920792, 0.31539156525252005, 0.5462742152960396)

    @staticmethod
    def forward(ctx, dirs, degree=1):
        if degree not in (1, 2):
            raise ValueError("degree must be 1 or 2")
        x, y, z = dirs.unbind(1)
        c1, (a, b, c) = SphericalHarmonics.C1, SphericalHarmonics.C2
        out = [torch.full_like(x, 0.28209479177387814), -c1 * y, c1 * z, -c1 * x]
        if degree > 1:
            out += [a * x * y, -a * y * z, b * (2 * z * z - x * x - y * y), -a * x * z, c * (x * x - y * y)]
        ctx.save_for_backward(dirs)
        ctx.degree = degree
        return torch.stack(out, 1)

    @staticmethod
    def backward(ctx, grad_output):
        dirs, = ctx.saved_tensors
        x, y, z = dirs.unbind(1)
        g = grad_output.unbind(1)
        c1, (a, b, c) = SphericalHarmonics.C1, SphericalHarmonics.C2
        gx, gy, gz = -c1 * g[3], -c1 * g[1], c1 * g[2]
        if ctx.degree > 1:
            gx = gx + a * y * g[4] - 2 * b * x * g[6] - a * z * g[7] + 2 * c * x * g[8]
            gy = gy + a * x * g[4] - a * z * g[5] - 2 * b * y * g[6] + 2 * c * y * g[8]
            gz = gz - a * y * g[5] + 4 * b * z * g[6] - a * x * g[7]
        return torch.stack([gx, gy, gz], 1), None


class MinimumImageDistance(Function):
    """Squared distances of pairs in a periodic orthorhombic box of side lengths (3,)."""

    @staticmethod
    def forward(ctx, a, b, box):
        d = a - b
        d = d - box * torch.round(d / box)
        ctx.save_for_backward(a, b, box)
        return d.pow(2).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        a, b, box = ctx.saved_tensors
        d = a - b
        d = d - box[0] * torch.round(d / box[0])
        g = 2 * grad_output.unsqueeze(-1) * d
        return g, -g, None


class RodriguesRotate(Function):
    """Rotates points (N, 3) by axis-angle vectors (N, 3)."""

    @staticmethod
    def _coef(r):
        t2 = r.pow(2).sum(1, keepdim=True)
        t = t2.sqrt()
        safe = t.clamp_min(1e-8)
        a = torch.where(t > 1e-8, t.sin() / safe, 1 - t2 / 6)
        b = torch.where(t > 1e-8, (1 - t.cos()) / safe.pow(2), 0.5 - t2 / 24)
        return t, a, b

    @staticmethod
    def forward(ctx, r, p):
        t, a, b = RodriguesRotate._coef(r)
        ctx.save_for_backward(r, p)
        c1 = torch.cross(r, p, dim=1)
        return p + a * c1 + b * torch.cross(r, c1, dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        r, p = ctx.saved_tensors
        g = grad_output
        t, a, b = RodriguesRotate._coef(r)
        c1 = torch.cross(r, p, dim=1)
        c2 = torch.cross(r, c1, dim=1)
        gc = torch.cross(g, r, dim=1)
        grad_p = g + a * gc + b * torch.cross(gc, r, dim=1)
        da = (t.cos() - a) / t
        db = (t.sin() / t - 2 * b) / t
        ga = (g * c1).sum(1, keepdim=True)
        gb = (g * c2).sum(1, keepdim=True)
        grad_r = a * torch.cross(p, g, dim=1) + (ga * da + gb * db) * r / t
        grad_r = grad_r + b * (torch.cross(c1, g, dim=1) + torch.cross(p, gc, dim=1))
        return grad_r, grad_p


class RaySphereHit(Function):
    """First hit of rays with a sphere at the origin: (distance, hit); distance 0 on a miss."""

    @staticmethod
    def forward(ctx, origin, direction, radius):
        b = (origin * direction).sum(1)
        c = origin.pow(2).sum(1) - radius * radius
        disc = b * b - c
        hit = (disc > 0).to(origin.dtype)
        root = disc.clamp_min(1e-12).sqrt()
        ctx.save_for_backward(origin, direction, hit)
        ctx.radius = radius
        return (-b - root) * hit, hit

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_t, grad_hit):
        origin, direction, hit = ctx.saved_tensors
        b = (origin * direction).sum(1)
        root = (b * b - origin.pow(2).sum(1) + ctx.radius ** 2).clamp_min(1e-12).sqrt()
        g = grad_t * hit
        gb = (-g - g * b / root).unsqueeze(1)
        gc = (g * 0.5 / root).unsqueeze(1)
        return gb * direction + 2 * gc * origin, gb * origin, None


class HeatSteps(Function):
    """Explicit heat equation steps on a periodic line: u <- u + kappa * laplacian(u)."""

    @staticmethod
    def _lap(u):
        return u.roll(1, -1) - 2 * u + u.roll(-1, -1)

    @staticmethod
    def forward(ctx, u, kappa, steps=8):
        states = []
        for _ in range(steps):
            states.append(u)
            u = u + kappa * HeatSteps._lap(u)
        ctx.save_for_backward(kappa, *states)
        return u

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        kappa, *states = ctx.saved_tensors
        g = grad_output
        grad_k = torch.zeros_like(kappa) if ctx.needs_input_grad[1] else None
        for u in reversed(states):
            if grad_k is not None:
                grad_k = grad_k + (g * HeatSteps._lap(u)).sum()
            g = g + kappa * HeatSteps._lap(g)
        return g, grad_k, None


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


def _comp_in():
    return (_u(0, 3, 5), _u(1, 3, 5, 3))


def _lj_in():
    grid = torch.stack(torch.meshgrid(*[torch.arange(2.0)] * 3, indexing="ij"), -1).reshape(-1, 3).double()
    return ((grid[:5] * 1.3 + _t(0, 5, 3, grad=False, scale=0.05)).requires_grad_(),)


def _mic_in(box=(2.0, 2.0, 2.0)):
    return (_u(0, 5, 3, lo=0, hi=2), _u(1, 5, 3, lo=0, hi=2), torch.tensor(box, dtype=torch.float64))


def _rod_in():
    return (_t(0, 4, 3), _t(1, 4, 3))


def _ev_rod():
    r, p = _rod_in()
    z = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    return bool(torch.isnan(_grads(RodriguesRotate, (z, p))[0][0]).any())


def _ray_in():
    d = torch.nn.functional.normalize(_t(1, 5, 3, grad=False, scale=0.2) + torch.tensor([0, 0, 1.0], dtype=torch.float64), dim=1)
    o = _t(0, 5, 3, grad=False, scale=0.2) + torch.tensor([0, 0, -3.0], dtype=torch.float64)
    return (o.requires_grad_(), d.requires_grad_(), 1.0)


def _heat_in(frozen=False):
    return (_t(0, 2, 6), torch.tensor(0.2, dtype=torch.float64, requires_grad=not frozen), 8)


CASES = [
    dict(name="alpha_composite", target=AlphaComposite, inputs=_comp_in,
         fault="the suffix sum of later contributions includes the sample itself (inclusive instead of exclusive)",
         kind="wrong", visible=True, evidence=lambda: _wrong(AlphaComposite, _comp_in())),
    dict(name="truncated_density", target=TruncatedDensity, inputs=lambda: (_t(0, 4, 5),),
         fault="the cotangent is clamped to [-5, 5] in backward: the gradient is not linear in the cotangent",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(TruncatedDensity, (_t(0, 4, 5),), keep=[0], cots=[_t(1, 4, 5, grad=False, scale=50.0)], tol=1e-4)),
    dict(name="quat_to_rotation", target=QuatToRotation, inputs=lambda: (_t(0, 3, 4),),
         fault="the projection term of the normalisation is missing (only the division by the norm is there)",
         kind="wrong", visible=True, evidence=lambda: _wrong(QuatToRotation, (_t(0, 3, 4),))),
    dict(name="lennard_jones", target=LennardJonesEnergy, inputs=_lj_in,
         fault="derivative of the s12 term lacks its factor 2 (24(s6 - s12) instead of 24(s6 - 2 s12))",
         kind="wrong", visible=True, evidence=lambda: _wrong(LennardJonesEnergy, _lj_in())),
    dict(name="euler_rollout", target=EulerRollout, inputs=lambda: (_t(0, 2, 3), _t(1, 3, 3)),
         fault="the parameter gradient uses the state after the step (ys[t+1]) instead of before it",
         kind="wrong", visible=True, evidence=lambda: _wrong(EulerRollout, (_t(0, 2, 3), _t(1, 3, 3)))),
    dict(name="spherical_harmonics", target=SphericalHarmonics, inputs=lambda: (_t(0, 5, 3), 1),
         fault="for degree 2 the y gradient of the last harmonic has the wrong sign; degree 1 is right",
         kind="wrong", visible=False, evidence=lambda: _wrong(SphericalHarmonics, (_t(0, 5, 3), 2))),
    dict(name="minimum_image_distance", target=MinimumImageDistance, inputs=_mic_in,
         fault="backward wraps all axes with box[0]; wrong for boxes that are not cubic",
         kind="wrong", visible=False, evidence=lambda: _wrong(MinimumImageDistance, _mic_in((2.0, 1.0, 0.7)))),
    dict(name="rodrigues_rotate", target=RodriguesRotate, inputs=_rod_in,
         fault="division by the angle in backward: NaN gradient at the zero rotation (the usual start), forward is guarded",
         kind="wrong", visible=False, evidence=_ev_rod),
    dict(name="ray_sphere_hit", target=RaySphereHit, inputs=_ray_in,
         fault="the hit mask is not marked non-differentiable: it requires grad and silently gives zero gradients",
         kind="fragile", visible=False, evidence=lambda: RaySphereHit.apply(*_ray_in())[1].requires_grad),
    dict(name="heat_steps", target=HeatSteps, inputs=_heat_in,
         fault="all intermediate states are saved even when kappa is frozen and only a linear map is to be transposed",
         kind="wasteful", visible=False,
         evidence=lambda: sum(_saved_numel(HeatSteps.apply(*_heat_in(True)))) > 8 * 11),
]
