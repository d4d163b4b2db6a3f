"""Implicit layers and iterative solvers."""
import math
import torch
from torch.amp import custom_bwd, custom_fwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, real_floating, same_shape, full_precision


def only_full(name, t):
    if t.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name}: float32 or float64 expected, the iteration would not settle in {t.dtype}")


class KeplerAnomaly(Function):
    """Eccentric anomaly E of E - e sin E = M by Newton steps; 0 <= e < 0.95. Backward by the implicit function theorem."""

    @staticmethod
    def forward(ctx, mean, ecc):
        real_floating("KeplerAnomaly", mean, ecc)
        same_shape("KeplerAnomaly", mean, ecc)
        only_full("KeplerAnomaly", mean)
        if bool(((ecc < -1e-3) | (ecc >= 0.95)).any()):
            raise ValueError("KeplerAnomaly: eccentricities in [0, 0.95) expected")
        x = mean + ecc * mean.sin()
        tol = 8 * torch.finfo(mean.dtype).eps
        for _ in range(100):
            step = (x - ecc * x.sin() - mean) / (1 - ecc * x.cos())
            x = x - step.clamp(-1, 1)
            if bool((step.abs() <= tol * (1 + x.abs())).all()):
                ctx.save_for_backward(x, ecc)
                return x
        raise RuntimeError("KeplerAnomaly: no convergence")

    @staticmethod
    def backward(ctx, grad_out):
        x, ecc = ctx.saved_tensors
        g = grad_out / (1 - ecc * x.cos())
        return g, g * x.sin() if ctx.needs_input_grad[1] else None


class BracketedRoot(Function):
    """Root of sum_k c[:, k] x^k between lo and hi by bisection; f must rise from <= 0 to >= 0 and be simple there.

    The bracket only selects the root and gets no gradient."""

    @staticmethod
    def value(c, x):
        v = torch.zeros_like(x)
        for k in reversed(range(c.shape[1])):
            v = v * x + c[:, k]
        return v

    @staticmethod
    def slope(c, x):
        v = torch.zeros_like(x)
        for k in reversed(range(1, c.shape[1])):
            v = v * x + k * c[:, k]
        return v

    @staticmethod
    def forward(ctx, coef, lo, hi):
        real_floating("BracketedRoot", coef, lo, hi)
        only_full("BracketedRoot", coef)
        if coef.dim() != 2 or lo.shape != coef.shape[:1] or hi.shape != lo.shape:
            raise ValueError("BracketedRoot: coef (N, K), lo (N,), hi (N,) expected")
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            raise ValueError("BracketedRoot: the bracket is no differentiable input")
        low, high = lo.clone(), hi.clone()
        if bool((BracketedRoot.value(coef, low) > 0).any() or (BracketedRoot.value(coef, high) < 0).any()):
            raise ValueError("BracketedRoot: f(lo) <= 0 <= f(hi) expected")
        for _ in range(80):
            mid = (low + high) / 2
            below = BracketedRoot.value(coef, mid) < 0
            low, high = torch.where(below, mid, low), torch.where(below, high, mid)
        x = (low + high) / 2
        if bool((BracketedRoot.slope(coef, x) <= 0).any()):
            raise ValueError("BracketedRoot: the root is not simple")
        ctx.save_for_backward(coef, x)
        return x

    @staticmethod
    def backward(ctx, grad_out):
        coef, x = ctx.saved_tensors
        g = -grad_out / BracketedRoot.slope(coef, x)
        return torch.stack([g * x ** k for k in range(coef.shape[1])], 1), None, None


