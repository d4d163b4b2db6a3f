"""Assorted patterns: splines, permutations, forward mode, integrators, in-place updates, checkpointing."""
import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class LinearSpline(Function):
    """Piecewise linear interpolation of (knots, values) at x.

    ``knots`` must be strictly increasing and ``x`` inside their range.
    Differentiable in knots, values and x.
    """

    @staticmethod
    def _locate(knots, x):
        cell = torch.searchsorted(knots.detach().contiguous(), x.detach().contiguous(), right=True) - 1
        return cell.clamp(0, knots.numel() - 2)

    @staticmethod
    def forward(ctx, knots, values, x):
        if knots.dim() != 1 or knots.shape != values.shape:
            raise ValueError("knots and values must be vectors of the same length")
        if bool((knots[1:] <= knots[:-1]).any()):
            raise ValueError("knots must be strictly increasing")
        if bool((x < knots[0]).any()) or bool((x > knots[-1]).any()):
            raise ValueError("x must lie in the range of the knots")
        ctx.save_for_backward(knots, values, x)
        i = LinearSpline._locate(knots, x)
        w = (x - knots[i]) / (knots[i + 1] - knots[i])
        return (1 - w) * values[i] + w * values[i + 1]

    @staticmethod
    def backward(ctx, grad_output):
        knots, values, x = ctx.saved_tensors
        i = LinearSpline._locate(knots, x)
        step = knots[i + 1] - knots[i]
        w = (x - knots[i]) / step
        slope = (values[i + 1] - values[i]) / step
        lo, hi = i.reshape(-1), i.reshape(-1) + 1
        grad_knots = grad_values = grad_x = None
        along = grad_output * slope
        if ctx.needs_input_grad[0]:
            zeros = torch.zeros_like(knots)
            grad_knots = zeros.index_add(0, lo, (-along * (1 - w)).reshape(-1)).index_add(0, hi, (-along * w).reshape(-1))
        if ctx.needs_input_grad[1]:
            zeros = torch.zeros_like(values)
            grad_values = zeros.index_add(0, lo, (grad_output * (1 - w)).reshape(-1)).index_add(
                0, hi, (grad_output * w).reshape(-1))
        if ctx.needs_input_grad[2]:
            grad_x = along
        return grad_knots, grad_values, grad_x


class PermuteFeatures(Function):
    """Reorder the last dimension by ``perm``; ``inverse`` must be its inverse permutation.

    Passing both avoids an argsort per call (flow layers keep them as buffers).
    """

    @staticmethod
    def forward(ctx, x, perm, inverse):
        n = x.shape[-1]
        if perm.shape != (n,) or not torch.equal(perm[inverse], torch.arange(n, device=perm.device)):
            raise ValueError("inverse must be the inverse permutation of perm")
        ctx.save_for_backward(perm, inverse)
        return x.index_select(-1, perm)

    @staticmethod
    def backward(ctx, grad_output):
        perm, inverse = ctx.saved_tensors
        return PermuteFeatures.apply(grad_output, inverse, perm), None, None


