"""Implicit and optimisation layers."""
import torch
import torch.nn as nn

from support import *


class SPDSolve(Function):
    """x with A x = b for symmetric positive definite A, by Cholesky (reads the lower triangle).
    The gradient of A is symmetric."""

    @staticmethod
    def forward(ctx, A, b):
        L = torch.linalg.cholesky(A)
        x = torch.cholesky_solve(b, L)
        ctx.save_for_backward(L, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, gx):
        L, x = ctx.saved_tensors
        gb = torch.cholesky_solve(gx, L)
        gA = None
        if ctx.needs_input_grad[0]:
            gA = -gb @ x.mT
            gA = (gA + gA.mT) / 2
        return gA, gb if ctx.needs_input_grad[1] else None


def _spd(seed, n, dtype=torch.float64):
    b = randn(n, n, seed=seed, grad=False, dtype=dtype)
    return (b @ b.T + n * torch.eye(n, dtype=dtype)).requires_grad_()


class TriangularSolve(Function):
    """L x = b by substitution; only the named triangle of L is read and gets a gradient."""

    @staticmethod
    def forward(ctx, L, b, upper=False):
        x = torch.linalg.solve_triangular(L, b, upper=upper)
        ctx.upper = upper
        ctx.save_for_backward(L, x)
        return x

    @staticmethod
    def backward(ctx, gx):
        L, x = ctx.saved_tensors
        gb = torch.linalg.solve_triangular(L.mT, gx, upper=not ctx.upper)
        gL = None
        if ctx.needs_input_grad[0]:
            gL = -gb @ x.mT
            gL = gL.triu() if ctx.upper else gL.tril()
        return gL, gb if ctx.needs_input_grad[1] else None, None


class DEQFunction(Function):
    """Equilibrium z = tanh(z W + x), found by plain iteration, differentiated implicitly."""

    @staticmethod
    def forward(ctx, x, W, tol, max_iter):
        z = torch.zeros_like(x)
        for _ in range(max_iter):
            nxt = torch.tanh(z @ W + x)
            gap = (nxt - z).abs().max()
            z = nxt
            if gap <= tol:
                break
        else:
            raise RuntimeError(f"no equilibrium to within {tol} after {max_iter} iterations")
        ctx.save_for_backward(z, W)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, W = ctx.saved_tensors
        d = 1 - z * z
        n = W.size(0)
        # u = dL/d(pre-activation) of a sample solves u = d * (g + W u)
        M = torch.eye(n, dtype=W.dtype, device=W.device) - d.unsqueeze(-1) * W
        u = torch.linalg.solve(M, (d * g).unsqueeze(-1)).squeeze(-1)
        return (u if ctx.needs_input_grad[0] else None,
                z.t() @ u if ctx.needs_input_grad[1] else None, None, None)


def deq(x, W, tol=None, max_iter=500):
    """Equilibrium layer; ``W`` must be a contraction."""
    if tol is None:
        tol = 1e-13 if x.dtype == torch.float64 else 1e-6
    return DEQFunction.apply(x, W, tol, max_iter)


class KeplerFunction(Function):
    """Eccentric anomaly E with E - e sin E = M, by Newton's method."""

    @staticmethod
    def forward(ctx, M, e):
        if (e < 0).any() or (e >= 1).any():
            raise ValueError("the eccentricity must be in [0, 1)")
        E = torch.where(e > 0.8, torch.full_like(M, math.pi), M + e * torch.sin(M))
        for _ in range(50):
            step = (E - e * torch.sin(E) - M) / (1 - e * torch.cos(E))
            E = E - step
            if step.abs().max() < 0.1 * torch.finfo(E.dtype).eps ** 0.5:
                break
        else:
            raise RuntimeError("Kepler's equation: Newton's method has not converged")
        ctx.save_for_backward(E, e)
        return E

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        E, e = ctx.saved_tensors
        gM = g / (1 - e * torch.cos(E))
        return (gM if ctx.needs_input_grad[0] else None,
                gM * torch.sin(E) if ctx.needs_input_grad[1] else None)


def kepler(M, e):
    M, e = torch.broadcast_tensors(M, e)
    return KeplerFunction.apply(M, e)