class ConjugateGradientSolve(Function):
    """x with sym(A) x = b for positive definite A by conjugate gradients; backward solves once more."""

    @staticmethod
    def solve(a, b, tol):
        x, r = torch.zeros_like(b), b
        p, rr = r, (r * r).sum()
        stop = tol * tol * rr
        for _ in range(20 * b.numel() + 20):
            if bool(rr <= stop) or bool(rr == 0):
                return x
            ap = (a * p).sum(1)
            curve = (p * ap).sum()
            if not bool(curve > 0):
                raise ValueError("ConjugateGradientSolve: the matrix is not positive definite")
            x = x + rr / curve * p
            r = r - rr / curve * ap
            new = (r * r).sum()
            p, rr = r + new / rr * p, new
        raise RuntimeError("ConjugateGradientSolve: no convergence")

    @staticmethod
    def forward(ctx, a, b, tol=None):
        real_floating("ConjugateGradientSolve", a, b)
        only_full("ConjugateGradientSolve", a)
        if a.dim() != 2 or b.shape != a.shape[:1] or a.shape[0] != a.shape[1]:
            raise ValueError("ConjugateGradientSolve: a square matrix and a vector expected")
        ctx.tol = tol or 100 * torch.finfo(a.dtype).eps
        x = ConjugateGradientSolve.solve((a + a.t()) / 2, b, ctx.tol)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        a, x = ctx.saved_tensors
        gb = ConjugateGradientSolve.solve((a + a.t()) / 2, grad_out, ctx.tol)
        ga = None
        if ctx.needs_input_grad[0]:
            ga = -(gb[:, None] * x + x[:, None] * gb) / 2
        return ga, gb if ctx.needs_input_grad[1] else None, None


class MatrixSquareRoot(Function):
    """Square root of a symmetric positive definite matrix; backward solves the Lyapunov equation in the eigenbasis."""

    @staticmethod
    @custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a):
        real_floating("MatrixSquareRoot", a)
        if a.dim() < 2 or a.shape[-1] != a.shape[-2] or not torch.allclose(a, a.mT, rtol=1e-4, atol=1e-4):
            raise ValueError("MatrixSquareRoot: symmetric matrices expected")
        values, vectors = torch.linalg.eigh((a + a.mT) / 2)
        if bool((values <= 0).any()):
            raise ValueError("MatrixSquareRoot: the matrix is not positive definite")
        root = values.sqrt()
        ctx.save_for_backward(root, vectors)
        return (vectors * root[..., None, :]) @ vectors.mT

    @staticmethod
    @once_differentiable
    @custom_bwd(device_type="cpu")
    def backward(ctx, grad_out):
        root, v = ctx.saved_tensors
        inner = v.mT @ ((grad_out + grad_out.mT) / 2) @ v
        return v @ (inner / (root[..., :, None] + root[..., None, :])) @ v.mT


class EquilibriumTanh(Function):
    """Fixed point z = tanh(W z + u) for rows u (N, D); max row sum of |W| below 1 makes it a contraction."""

    @staticmethod
    def forward(ctx, weight, u):
        real_floating("EquilibriumTanh", weight, u)
        only_full("EquilibriumTanh", u)
        if u.dim() != 2 or weight.shape != (u.shape[1], u.shape[1]):
            raise ValueError("EquilibriumTanh: weight (D, D) and u (N, D) expected")
        if weight.numel() and float(weight.abs().sum(1).max()) >= 0.99:
            raise ValueError("EquilibriumTanh: row sums of |weight| must stay below 0.99")
        with full_precision(u):
            z, tol = torch.tanh(u), 4 * torch.finfo(u.dtype).eps
            for _ in range(6000):
                new = torch.tanh(z @ weight.t() + u)
                done = bool(((new - z).abs() <= tol).all())
                z = new
                if done:
                    break
            else:
                raise RuntimeError("EquilibriumTanh: no convergence")
        ctx.save_for_backward(weight, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        weight, z = ctx.saved_tensors
        with full_precision(z):
            slope = 1 - z.square()
            eye = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
            system = eye - weight.t() * slope[:, None, :]
            gz = torch.linalg.solve(system, grad_out[..., None])[..., 0]
            gu = gz * slope
            gw = gu.t() @ z if ctx.needs_input_grad[0] else None
        return gw, gu if ctx.needs_input_grad[1] else None


class Entmax15(Function):
    """1.5-entmax along dim by bisection on the threshold (Peters et al. 2019), closed-form backward."""

    @staticmethod
    def forward(ctx, scores, dim=-1):
        real_floating("Entmax15", scores)
        only_full("Entmax15", scores)
        if scores.dim() == 0 or scores.shape[dim] == 0:
            raise ValueError("Entmax15: a non-empty axis expected")
        z = scores / 2
        top = z.amax(dim, keepdim=True)
        low, high = top - 1, top - scores.shape[dim] ** -0.5
        for _ in range(60):
            mid = (low + high) / 2
            big = (z - mid).clamp_min(0).square().sum(dim, keepdim=True) >= 1
            low, high = torch.where(big, mid, low), torch.where(big, high, mid)
        root = (z - (low + high) / 2).clamp_min(0)
        out = root.square() / root.square().sum(dim, keepdim=True)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        s = ctx.saved_tensors[0].sqrt()
        mean = (grad_out * s).sum(ctx.dim, keepdim=True) / s.sum(ctx.dim, keepdim=True)
        return s * (grad_out - mean), None


class RungeKuttaTanh(Function):
    """dx/dt = tanh(x W^T) over `steps` RK4 steps; only the states at the steps are kept, each is replayed in backward."""

    @staticmethod
    def step(x, w, h):
        def f(y):
            return torch.tanh(y @ w.t())
        a = f(x)
        b = f(x + h / 2 * a)
        c = f(x + h / 2 * b)
        return x + h / 6 * (a + 2 * b + 2 * c + f(x + h * c))

    @staticmethod
    def forward(ctx, x, w, span=1.0, steps=4):
        real_floating("RungeKuttaTanh", x, w)
        if x.dim() != 2 or w.shape != (x.shape[1], x.shape[1]) or steps < 1:
            raise ValueError("RungeKuttaTanh: x (N, D), w (D, D) and at least one step expected")
        ctx.h = span / steps
        states = [x]
        with full_precision(x):
            for _ in range(steps):
                states.append(RungeKuttaTanh.step(states[-1], w, ctx.h))
        ctx.save_for_backward(w, *states[:-1])
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_out):
        w, *states = ctx.saved_tensors
        gw, g = torch.zeros_like(w), grad_out
        with torch.enable_grad(), full_precision(grad_out):
            for x in reversed(states):
                x, wl = x.detach().requires_grad_(), w.detach().requires_grad_()
                g, part = torch.autograd.grad(RungeKuttaTanh.step(x, wl, ctx.h), (x, wl), g)
                gw = gw + part
        return g, gw, None, None


