"""Rotations, rendering and small physics kernels."""
from support import *


class QuaternionToMatrix(Function):
    """Rotation matrix of quaternions (..., 4) in the order w, x, y, z, not normalised."""

    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        w, x, y, z = q.unbind(-1)
        rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
        return torch.stack(rows, -1).unflatten(-1, (3, 3))

    @staticmethod
    def backward(ctx, grad_output):
        q, = ctx.saved_tensors
        w, x, y, z = q.unbind(-1)
        m = grad_output
        gw = 2 * (x * (m[..., 2, 1] - m[..., 1, 2]) + y * (m[..., 0, 2] - m[..., 2, 0])
                  + z * (m[..., 1, 0] - m[..., 0, 1]))
        gx = 2 * (-2 * x * (m[..., 1, 1] + m[..., 2, 2]) + y * (m[..., 0, 1] + m[..., 1, 0])
                  + z * (m[..., 0, 2] + m[..., 2, 0]) + w * (m[..., 2, 1] - m[..., 1, 2]))
        gy = 2 * (x * (m[..., 0, 1] + m[..., 1, 0]) - 2 * y * (m[..., 0, 0] + m[..., 2, 2])
                  + z * (m[..., 1, 2] + m[..., 2, 1]) + w * (m[..., 2, 0] - m[..., 0, 2]))
        gz = 2 * (x * (m[..., 0, 2] + m[..., 2, 0]) + y * (m[..., 1, 2] + m[..., 2, 1])
                  - 2 * z * (m[..., 0, 0] + m[..., 1, 1]) + w * (m[..., 1, 0] - m[..., 0, 1]))
        return torch.stack([gw, gx, gy, gz], -1)


class RotateByVector(Function):
    """Rotates points (N, 2) by angles (N,)."""

    @staticmethod
    def forward(ctx, p, angle):
        ctx.save_for_backward(p, angle)
        c, s = angle.cos(), angle.sin()
        return torch.stack([c * p[:, 0] - s * p[:, 1], s * p[:, 0] + c * p[:, 1]], 1)

    @staticmethod
    def backward(ctx, grad_output):
        p, angle = ctx.saved_tensors
        gp = ga = None
        c, s = angle.cos(), angle.sin()
        g0, g1 = grad_output[:, 0], grad_output[:, 1]
        if ctx.needs_input_grad[0]:
            gp = torch.stack([c * g0 + s * g1, c * g1 - s * g0], 1)
        if ctx.needs_input_grad[1]:
            dx, dy = -s * p[:, 0] - c * p[:, 1], c * p[:, 0] - s * p[:, 1]
            ga = (g0 * dx + g1 * dy).squeeze()
        return gp, ga