class SoftplusBeta(Function):
    """log(1 + exp(beta x)) / beta, with reverse mode, forward mode and vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, beta):
        if beta <= 0:
            raise ValueError("beta must be positive")
        return torch.logaddexp(beta * x, torch.zeros_like(x)) / beta

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, beta = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        ctx.beta = beta

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * torch.sigmoid(ctx.beta * x), None

    @staticmethod
    def jvp(ctx, x_t, beta_t):
        (x,) = ctx.saved_tensors
        return x_t * torch.sigmoid(ctx.beta * x)


class PendulumLeapfrog(Function):
    """Integrate q'' = -k sin(q) by leapfrog; the backward runs the integrator in reverse.

    Only the final state is kept: leapfrog is time reversible, so earlier states
    are reconstructed. ``k`` is a 0-dim tensor.
    """

    @staticmethod
    def forward(ctx, q, p, k, dt, steps):
        if q.shape != p.shape or k.dim() != 0:
            raise ValueError("q and p must match and k must be 0-dim")
        for _ in range(steps):
            p = p - 0.5 * dt * k * torch.sin(q)
            q = q + dt * p
            p = p - 0.5 * dt * k * torch.sin(q)
        if steps == 0:
            q, p = q.clone(), p.clone()
        ctx.save_for_backward(q, p, k)
        ctx.dt, ctx.steps = dt, steps
        return q, p

    @staticmethod
    @once_differentiable
    def backward(ctx, gq, gp):
        q, p, k = ctx.saved_tensors
        dt = ctx.dt
        gk = torch.zeros_like(k)
        for _ in range(ctx.steps):
            # undo and differentiate the second half kick
            s, c = torch.sin(q), torch.cos(q)
            p = p + 0.5 * dt * k * s
            gk = gk - (gp * s).sum() * 0.5 * dt
            gq = gq - gp * 0.5 * dt * k * c
            # the drift
            q = q - dt * p
            gp = gp + dt * gq
            # the first half kick
            s, c = torch.sin(q), torch.cos(q)
            p = p + 0.5 * dt * k * s
            gk = gk - (gp * s).sum() * 0.5 * dt
            gq = gq - gp * 0.5 * dt * k * c
        return gq, gp, gk if ctx.needs_input_grad[2] else None, None, None


class InplaceAxpy(Function):
    """y += alpha * x, overwriting y; alpha is a learned 0-dim tensor."""

    @staticmethod
    def forward(ctx, y, x, alpha):
        if y.shape != x.shape or alpha.dim() != 0:
            raise ValueError("y and x must match and alpha must be 0-dim")
        ctx.save_for_backward(x, alpha)
        ctx.mark_dirty(y)
        return y.add_(x * alpha)

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        grad_y = grad_output if ctx.needs_input_grad[0] else None
        grad_x = grad_output * alpha if ctx.needs_input_grad[1] else None
        grad_alpha = (grad_output * x).sum() if ctx.needs_input_grad[2] else None
        return grad_y, grad_x, grad_alpha


def rezero_residual(branch_in, branch_out, alpha):
    """ReZero residual in + alpha * out, accumulated into a fresh copy of the stream."""
    return InplaceAxpy.apply(branch_in.clone(), branch_out, alpha)


class RidgeSolve(Function):
    """w = argmin |X w - y|^2 + lam |w|^2, as a differentiable head (R2-D2 meta-learning).

    X: (n, d), y: (n, k), lam: 0-dim positive.
    """

    @staticmethod
    def _normal(x, lam):
        return x.mT @ x + lam * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)

    @staticmethod
    def forward(ctx, x, y, lam):
        if x.dim() != 2 or y.dim() != 2 or x.shape[0] != y.shape[0]:
            raise ValueError("X must be (n, d) and y (n, k)")
        if float(lam) <= 0:
            raise ValueError("lam must be positive")
        w = torch.linalg.solve(RidgeSolve._normal(x, lam), x.mT @ y)
        ctx.save_for_backward(x, y, lam, w)
        return w

    @staticmethod
    def backward(ctx, grad_output):
        x, y, lam, w = ctx.saved_tensors
        u = torch.linalg.solve(RidgeSolve._normal(x, lam), grad_output)
        xu = x @ u
        grad_x = (y - x @ w) @ u.mT - xu @ w.mT if ctx.needs_input_grad[0] else None
        grad_y = xu if ctx.needs_input_grad[1] else None
        grad_lam = -(u * w).sum() if ctx.needs_input_grad[2] else None
        return grad_x, grad_y, grad_lam


class CumulativeMax(Function):
    """Running maximum along the last dimension, with the positions it came from."""

    @staticmethod
    def forward(ctx, x):
        values, positions = torch.cummax(x, dim=-1)
        ctx.mark_non_differentiable(positions)
        ctx.save_for_backward(positions)
        return values, positions

    @staticmethod
    def backward(ctx, grad_values, _grad_positions):
        (positions,) = ctx.saved_tensors
        return torch.zeros_like(grad_values).scatter_add(-1, positions, grad_values)


class CheckpointFunction(Function):
    """Run ``fn(*tensors)`` without storing its graph, replaying it (and its random numbers) later."""

    @staticmethod
    def forward(ctx, fn, *tensors):
        ctx.fn = fn
        ctx.rng_state = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return fn(*tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        needed = ctx.needs_input_grad[1:]
        leaves = [t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, needed)]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            out = ctx.fn(*leaves)
        grads = iter(torch.autograd.grad(out, [t for t in leaves if t.requires_grad], grad_output, allow_unused=True))
        return (None, *(next(grads) if need else None for need in needed))


def _dropout_mlp(x, w1, w2):
    hidden = torch.nn.functional.dropout(torch.tanh(x @ w1), p=0.3, training=True)
    return hidden @ w2


def checkpointed_mlp(x, w1, w2):
    return CheckpointFunction.apply(_dropout_mlp, x, w1, w2)


class PoincareDistance(Function):
    """Hyperbolic distance between rows of u and v, all of norm below one and pairwise distinct."""

    @staticmethod
    def _parts(u, v):
        a, b = 1 - u.pow(2).sum(-1), 1 - v.pow(2).sum(-1)
        sq = (u - v).pow(2).sum(-1)
        return a, b, sq, 1 + 2 * sq / (a * b)

    @staticmethod
    def forward(ctx, u, v):
        if bool((u.norm(dim=-1) >= 1).any()) or bool((v.norm(dim=-1) >= 1).any()):
            raise ValueError("points must lie inside the unit ball")
        ctx.save_for_backward(u, v)
        return torch.acosh(PoincareDistance._parts(u, v)[3])

    @staticmethod
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        a, b, sq, gamma = PoincareDistance._parts(u, v)
        outer = (grad_output * 4 / (a * b * torch.sqrt(gamma * gamma - 1))).unsqueeze(-1)
        diff = u - v
        grad_u = outer * (diff + (sq / a).unsqueeze(-1) * u) if ctx.needs_input_grad[0] else None
        grad_v = outer * (-diff + (sq / b).unsqueeze(-1) * v) if ctx.needs_input_grad[1] else None
        return grad_u, grad_v


def _ranks(scores):
    """Descending ranks 1..n of the last dimension."""
    return scores.argsort(-1, descending=True).argsort(-1).to(scores.dtype) + 1


class BlackboxRank(Function):
    """Ranks with the blackbox-differentiation gradient (Rolinek et al., 2020).

    The gradient is that of the piecewise-linear interpolation of the ranking:
    ``-(rank(scores) - rank(scores + lam * grad)) / lam``.
    """

    @staticmethod
    def forward(ctx, scores, lam):
        if lam <= 0:
            raise ValueError("lam must be positive")
        ranks = _ranks(scores)
        ctx.save_for_backward(scores, ranks)
        ctx.lam = lam
        return ranks

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        scores, ranks = ctx.saved_tensors
        shifted = _ranks(scores + ctx.lam * grad_output)
        return -(ranks - shifted) / ctx.lam, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


def _perm_inputs():
    perm = torch.tensor([3, 0, 4, 1, 2])
    return _randn(3, 5).requires_grad_(), perm, torch.argsort(perm)


CASES = [
    dict(name="linear_spline", target=LinearSpline,
         inputs=lambda: (torch.tensor([0.0, 0.7, 1.5, 2.1, 3.0], dtype=torch.float64).requires_grad_(), _randn(5).requires_grad_(),
                         torch.tensor([[0.2, 0.9, 1.1], [1.7, 2.5, 2.9]], dtype=torch.float64).requires_grad_()),
         declares={}, note="sorted knots; gradients in knots, values and x; double backward right"),
    dict(name="permute_features", target=PermuteFeatures, inputs=_perm_inputs,
         declares={}, note="permutation with its inverse passed and checked"),
    dict(name="softplus_beta", target=SoftplusBeta, inputs=lambda: (_randn(4, 5).requires_grad_(), 2.0),
         declares={}, note="jvp, setup_context and generate_vmap_rule"),
    dict(name="pendulum_leapfrog", target=PendulumLeapfrog,
         inputs=lambda: (_randn(4).requires_grad_(), _randn(4, seed=1).requires_grad_(), torch.tensor(1.3, dtype=torch.float64, requires_grad=True), 0.1, 8),
         declares={}, note="reverse-time reconstruction; once_differentiable; two outputs"),
    dict(name="inplace_axpy", target=rezero_residual,
         inputs=lambda: (_randn(3, 4).requires_grad_(), _randn(3, 4, seed=1).requires_grad_(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)),
         declares={}, note="mark_dirty on a fresh copy, the caller's tensor untouched; double backward right"),
    dict(name="ridge_solve", target=RidgeSolve,
         inputs=lambda: (_randn(6, 3).requires_grad_(), _randn(6, 2, seed=1).requires_grad_(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)),
         declares={}, note="implicit gradient of the normal equations; saves inputs and output; double backward right"),
    dict(name="cumulative_max", target=CumulativeMax, inputs=lambda: (_randn(3, 6).requires_grad_(),),
         declares={}, note="positions non-differentiable; scatter_add backward"),
    dict(name="checkpointed_mlp", target=checkpointed_mlp,
         inputs=lambda: (_randn(4, 3).requires_grad_(), _randn(3, 5, seed=1).requires_grad_(), _randn(5, 2, seed=2).requires_grad_()),
         declares={}, note="RNG state replayed under fork_rng; once_differentiable"),
    dict(name="poincare_distance", target=PoincareDistance,
         inputs=lambda: ((0.5 * torch.tanh(_randn(5, 2))).requires_grad_(), (0.5 * torch.tanh(_randn(5, 2, seed=1))).requires_grad_()),
         declares={}, note="points inside the unit ball; differentiable backward"),
    dict(name="blackbox_rank", target=BlackboxRank, inputs=lambda: (_randn(4, 6).requires_grad_(), 2.0),
         declares={"surrogate": "scores"}, note="blackbox-differentiation interpolation gradient, deliberate; once_differentiable"),
]