def spd(n, seed=0):
    m = rand(n, n, seed=seed, grad=False)
    return (m @ m.t() + torch.eye(n, dtype=m.dtype)).requires_grad_()


def rising_cubics():
    c = torch.tensor([[-1.0, 1.0, 0.0, 0.5], [0.3, 2.0, 0.1, 1.0]], dtype=torch.float64, requires_grad=True)
    return c, torch.full((2,), -2.0, dtype=torch.float64), torch.full((2,), 2.0, dtype=torch.float64)


def contraction(n, seed=0):
    w = rand(n, n, seed=seed, grad=False)
    return (0.6 * w / w.abs().sum(1, keepdim=True)).requires_grad_()


CASES = [
    case("kepler_anomaly", KeplerAnomaly, lambda: (rand(5, scale=2), uniform(5, low=0.05, high=0.8)), "Newton's method with a tolerance and a limited eccentricity.",
         more=[lambda: (rand(0), uniform(0))], refuses=[lambda: (rand(1), torch.ones(1, dtype=torch.float64))]),
    case("bracketed_root", BracketedRoot, rising_cubics, "Bisection between the ends of a bracket that must hold a simple root."),
    case("conjugate_gradient_solve", ConjugateGradientSolve, lambda: (spd(4), rand(4, seed=1)), "Positive definite system; the matrix acts through its symmetric part.", second="refused",
         more=[lambda: (spd(1), rand(1)), lambda: (spd(0), rand(0))], refuses=[lambda: (-spd(2), rand(2))]),
    case("matrix_square_root", MatrixSquareRoot, lambda: (spd(3),), "Symmetric positive definite input, anything else is refused.", second="refused", refuses=[lambda: (rand(3, 3),)]),
    case("equilibrium_tanh", EquilibriumTanh, lambda: (contraction(3), rand(2, 3, seed=1)), "Deep equilibrium layer with a checked contraction.", second="refused",
         more=[lambda: (contraction(1), rand(1, 1))]),
    case("entmax15", Entmax15, lambda: (rand(3, 5, scale=2),), "Threshold by bisection, sparse output.", second="refused", more=[lambda: (rand(4, 2), 0), lambda: (rand(2, 1),)]),
    case("runge_kutta_tanh", RungeKuttaTanh, lambda: (rand(2, 3), rand(3, 3, seed=1), 0.8, 3), "Discrete adjoint: states kept per step, inner stages replayed.", second="refused", more=[lambda: (rand(1, 1), rand(1, 1), -0.5, 1)], loose16=True),
]