class SmallAngleSinc(Function):
    """sin(|v|) / |v| times v, with a series near the origin (half of the SO(3) exponential)."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        t = v.norm(dim=-1, keepdim=True)
        small = t < 1e-4
        safe = torch.where(small, torch.ones_like(t), t)
        return torch.where(small, 1 - t * t / 6, safe.sin() / safe) * v

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        v, = ctx.saved_tensors
        t = v.norm(dim=-1, keepdim=True)
        small = t < 1e-4
        safe = torch.where(small, torch.ones_like(t), t)
        a = safe.sin() / safe
        b = (safe.cos() - a) / (safe * safe)
        g = a * grad_output + b * v * (v * grad_output).sum(-1, keepdim=True)
        return torch.where(small, torch.zeros_like(g), g)


class LinearSample(Function):
    """Samples a vector at coordinates in (-1, 1) with linear interpolation."""

    @staticmethod
    def _locate(coord, n, align_corners):
        if align_corners:
            return (coord + 1) / 2 * (n - 1)
        return ((coord + 1) * n - 1) / 2

    @staticmethod
    def forward(ctx, values, coord, align_corners):
        n = values.numel()
        pos = LinearSample._locate(coord, n, align_corners)
        low = pos.floor().clamp(0, n - 2)
        i, w = low.long(), pos - low
        ctx.save_for_backward(values, coord)
        ctx.align_corners = align_corners
        return values[i] * (1 - w) + values[i + 1] * w

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        values, coord = ctx.saved_tensors
        n = values.numel()
        pos = LinearSample._locate(coord, n, ctx.align_corners)
        low = pos.floor().clamp(0, n - 2)
        i, w = low.long(), pos - low
        gv = gc_ = None
        if ctx.needs_input_grad[0]:
            gv = torch.zeros_like(values)
            gv.index_add_(0, i, grad_output * (1 - w))
            gv.index_add_(0, i + 1, grad_output * w)
        if ctx.needs_input_grad[1]:
            gc_ = grad_output * (values[i + 1] - values[i]) * (n - 1) / 2
        return gv, gc_, None


def linear_sample(values, coord, align_corners=True):
    return LinearSample.apply(values, coord, align_corners)


@torch.library.custom_op("faultyops::alpha_composite", mutates_args=())
def alpha_composite(alpha: torch.Tensor) -> torch.Tensor:
    """Weights alpha_i prod_{j < i} (1 - alpha_j) along the last dimension."""
    return alpha * _transmittance(alpha)


def _transmittance(alpha):
    return torch.cumprod(torch.cat([torch.ones_like(alpha[..., :1]), 1 - alpha[..., :-1]], -1), -1)


@alpha_composite.register_fake
def _(alpha):
    return torch.empty_like(alpha)


def _alpha_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _alpha_backward(ctx, grad):
    alpha, = ctx.saved_tensors
    trans = _transmittance(alpha)
    gw = grad * alpha * trans
    after = gw.flip(-1).cumsum(-1).flip(-1) - gw
    return grad * trans - after / (1 - alpha)


alpha_composite.register_autograd(_alpha_backward, setup_context=_alpha_setup)


class PairwiseDistance(Function):
    """Squared distances between the rows of two matrices."""

    @staticmethod
    def forward(ctx, a, b):
        diff = a[:, None] - b[None]
        ctx.save_for_backward(diff)
        return diff.square().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        diff, = ctx.saved_tensors
        g = 2 * grad_output.unsqueeze(-1) * diff
        return (g.sum(1) if ctx.needs_input_grad[0] else None,
                -g.sum(0) if ctx.needs_input_grad[1] else None)


class LennardJones(Function):
    """Energy of a cluster; the forces come with it and serve as the gradient."""

    @staticmethod
    def forward(ctx, pos):
        diff = pos[:, None] - pos[None]
        r2 = diff.square().sum(-1) + torch.eye(pos.size(0), dtype=pos.dtype)
        off = 1 - torch.eye(pos.size(0), dtype=pos.dtype)
        i6 = off / r2 ** 3
        forces = ((48 * i6 * i6 - 24 * i6) / r2).unsqueeze(-1) * diff
        ctx.save_for_backward(forces.sum(1))
        return 2 * (i6 * i6 - i6).sum()

    @staticmethod
    def backward(ctx, grad_output):
        forces, = ctx.saved_tensors
        return -forces * grad_output


class BondAngle(Function):
    """Signed angle from u to v in the plane, rows of (N, 2), in (-pi, pi)."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        cross = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
        return torch.atan2(cross, (u * v).sum(1))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        nu, nv = u.norm(dim=1, keepdim=True), v.norm(dim=1, keepdim=True)
        eu, ev = u / nu, v / nv
        cos = (eu * ev).sum(1, keepdim=True)
        coef = -grad_output[:, None] / (1 - cos * cos).clamp(min=1e-24).sqrt()
        gu = coef * (ev - cos * eu) / nu if ctx.needs_input_grad[0] else None
        gv = coef * (eu - cos * ev) / nv if ctx.needs_input_grad[1] else None
        return gu, gv


@torch.library.custom_op("faultyops::pinhole_project", mutates_args=())
def pinhole_project(points: torch.Tensor, intr: torch.Tensor) -> torch.Tensor:
    """Projects camera points (N, 3) with focal lengths and centre (fx, fy, cx, cy)."""
    return points[:, :2] / points[:, 2:] * intr[:2] + intr[2:]


@pinhole_project.register_fake
def _(points, intr):
    return points.new_empty(points.size(0), 2)


def _pinhole_setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _pinhole_backward(ctx, grad):
    points, intr = ctx.saved_tensors
    gp = gi = None
    if ctx.needs_input_grad[0]:
        iz = 1 / points[:, 2:]
        gxy = grad * intr[:2] * iz
        gz = -(gxy * points[:, :2] * iz).sum(1, keepdim=True)
        gp = torch.cat([gxy, gz], 1)
    if ctx.needs_input_grad[1]:
        gi = torch.cat([(grad * points[:, :2] * iz).sum(0), grad.sum(0)])
    return gp, gi


pinhole_project.register_autograd(_pinhole_backward, setup_context=_pinhole_setup)


