"""Linear algebra, optimisation layers, optimal transport and implicit differentiation."""
import math

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _check_symmetric(a, name="matrix"):
    if a.shape[-1] != a.shape[-2] or not torch.allclose(a, a.mT, rtol=1e-4, atol=1e-5):
        raise ValueError(f"{name} must be symmetric")


class MatrixSqrtSPD(Function):
    """Principal square root of a symmetric positive definite matrix (covariance pooling).

    The backward solves the Lyapunov equation S X + X S = G in the eigenbasis.
    """

    @staticmethod
    def forward(ctx, a):
        _check_symmetric(a)
        lam, vec = torch.linalg.eigh((a + a.mT) / 2)
        if bool((lam <= 0).any()):
            raise ValueError("matrix must be positive definite")
        root = lam.sqrt()
        ctx.save_for_backward(root, vec)
        return (vec * root.unsqueeze(-2)) @ vec.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        root, vec = ctx.saved_tensors
        g = (grad_output + grad_output.mT) / 2
        inner = vec.mT @ g @ vec / (root.unsqueeze(-1) + root.unsqueeze(-2))
        return vec @ inner @ vec.mT


class LogDetSPD(Function):
    """log det of (batched) symmetric positive definite matrices by Cholesky; gradient A^{-1}."""

    @staticmethod
    def forward(ctx, a):
        _check_symmetric(a)
        chol = torch.linalg.cholesky(a)
        ctx.save_for_backward(a)
        return 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        inverse = torch.linalg.inv(a)
        return grad_output[..., None, None] * (inverse + inverse.mT) / 2


