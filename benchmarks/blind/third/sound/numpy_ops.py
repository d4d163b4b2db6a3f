"""Functions whose work is done in NumPy."""
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from support import *


def _np(t):
    return t.detach().cpu().numpy()


def _like(a, t):
    return torch.from_numpy(np.ascontiguousarray(a)).to(device=t.device, dtype=t.dtype)


class IsotonicRegression(Function):
    """Non-decreasing least-squares fit by pooling adjacent violators.  In backward every entry of
    a pool gets the mean gradient of the pool."""

    @staticmethod
    def forward(ctx, y):
        v = _np(y).astype(np.float64)
        mean, size = [], []
        for e in v:
            mean.append(e)
            size.append(1)
            while len(mean) > 1 and mean[-2] > mean[-1]:
                n = size[-2] + size[-1]
                mean[-2] = (mean[-2] * size[-2] + mean[-1] * size[-1]) / n
                size[-2] = n
                mean.pop()
                size.pop()
        ctx.sizes = size
        return _like(np.repeat(mean, size), y)

    @staticmethod
    def backward(ctx, g):
        return _PoolMean.apply(g, ctx.sizes)


class _PoolMean(Function):
    """Mean over consecutive pools, repeated; its own adjoint."""

    @staticmethod
    def forward(ctx, g, sizes):
        ctx.sizes = sizes
        n = np.asarray(sizes)
        starts = np.cumsum(n) - n
        return _like(np.repeat(np.add.reduceat(_np(g).astype(np.float64), starts) / n, n), g)

    @staticmethod
    def backward(ctx, gg):
        return _PoolMean.apply(gg, ctx.sizes), None


class AlignmentScore(Function):
    """Global alignment score of a similarity matrix (N, M) with a gap cost.  The gradient marks
    the best path; among equal paths the diagonal is preferred."""

    @staticmethod
    def forward(ctx, sim, gap):
        s, c = _np(sim).astype(np.float64), float(gap)
        n, m = s.shape
        H = np.zeros((n + 1, m + 1))
        H[:, 0] = -c * np.arange(n + 1)
        H[0, :] = -c * np.arange(m + 1)
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                H[i, j] = max(H[i - 1, j - 1] + s[i - 1, j - 1], H[i - 1, j] - c, H[i, j - 1] - c)
        path, gaps, i, j = np.zeros_like(s), 0, n, m
        while i or j:
            if i and j and H[i, j] == H[i - 1, j - 1] + s[i - 1, j - 1]:
                i, j = i - 1, j - 1
                path[i, j] = 1
            elif i and H[i, j] == H[i - 1, j] - c:
                i, gaps = i - 1, gaps + 1
            else:
                j, gaps = j - 1, gaps + 1
        ctx.gaps = gaps
        ctx.save_for_backward(_like(path, sim))
        return _like(H[n, m], sim)

    @staticmethod
    def backward(ctx, g):
        path, = ctx.saved_tensors
        return (g * path if ctx.needs_input_grad[0] else None,
                -g * ctx.gaps if ctx.needs_input_grad[1] else None)


@functools.lru_cache(maxsize=None)
def _spline_matrix(n):
    """Second derivatives of the natural cubic spline on unit knots as a linear map of the values."""
    A = np.eye(n)
    B = np.zeros((n, n))
    for i in range(1, n - 1):
        A[i, i - 1:i + 2] = 1 / 6, 2 / 3, 1 / 6
        B[i, i - 1:i + 2] = 1, -2, 1
    return np.linalg.solve(A, B)


class SplineCurvature(Function):
    """Second derivatives at the knots of the natural spline through the rows of (B, N)."""

    @staticmethod
    def forward(ctx, y):
        if y.size(-1) < 3:
            raise ValueError("a spline needs at least three knots")
        return _like(_np(y) @ _spline_matrix(y.size(-1)).T, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return _like(_np(g) @ _spline_matrix(g.size(-1)), g)


_POOL = ThreadPoolExecutor(max_workers=2)


class ThreadedLegendre(Function):
    """Legendre series with one set of coefficients (K,) at the points x (B, N); rows are given
    to a small thread pool."""

    @staticmethod
    def forward(ctx, x, coef):
        ctx.save_for_backward(x, coef)
        c = _np(coef)
        rows = list(_POOL.map(lambda r: np.polynomial.legendre.legval(r, c), _np(x)))
        return _like(np.stack(rows), x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, coef = ctx.saved_tensors
        xn, gn = _np(x), _np(g)
        gx = gc = None
        if ctx.needs_input_grad[0]:
            d = np.polynomial.legendre.legder(_np(coef))
            rows = list(_POOL.map(lambda r: np.polynomial.legendre.legval(r, d), xn))
            gx = _like(np.stack(rows) * gn, x)
        if ctx.needs_input_grad[1]:
            basis = np.polynomial.legendre.legvander(xn, coef.numel() - 1)
            gc = _like(np.einsum("bn,bnk->k", gn, basis), coef)
        return gx, gc


class TotalVariation32(Function):
    """Sum of |x[i+1] - x[i]| over images (H, W), single precision only.  A flat step has zero
    gradient."""

    @staticmethod
    def forward(ctx, img):
        if img.dtype != torch.float32:
            raise TypeError("total variation is written for float32")
        v = _np(img)
        dy, dx = np.sign(np.diff(v, axis=0)), np.sign(np.diff(v, axis=1))
        ctx.save_for_backward(torch.from_numpy(dy.astype(np.int8)), torch.from_numpy(dx.astype(np.int8)))
        total = np.abs(np.diff(v, axis=0)).sum() + np.abs(np.diff(v, axis=1)).sum()
        return img.new_tensor(float(total))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        dy, dx = (t.numpy().astype(np.float32) for t in ctx.saved_tensors)
        grad = -np.diff(np.pad(dy, ((1, 1), (0, 0))), axis=0) - np.diff(np.pad(dx, ((0, 0), (1, 1))), axis=1)
        return torch.from_numpy(grad).to(g.device) * g


class SpeckleNoise(Function):
    """Multiplies by gamma-distributed speckle of mean one from a NumPy generator, which is seeded
    by the framework's own generator so that seeds and checkpoints hold."""

    @staticmethod
    def forward(ctx, x, looks):
        rng = np.random.default_rng(int(torch.randint(2 ** 31, ())))
        noise = torch.from_numpy(rng.gamma(looks, 1.0 / looks, size=tuple(x.shape))).to(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, g):
        noise, = ctx.saved_tensors
        return g * noise, None


CASES = [
    case("isotonic_regression", IsotonicRegression, lambda: (randn(8, seed=1),),
         "pool sizes are plain integers on ctx; no tensor is saved"),
    case("alignment_score", AlignmentScore,
         lambda: (randn(4, 5, seed=2), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)),
         "maximum over paths, so piecewise linear; zero off the path"),
    case("spline_curvature", SplineCurvature, lambda: (randn(2, 6, seed=3),),
         "linear; the matrix is cached for each size"),
    case("threaded_legendre", ThreadedLegendre,
         lambda: (rand(3, 4, seed=4, low=-1.0, high=1.0), randn(5, seed=5)),
         "a thread pool does the rows, without any state"),
    case("total_variation_float32", TotalVariation32,
         lambda: (torch.tensor([[0., 1., 1., 3.], [2., 2., -1., 0.], [4., 0., 5., 5.]], requires_grad=True),),
         "kinks and flat steps; float32 only by a clear error"),
    case("speckle_noise_numpy", SpeckleNoise, lambda: (randn(3, 4, seed=8), 4.0),
         "NumPy's generator, seeded by the framework's"),
]