class PoissonSolve(Function):
    """Solves -u'' + u = f on a periodic grid of spacing h by the FFT."""

    _symbol = {}

    @staticmethod
    def symbol(n, h):
        k = 2 * math.pi * torch.fft.fftfreq(n, d=h, dtype=f64)
        PoissonSolve._symbol[n] = 1 + k * k
        return PoissonSolve._symbol[n]

    @staticmethod
    def forward(ctx, f, h):
        ctx.n = f.size(-1)
        return torch.fft.ifft(torch.fft.fft(f) / PoissonSolve.symbol(ctx.n, h)).real

    @staticmethod
    def backward(ctx, grad_output):
        return torch.fft.ifft(torch.fft.fft(grad_output) / PoissonSolve._symbol[ctx.n]).real, None


def _poisson_shared():
    def one(again):
        f = randn(6)
        u = PoissonSolve.apply(f, 0.5)
        if again:
            PoissonSolve.apply(randn(6, seed=1), 2.0)
        return torch.autograd.grad((u * u).sum(), f)[0]
    return not close(one(False), one(True))


def _lj_second():
    pos = (randn(3, 3, grad=False) * 1.5).requires_grad_()
    return wrong_second(LennardJones, (pos,))


CASES = [
    {"name": "quaternion_matrix_y_sign", "target": QuaternionToMatrix, "inputs": lambda: (randn(2, 4),),
     "fault": "In the gradient of y the two entries multiplied by w are subtracted the wrong way round.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(QuaternionToMatrix, (randn(1, 4),))},
    {"name": "rotate_points_single", "target": RotateByVector, "inputs": lambda: (randn(3, 2), randn(3, seed=1)),
     "fault": "The angle gradient is squeezed, so backward fails for a batch of one.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: raises(lambda: analytic(RotateByVector, (randn(1, 2), randn(1, seed=1))), "shape")},
    {"name": "small_angle_gradient_zero", "target": SmallAngleSinc, "inputs": lambda: (randn(3, 3),),
     "fault": "Within the series branch the gradient is zero where it should be close to the identity.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(SmallAngleSinc, (torch.zeros(1, 3, dtype=f64).requires_grad_(),))},
    {"name": "linear_sample_align_corners", "target": linear_sample,
     "inputs": lambda: (randn(5), rand(4, seed=1, lo=-0.9, hi=0.9)),
     "fault": "The coordinate gradient always has the factor (n - 1) / 2, which is n / 2 without align_corners.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(linear_sample, (randn(5), rand(4, seed=1, lo=-0.6, hi=0.6), False))},
    {"name": "alpha_composite_opaque", "target": alpha_composite, "inputs": lambda: (rand(2, 4, lo=0.1, hi=0.9),),
     "fault": "backward divides by 1 - alpha, so an opaque sample (alpha = 1) has a NaN gradient.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(alpha_composite, (tensor([0.5, 1.0, 0.3]),))[0][0][1]))},
    {"name": "pairwise_distance_keeps_differences", "target": PairwiseDistance,
     "inputs": lambda: (randn(6, 4), randn(5, 4, seed=1)),
     "fault": "All N x M x D differences are kept for backward where the two inputs suffice.",
     "kind": "wasteful", "visible": False,
     "evidence": lambda: saved_elems(PairwiseDistance, (randn(20, 4), randn(20, 4, seed=1))) >= 1600},
    {"name": "lennard_jones_second_derivative", "target": LennardJones, "inputs": lambda: (randn(3, 3, scale=1.5),),
     "fault": "The gradient is a constant saved in forward, so second derivatives are silently missing.",
     "kind": "fragile", "visible": False, "evidence": _lj_second},
    {"name": "signed_angle_negative", "target": BondAngle,
     "inputs": lambda: (tensor([[1.0, 0.2], [0.5, 0.1]]), tensor([[0.3, 1.0], [-0.4, 0.9]])),
     "fault": "The gradient is that of acos, with the wrong sign for negative angles.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(BondAngle, (tensor([[1.0, 0.2]]), tensor([[0.3, -1.0]])))},
    {"name": "pinhole_intrinsics_alone", "target": pinhole_project,
     "inputs": lambda: (rand(3, 3, lo=1.0, hi=2.0), rand(4, seed=1)),
     "fault": "A quantity computed only when the points require grad is used for the intrinsics, so those alone fail.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: raises(lambda: analytic(pinhole_project, (rand(3, 3, lo=1.0, grad=False), rand(4, seed=1))), kind=NameError)},
    {"name": "poisson_symbol_cache", "target": PoissonSolve, "inputs": lambda: (randn(2, 6), 0.5),
     "fault": "The symbol for backward is kept on the class by size only, so a call with another spacing replaces it.",
     "kind": "wrong", "visible": False, "evidence": _poisson_shared},
]
