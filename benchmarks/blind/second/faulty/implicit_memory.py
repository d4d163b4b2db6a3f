"""Implicit layers, solvers, invertible blocks and checkpoint-like wrappers."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class TanhFixedPoint(Function):
    """Equilibrium z = tanh(W z + x), differentiated implicitly."""

    @staticmethod
    def forward(ctx, w, x):
        z = torch.zeros_like(x)
        for _ in range(300):
            z = torch.tanh(w @ z + x)
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, z = ctx.saved_tensors
        d = 1 - z * z
        jac = d[:, None] * w
        eye = torch.eye(z.numel(), dtype=z.dtype, device=z.device)
        adj = torch.linalg.solve(eye - jac, g)
        gx = d * adj
        return torch.outer(gx, z), gx


class LinearSolve(Function):
    """x = A^{-1} b for one right-hand side."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        gb = torch.linalg.solve(a.t(), g)
        ga = -torch.outer(x, gb) if ctx.needs_input_grad[0] else None
        return ga, gb


class CubicRoot(Function):
    """The real root of x^3 + a x = b (a > 0) by Newton's method."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.zeros_like(b)
        for _ in range(60):
            x = x - (x ** 3 + a * x - b) / (3 * x * x + a)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, g):
        a, x = ctx.saved_tensors
        gb = g / (3 * x * x + a)
        return gb * x, gb


class AdditiveCoupling(Function):
    """Reversible pair y1 = x1 + f(x2), y2 = x2 + h(y1), f and h given as linear-tanh weights.

    Only the outputs are kept; the inputs are recovered in backward.
    """

    @staticmethod
    def forward(ctx, x1, x2, wf, wh):
        y1 = x1 + torch.tanh(x2 @ wf)
        y2 = x2 + torch.tanh(y1 @ wh)
        ctx.save_for_backward(y1, y2, wf, wh)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, g1, g2):
        y1, y2, wf, wh = ctx.saved_tensors
        th = torch.tanh(y1 @ wh)
        dh = g2 * (1 - th * th)
        gwh = y1.t() @ dh
        g1 = g1 + dh @ wh.t()
        x2 = y2 - th
        tf = torch.tanh(x2 @ wf)
        df = g1 * (1 - tf * tf)
        gwf = y2.t() @ df
        return g1, g2 + df @ wf.t(), gwf, gwh


class EulerAdjoint(Function):
    """Explicit Euler for dz/dt = tanh(W z), differentiated by the discrete adjoint."""

    @staticmethod
    def forward(ctx, z0, w, steps, dt):
        zs = [z0]
        for _ in range(steps):
            zs.append(zs[-1] + dt * torch.tanh(zs[-1] @ w))
        ctx.save_for_backward(torch.stack(zs), w)
        ctx.dt = dt
        return zs[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        zs, w = ctx.saved_tensors
        gw = torch.zeros_like(w)
        for z in zs[:-1].flip(0):
            s = 1 - torch.tanh(z @ w) ** 2
            g = g + ctx.dt * (g * s) @ w.t()
            gw += ctx.dt * z.t() @ (g * s)
        return g, gw, None, None


class SymmetricEig(Function):
    """Eigenvalues and eigenvectors of a symmetric matrix."""

    @staticmethod
    def forward(ctx, a):
        vals, vecs = torch.linalg.eigh((a + a.t()) / 2)
        ctx.save_for_backward(vals, vecs)
        return vals, vecs

    @staticmethod
    def backward(ctx, g_vals, g_vecs):
        vals, vecs = ctx.saved_tensors
        gap = vals[None, :] - vals[:, None]
        eye = torch.eye(len(vals), dtype=torch.bool, device=vals.device)
        f = 1 / gap.masked_fill(eye, float("inf"))
        inner = torch.diag(g_vals) + f * (vecs.t() @ g_vecs)
        ga = vecs @ inner @ vecs.t()
        return (ga + ga.t()) / 2


class Recompute(Function):
    """Runs `fn` without a graph and runs it again in backward (activation checkpointing)."""

    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn = fn
        ctx.save_for_backward(*args)
        ctx.rng_state = torch.get_rng_state()
        with torch.no_grad():
            return fn(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        args = [a.detach().requires_grad_(a.requires_grad) for a in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            torch.set_rng_state(ctx.rng_state)
            out = ctx.fn(*args)
        wanted = [a for a in args if a.requires_grad]
        got = iter(torch.autograd.grad(out, wanted, g, allow_unused=True))
        return (None, *(next(got) if a.requires_grad else None for a in args))


class InnerGraphBlock(Function):
    """Tanh MLP block whose inner graph is built in forward and walked in backward."""

    @staticmethod
    def forward(ctx, x, w1, w2):
        with torch.enable_grad():
            inner = [t.detach().requires_grad_() for t in (x, w1, w2)]
            out = torch.tanh(inner[0] @ inner[1]) @ inner[2]
        ctx.inner, ctx.out = inner, out
        return out.detach().clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.autograd.grad(ctx.out, ctx.inner, g, retain_graph=True)


def recompute_block(x, w):
    return Recompute.apply(lambda a, b: torch.relu(a @ b) * 3.0, x, w)


def autocast_differs():
    """The recomputation runs in float32 and so has other ReLU signs than the bf16 forward."""
    x = ten([[1.0, -1.0]], F32)
    w = ten([[1.0009765625], [1.0]], F32)
    res = []
    for fn in (recompute_block, lambda a, b: torch.relu(a @ b) * 3.0):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = fn(x, w)
        res.append(torch.autograd.grad(y.float().sum(), x)[0])
    return bool((y == 0).all()) and bool((res[1] == 0).all()) and bool((res[0] != 0).any())


def inner_graph_stays():
    x, w1, w2 = rnd(3, 4, seed=1), rnd(4, 4, seed=2), rnd(4, 2, seed=3)
    out = InnerGraphBlock.apply(x, w1, w2)
    ctx = out.grad_fn
    out.sum().backward()
    # a freed graph would refuse to be walked again
    again = torch.autograd.grad(ctx.out, ctx.inner, torch.ones_like(out))
    return len(again) == 3


def repeated_eigenvalues():
    a = torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=F64)).requires_grad_()
    vals, _ = SymmetricEig.apply(a)
    (g,) = torch.autograd.grad(vals.sum(), a)
    (true,) = torch.autograd.grad(torch.linalg.eigvalsh(a).sum(), a)
    return not torch.isfinite(g).all().item() and torch.isfinite(true).all().item()


def well_gapped():
    a = rnd(3, 3, seed=9, grad=False)
    return ((a + a.t()) / 2 + torch.diag(torch.tensor([0., 3., 7.], dtype=F64))).requires_grad_()


CASES = [
    case("implicit_tanh_fixed_point", TanhFixedPoint, lambda: (rnd(3, 3, seed=1, scale=.25), rnd(3, seed=2)),
         "The adjoint equation is solved with the Jacobian and not with its transpose."),
    case("implicit_linear_solve_outer", LinearSolve, lambda: (rnd(3, 3, seed=3, dtype=F32) , rnd(3, seed=4, dtype=F32)),
         "The outer product of the matrix gradient is transposed."),
    case("implicit_cubic_root_sign", CubicRoot, lambda: (uni(4, seed=5, lo=.5, hi=2.), rnd(4, seed=6)),
         "The gradient of the coefficient lacks the minus sign of the implicit function theorem."),
    case("memory_additive_coupling_inputs", AdditiveCoupling,
         lambda: (rnd(3, 2, seed=7), rnd(3, 2, seed=8), rnd(2, 2, seed=9), rnd(2, 2, seed=10)),
         "The weight gradient of the first branch uses the second output in place of the recovered second input."),
    case("implicit_euler_adjoint_order", EulerAdjoint, lambda: (rnd(2, 3, seed=11), rnd(3, 3, seed=12), 4, 0.2),
         "The adjoint state is updated before it is used for the weight gradient of the same step."),
    case("implicit_symmetric_eig_repeated", SymmetricEig, lambda: (well_gapped(),),
         "Repeated eigenvalues give NaN even where only the eigenvalues enter the loss.", visible=False,
         evidence=repeated_eigenvalues, where="repeated eigenvalues"),
    case("memory_recompute_autocast", recompute_block, lambda: (rnd(2, 3, seed=13, dtype=F32), rnd(3, 2, seed=14, dtype=F32)),
         "The recomputation switches autocast off, so under autocast it differs from the forward it stands for.",
         kind="fragile", visible=False, evidence=autocast_differs),
    case("memory_block_retains_graph", InnerGraphBlock, lambda: (rnd(3, 4, seed=15), rnd(4, 4, seed=16), rnd(4, 2, seed=17)),
         "The inner graph is walked with retain_graph=True although it is used once, so its buffers stay as long as the output.",
         kind="wasteful", visible=False, evidence=inner_graph_stays),
]