class LowerTriangularSolve(Function):
    """Solve L x = b for lower-triangular L (n, n); the strict upper part is ignored."""

    @staticmethod
    def forward(ctx, tri, b):
        if tri.dim() != 2 or b.dim() != 2:
            raise ValueError("expected matrices")
        x = torch.linalg.solve_triangular(tri, b, upper=False)
        ctx.save_for_backward(tri, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        tri, x = ctx.saved_tensors
        grad_b = torch.linalg.solve_triangular(tri.tril().mT, grad_output, upper=True)
        grad_tri = -(grad_b @ x.mT).tril() if ctx.needs_input_grad[0] else None
        return grad_tri, grad_b


class SymmetricEigvals(Function):
    """Ascending eigenvalues of a symmetric matrix; the gradient is V diag(g) V^T."""

    @staticmethod
    def forward(ctx, a):
        _check_symmetric(a)
        lam, vec = torch.linalg.eigh((a + a.mT) / 2)
        ctx.save_for_backward(vec)
        return lam

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (vec,) = ctx.saved_tensors
        return (vec * grad_output.unsqueeze(-2)) @ vec.mT


class UnitSphereProject(Function):
    """Normalise the last dim to unit length, projecting the gradient on the tangent space."""

    @staticmethod
    def forward(ctx, x, eps):
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        if bool((norm <= eps).any()):
            raise ValueError("cannot normalise a vector this short")
        ctx.save_for_backward(x)
        return x / norm

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        u = x / norm
        return (grad_output - u * (u * grad_output).sum(-1, keepdim=True)) / norm, None


class DEQTanh(Function):
    """Equilibrium z* = tanh(W z* + x) with ||W|| < 1, differentiated implicitly.

    x: (batch, n), weight: (n, n). Iterates from a state of zeros.
    """

    @staticmethod
    def forward(ctx, x, weight, max_iter, tol):
        if float(torch.linalg.matrix_norm(weight, 2)) >= 1:
            raise ValueError("weight must be a contraction")
        z = torch.zeros_like(x)
        for _ in range(max_iter):
            z_next = torch.tanh(z @ weight.mT + x)
            done = float((z_next - z).abs().max()) < tol
            z = z_next
            if done:
                break
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        weight, z = ctx.saved_tensors
        n = weight.shape[0]
        slope = 1 - z * z
        # u solves (I - D W)^T u = g for every sample, with D = diag(slope).
        jac = torch.eye(n, dtype=z.dtype, device=z.device) - slope.unsqueeze(-1) * weight
        u = torch.linalg.solve(jac.mT, grad_output.unsqueeze(-1)).squeeze(-1) * slope
        grad_w = u.mT @ z if ctx.needs_input_grad[1] else None
        return u, grad_w, None, None


class BracketedCubicRoot(Function):
    """Root of t^3 + a t - b in [lo, hi] by bisection and one Newton polish, for a > 0.

    The brackets must hold a sign change; they only locate the root and get no gradient.
    """

    @staticmethod
    def forward(ctx, a, b, lo, hi, steps=60):
        if bool((a <= 0).any()):
            raise ValueError("a must be positive")
        f = lambda t: t ** 3 + a * t - b
        if bool((f(lo) > 0).any()) or bool((f(hi) < 0).any()):
            raise ValueError("[lo, hi] does not bracket the root")
        left, right = lo.clone(), hi.clone()
        for _ in range(steps):
            mid = (left + right) / 2
            below = f(mid) < 0
            left, right = torch.where(below, mid, left), torch.where(below, right, mid)
        t = (left + right) / 2
        t = t - f(t) / (3 * t * t + a)
        ctx.save_for_backward(a, t)
        return t

    @staticmethod
    def backward(ctx, grad_output):
        a, t = ctx.saved_tensors
        v = grad_output / (3 * t * t + a)
        grad_a = -v * t if ctx.needs_input_grad[0] else None
        grad_b = v if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, None, None, None


class SinkhornCost(Function):
    """Entropic OT cost between histograms a (n,) and b (m,) for a cost matrix (n, m).

    Log-domain Sinkhorn run to convergence; by the envelope theorem the gradient
    with respect to the cost is the transport plan. Marginals are constants here.
    """

    @staticmethod
    def forward(ctx, cost, a, b, epsilon, max_iter=2000, tol=1e-12):
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("SinkhornCost is differentiable in the cost only")
        if abs(float(a.sum() - b.sum())) > 1e-4 or bool((a <= 0).any()) or bool((b <= 0).any()):
            raise ValueError("a and b must be positive with equal mass")
        loga, logb = a.log(), b.log()
        f, g = torch.zeros_like(a), torch.zeros_like(b)
        for _ in range(max_iter):
            f_old = f
            f = -epsilon * torch.logsumexp((g - cost) / epsilon + logb, dim=1)
            g = -epsilon * torch.logsumexp((f[:, None] - cost) / epsilon + loga[:, None], dim=0)
            if float((f - f_old).abs().max()) < tol:
                break
        plan = torch.exp((f[:, None] + g - cost) / epsilon + loga[:, None] + logb)
        ctx.save_for_backward(plan)
        return (f * a).sum() + (g * b).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (plan,) = ctx.saved_tensors
        return grad_output * plan, None, None, None, None, None


class Wasserstein1D(Function):
    """Mean |sort(x) - sort(y)| of two samples of equal size (1-D optimal transport)."""

    @staticmethod
    def forward(ctx, x, y):
        if x.dim() != 1 or x.shape != y.shape:
            raise ValueError("expected two vectors of equal length")
        xs, px = x.sort()
        ys, py = y.sort()
        sign = torch.sign(xs - ys) / x.numel()
        ctx.save_for_backward(sign, px, py)
        return (xs - ys).abs().mean()

    @staticmethod
    def backward(ctx, grad_output):
        sign, px, py = ctx.saved_tensors
        g = grad_output * sign
        grad_x = torch.zeros_like(g).scatter(0, px, g) if ctx.needs_input_grad[0] else None
        grad_y = torch.zeros_like(g).scatter(0, py, -g) if ctx.needs_input_grad[1] else None
        return grad_x, grad_y


class EqualityQP(Function):
    """argmin 0.5 x^T Q x + p^T x subject to A x = b, by its KKT system.

    Q: (n, n) symmetric positive definite; A: (m, n) of full row rank.
    """

    @staticmethod
    def forward(ctx, q, p, a, b):
        _check_symmetric(q, "Q")
        n, m = q.shape[0], a.shape[0]
        kkt = torch.cat([torch.cat([q, a.mT], 1), torch.cat([a, a.new_zeros(m, m)], 1)], 0)
        sol = torch.linalg.solve(kkt, torch.cat([-p, b]))
        x, nu = sol[:n].clone(), sol[n:].clone()
        ctx.save_for_backward(kkt, x, nu)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        kkt, x, nu = ctx.saved_tensors
        n = x.numel()
        d = -torch.linalg.solve(kkt, torch.cat([grad_output, torch.zeros_like(nu)]))
        dx, dnu = d[:n], d[n:]
        grad_q = (torch.outer(dx, x) + torch.outer(x, dx)) / 2 if ctx.needs_input_grad[0] else None
        grad_p = dx if ctx.needs_input_grad[1] else None
        grad_a = torch.outer(dnu, x) + torch.outer(nu, dx) if ctx.needs_input_grad[2] else None
        grad_b = -dnu if ctx.needs_input_grad[3] else None
        return grad_q, grad_p, grad_a, grad_b


def _pav_blocks(y):
    """Pool-adjacent-violators for a non-increasing fit; returns block lengths."""
    blocks = []
    for v in y:
        blocks.append([v, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] < blocks[-1][0] / blocks[-1][1]:
            s, c = blocks.pop()
            blocks[-1][0] += s
            blocks[-1][1] += c
    return [c for _, c in blocks]


class IsotonicDecreasing(Function):
    """Euclidean projection of a vector on non-increasing sequences, by PAV in NumPy."""

    @staticmethod
    def forward(ctx, y):
        if y.dim() != 1:
            raise ValueError("expected a vector")
        sizes = _pav_blocks(y.detach().cpu().numpy().astype(np.float64).tolist())
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).to(y.device)
        count = torch.tensor(sizes, dtype=y.dtype, device=y.device)
        ctx.save_for_backward(owner, count)
        return IsotonicDecreasing._block_mean(y, owner, count)

    @staticmethod
    def _block_mean(v, owner, count):
        return (torch.zeros_like(count).index_add(0, owner, v) / count)[owner]

    @staticmethod
    def backward(ctx, grad_output):
        owner, count = ctx.saved_tensors
        return IsotonicDecreasing._block_mean(grad_output, owner, count)


class BudgetedSigmoid(Function):
    """y = sigmoid(x + nu) with nu chosen per row so that sum(y) = k (limited multi-label layer)."""

    @staticmethod
    def forward(ctx, x, k, iters=80):
        if not 0 < k < x.shape[-1]:
            raise ValueError("k must lie strictly between 0 and the number of labels")
        lo = -x.max(-1, keepdim=True).values - 40
        hi = -x.min(-1, keepdim=True).values + 40
        for _ in range(iters):
            mid = (lo + hi) / 2
            small = torch.sigmoid(x + mid).sum(-1, keepdim=True) < k
            lo, hi = torch.where(small, mid, lo), torch.where(small, hi, mid)
        y = torch.sigmoid(x + (lo + hi) / 2)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        h = y * (1 - y)
        mean = (h * grad_output).sum(-1, keepdim=True) / h.sum(-1, keepdim=True)
        return h * (grad_output - mean), None, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


def _spd(n, seed=0):
    m = _randn(n, n, seed=seed)
    return m @ m.mT / n + torch.eye(n, dtype=m.dtype)


CASES = [
    dict(name="matrix_sqrt_spd", target=MatrixSqrtSPD, inputs=lambda: (_spd(4).requires_grad_(),),
         declares={}, note="SPD input checked; Lyapunov backward; symmetric gradient; once_differentiable"),
    dict(name="logdet_spd", target=LogDetSPD,
         inputs=lambda: (torch.stack([_spd(3), _spd(3, 1)]).requires_grad_(),),
         declares={}, note="SPD batch; symmetric gradient; double backward right on symmetric inputs"),
    dict(name="lower_triangular_solve", target=LowerTriangularSolve,
         inputs=lambda: ((_randn(4, 4).tril() + 3 * torch.eye(4, dtype=torch.float64)).requires_grad_(), _randn(4, 2, seed=1).requires_grad_()),
         declares={}, note="upper part ignored and gets zero gradient; double backward right"),
    dict(name="symmetric_eigvals", target=SymmetricEigvals,
         inputs=lambda: ((_spd(4, 3) + torch.diag(torch.arange(4.0, dtype=torch.float64))).requires_grad_(),),
         declares={}, note="symmetric input with distinct eigenvalues; once_differentiable"),
    dict(name="unit_sphere_project", target=UnitSphereProject, inputs=lambda: (_randn(5, 4).requires_grad_(), 1e-8),
         declares={}, note="differentiable backward from input"),
    dict(name="deq_tanh", target=DEQTanh,
         inputs=lambda: (_randn(3, 4).requires_grad_(), (0.15 * _randn(4, 4, seed=1)).requires_grad_(), 300, 1e-13),
         declares={}, note="contractive fixed point; implicit gradient; once_differentiable"),
    dict(name="bracketed_cubic_root", target=BracketedCubicRoot,
         inputs=lambda: ((_randn(6).abs() + 0.5).requires_grad_(), _randn(6, seed=1).requires_grad_(),
                         torch.full((6,), -4.0, dtype=torch.float64), torch.full((6,), 4.0, dtype=torch.float64)),
         declares={}, note="brackets only locate the root (truly zero gradient); output saved, double backward right"),
    dict(name="sinkhorn_cost", target=SinkhornCost,
         inputs=lambda: (_randn(4, 3).abs().requires_grad_(), torch.softmax(_randn(4, seed=1), 0), torch.softmax(_randn(3, seed=2), 0), 0.5),
         declares={}, note="envelope theorem; marginals refused if they require grad; once_differentiable"),
    dict(name="wasserstein_1d", target=Wasserstein1D,
         inputs=lambda: (_randn(7).requires_grad_(), (_randn(7, seed=1) + 0.5).requires_grad_()),
         declares={}, note="sorting permutations saved; piecewise linear"),
    dict(name="equality_qp", target=EqualityQP,
         inputs=lambda: (_spd(4).requires_grad_(), _randn(4, seed=1).requires_grad_(), _randn(2, 4, seed=2).requires_grad_(), _randn(2, seed=3).requires_grad_()),
         declares={}, note="OptNet-style KKT gradient, symmetrised in Q; once_differentiable"),
    dict(name="isotonic_decreasing", target=IsotonicDecreasing, inputs=lambda: (_randn(9).requires_grad_(),),
         declares={}, note="PAV in Python/NumPy; block averaging is self-adjoint; double backward right (piecewise linear)"),
    dict(name="budgeted_sigmoid", target=BudgetedSigmoid, inputs=lambda: (_randn(3, 6).requires_grad_(), 2),
         declares={}, note="LML layer; bisection; gradient from output, double backward right"),
]