class DepressedCubicRoot(Function):
    """The one real root y of y^3 + y = x."""

    @staticmethod
    def forward(x):
        y = torch.asinh(x * (1.5 * math.sqrt(3.0))).div(3).sinh() * (2 / math.sqrt(3.0))
        return y - (y ** 3 + y - x) / (3 * y * y + 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        y, = ctx.saved_tensors
        return g / (3 * y * y + 1)


class SymEigvals(Function):
    """Eigenvalues of a symmetric matrix in ascending order.  The matrix must be symmetric."""

    @staticmethod
    def forward(ctx, A):
        if not torch.allclose(A, A.mT, rtol=0, atol=1e-5 * float(A.abs().max())):
            raise ValueError("the matrix is not symmetric")
        w, V = torch.linalg.eigh(A)
        ctx.save_for_backward(V)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        V, = ctx.saved_tensors
        return (V * g.unsqueeze(-2)) @ V.mT


class CappedSimplex(Function):
    """Projection on {0 <= y <= 1, sum y = k} along the last dimension, the shift by bisection."""

    @staticmethod
    def forward(ctx, x, k):
        if not 0 < k < x.size(-1):
            raise ValueError("k must be between 0 and the number of entries")
        lo = x.amin(-1, keepdim=True) - 1
        hi = x.amax(-1, keepdim=True)
        for _ in range(60 if x.dtype == torch.float64 else 30):
            mid = (lo + hi) / 2
            more = (x - mid).clamp(0, 1).sum(-1, keepdim=True) > k
            lo = torch.where(more, mid, lo)
            hi = torch.where(more, hi, mid)
        y = (x - (lo + hi) / 2).clamp(0, 1)
        ctx.save_for_backward((y > 0) & (y < 1))
        return y

    @staticmethod
    def backward(ctx, g):
        free, = ctx.saved_tensors
        g = g * free
        mean = g.sum(-1, keepdim=True) / free.sum(-1, keepdim=True).clamp_min(1)
        return g - mean * free, None


class RidgeLogistic(Function):
    """w* = argmin sum log(1 + exp(-y x.w)) + lam/2 |w|^2 by Newton's method, labels y = +-1 as
    integers.  Gradients for the design matrix and lam by the implicit function theorem."""

    @staticmethod
    def forward(ctx, X, lam, y):
        if y.is_floating_point() or not bool((y.abs() == 1).all()):
            raise ValueError("labels must be integers +1 or -1")
        if float(lam) <= 0:
            raise ValueError("lam must be positive")
        s = y.to(X.dtype)
        w = X.new_zeros(X.size(1))
        eye = torch.eye(X.size(1), dtype=X.dtype, device=X.device)
        for _ in range(50):
            q = torch.sigmoid(-s * (X @ w))
            grad = -X.t() @ (s * q) + lam * w
            H = X.t() @ ((q * (1 - q))[:, None] * X) + lam * eye
            step = torch.linalg.solve(H, grad)
            w = w - step
            if step.abs().max() < 0.1 * torch.finfo(X.dtype).eps ** 0.5:
                break
        else:
            raise RuntimeError("Newton's method has not converged")
        ctx.save_for_backward(X, lam, s, w)
        return w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        X, lam, s, w = ctx.saved_tensors
        q = torch.sigmoid(-s * (X @ w))
        r = q * (1 - q)
        H = X.t() @ (r[:, None] * X) + lam * torch.eye(X.size(1), dtype=X.dtype, device=X.device)
        u = torch.linalg.solve(H, g)
        gX = glam = None
        if ctx.needs_input_grad[0]:
            gX = torch.outer(s * q, u) - torch.outer(r * (X @ u), w)
        if ctx.needs_input_grad[1]:
            glam = -(u @ w).reshape(lam.shape)
        return gX, glam, None


@torch.library.custom_op("tinyimplicit::spd_logdet", mutates_args=())
def spd_logdet(A: torch.Tensor) -> torch.Tensor:
    """log det A of a symmetric positive definite matrix by Cholesky."""
    return 2 * torch.linalg.cholesky(A).diagonal(dim1=-2, dim2=-1).log().sum(-1)


@spd_logdet.register_fake
def _(A):
    return A.new_empty(A.shape[:-2])


def _logdet_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _logdet_backward(ctx, g):
    A, = ctx.saved_tensors
    inv = torch.cholesky_inverse(torch.linalg.cholesky(A))
    return g[..., None, None] * inv


spd_logdet.register_autograd(_logdet_backward, setup_context=_logdet_setup)


CASES = [
    case("spd_solve", SPDSolve, lambda: (_spd(1, 4), randn(4, 2, seed=2)),
         "A must be symmetric; the gradient is the symmetric one although only a triangle is read"),
    case("triangular_solve", TriangularSolve,
         lambda: ((randn(4, 4, seed=3, grad=False).tril() + 3 * torch.eye(4, dtype=torch.float64)).requires_grad_(),
                  randn(4, 2, seed=4), False),
         "the other triangle is never read and gets zero"),
    case("deq_fixed_point", deq, lambda: (randn(3, 4, seed=5), randn(4, 4, seed=6, scale=0.2)),
         "W must be a contraction; an iterative solve, differentiated at the solution"),
    case("kepler_equation", kepler,
         lambda: (rand(5, seed=7, low=0.0, high=6.0), torch.tensor([0.0, 0.1, 0.5, 0.9, 0.3], dtype=torch.float64, requires_grad=True)),
         "the eccentricity must stay in [0, 1) and one entry is on the boundary"),
    case("depressed_cubic_root", DepressedCubicRoot, lambda: (randn(6, seed=8, scale=3.0),),
         "implicit derivative from the saved output, twice differentiable"),
    case("sym_eigenvalues", SymEigvals, lambda: (_spd(9, 4),),
         "an asymmetric argument is refused; symmetric gradient"),
    case("capped_simplex_projection", CappedSimplex, lambda: (randn(3, 6, seed=14), 2),
         "bisection in forward; saturated entries get zero gradient"),
    case("ridge_logistic_argmin", RidgeLogistic,
         lambda: (randn(8, 3, seed=15), torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
                  torch.tensor([1, -1, 1, 1, -1, -1, 1, -1])),
         "labels are +-1 and lam positive"),
    case("spd_logdet_custom_op", spd_logdet, lambda: (_spd(16, 4),),
         "the inverse is the gradient among symmetric matrices"),
]
