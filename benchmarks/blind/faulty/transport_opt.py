"""Optimal transport, optimisation layers, implicit differentiation and matrix functions."""
import math
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SinkhornDistance(Function):
    """Transport cost <P, C> of the entropic plan between uniform marginals."""

    @staticmethod
    def _plan(cost, eps, iters):
        n, m = cost.shape
        log_a, log_b = -math.log(n), -math.log(m)
        f, g = cost.new_zeros(n), cost.new_zeros(m)
        for _ in range(iters):
            f = eps * (log_a - torch.logsumexp((g.unsqueeze(0) - cost) / eps, 1))
            g = eps * (log_b - torch.logsumexp((f.unsqueeze(1) - cost) / eps, 0))
        return ((f.unsqueeze(1) + g.unsqueeze(0) - cost) / eps).exp()

    @staticmethod
    def forward(ctx, cost, eps=0.3, iters=100):
        plan = SinkhornDistance._plan(cost, eps, iters)
        ctx.save_for_backward(plan)
        return (plan * cost).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        plan, = ctx.saved_tensors
        return grad_output * plan, None, None


class ImplicitSolve(Function):
    """x = A^-1 b for a batch of right-hand sides (n, k), differentiated implicitly."""

    @staticmethod
    def forward(ctx, A, b):
        if A.size(-1) != A.size(-2):
            raise ValueError("A must be square")
        x = torch.linalg.solve(A, b)
        ctx.save_for_backward(A, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        A, x = ctx.saved_tensors
        grad_b = torch.linalg.solve(A, grad_output)
        grad_a = -grad_b @ x.t()
        return grad_a, grad_b


class SimplexProjection(Function):
    """Euclidean projection of each row on the probability simplex of radius `z`."""

    @staticmethod
    def forward(ctx, v, z=1.0):
        u, _ = v.sort(dim=1, descending=True)
        css = u.cumsum(1) - z
        ind = torch.arange(1, v.size(1) + 1, dtype=v.dtype)
        rho = (u - css / ind > 0).sum(1, keepdim=True)
        theta = css.gather(1, rho - 1) / rho.to(v.dtype)
        w = (v - theta).clamp_min(0)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx, grad_output):
        w, = ctx.saved_tensors
        support = (w > 0).to(w.dtype)
        g = grad_output * support
        return support * (g - g.mean(1, keepdim=True)), None


class DEQTanh(Function):
    """Fixed point z = tanh(z W^T + x) by iteration; implicit gradient by a linear solve."""

    @staticmethod
    def forward(ctx, x, W, iters=200):
        z = torch.zeros_like(x)
        for _ in range(iters):
            z = torch.tanh(z @ W.t() + x)
        ctx.save_for_backward(z, W)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        z, W = ctx.saved_tensors
        d = 1 - z * z
        eye = torch.eye(z.size(1), dtype=z.dtype)
        jac = d.unsqueeze(-1) * W
        u = torch.linalg.solve(eye - jac, grad_output.unsqueeze(-1)).squeeze(-1)
        grad_x = u * d
        return grad_x, grad_x.t() @ z, None


class LogDetFn(Function):
    """log|det A| of a batch of square matrices."""

    @staticmethod
    def forward(ctx, A):
        ctx.save_for_backward(A)
        return torch.linalg.slogdet(A)[1]

    @staticmethod
    def backward(ctx, grad_output):
        A, = ctx.saved_tensors
        return grad_output[..., None, None] * torch.linalg.inv(A)


class SymEig(Function):
    """Eigenvalues and eigenvectors of a symmetric matrix with the textbook adjoint."""

    @staticmethod
    def forward(ctx, A):
        lam, V = torch.linalg.eigh(0.5 * (A + A.t()))
        ctx.save_for_backward(lam, V)
        return lam, V

    @staticmethod
    def backward(ctx, grad_lam, grad_V):
        lam, V = ctx.saved_tensors
        diff = lam.unsqueeze(0) - lam.unsqueeze(1)
        inv = 1.0 / (diff + torch.eye(lam.numel(), dtype=lam.dtype))
        inv = inv - torch.eye(lam.numel(), dtype=lam.dtype)
        inner = torch.diag(grad_lam) + inv * (V.t() @ grad_V)
        g = V @ inner @ V.t()
        return 0.5 * (g + g.t())


class EqualityQP(Function):
    """argmin 1/2 x^T Q x + q^T x subject to A x = b, by its KKT system (OptNet style)."""

    @staticmethod
    def _kkt(Q, A):
        m = A.size(0)
        return torch.cat([torch.cat([Q, A.t()], 1), torch.cat([A, A.new_zeros(m, m)], 1)], 0)

    @staticmethod
    def forward(ctx, Q, q, A, b):
        sol = torch.linalg.solve(EqualityQP._kkt(Q, A), torch.cat([-q, b]))
        x, nu = sol[:q.numel()], sol[q.numel():]
        ctx.save_for_backward(Q, A, x, nu)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        Q, A, x, nu = ctx.saved_tensors
        rhs = torch.cat([grad_output, grad_output.new_zeros(nu.numel())])
        d = torch.linalg.solve(EqualityQP._kkt(Q, A).t(), rhs)
        dx, dnu = d[:x.numel()], d[x.numel():]
        grad_Q = -torch.outer(dx, x)
        grad_A = -(torch.outer(nu, dx) + torch.outer(dnu, x))
        return grad_Q, -dx, grad_A, -dnu


_PERM_BUFFERS = {}


def _perm_buffers(n):
    """Two index buffers for samples of size n, allocated once."""
    if n not in _PERM_BUFFERS:
        _PERM_BUFFERS[n] = (torch.empty(n, dtype=torch.long), torch.empty(n, dtype=torch.long))
    return _PERM_BUFFERS[n]


class Wasserstein1D(Function):
    """Mean |sort(x) - sort(y)|^p of two samples of one size, for p = 1 or 2."""

    @staticmethod
    def forward(ctx, x, y, p=2):
        if p not in (1, 2):
            raise ValueError("p must be 1 or 2")
        ctx.perms = _perm_buffers(x.numel())
        torch.argsort(x, stable=True, out=ctx.perms[0])
        torch.argsort(y, stable=True, out=ctx.perms[1])
        ctx.save_for_backward(x, y)
        ctx.p = p
        return (x[ctx.perms[0]] - y[ctx.perms[1]]).abs().pow(p).mean()

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        xi, yi = ctx.perms
        d = x[xi] - y[yi]
        g = grad_output * (d.sign() if ctx.p == 1 else 2 * d) / d.numel()
        return torch.zeros_like(x).index_put((xi,), g), torch.zeros_like(y).index_put((yi,), -g), None


class MatrixSqrtLyapunov(Function):
    """Principal square root of a symmetric positive definite matrix (covariance pooling)."""

    @staticmethod
    def forward(ctx, A):
        lam, V = torch.linalg.eigh(0.5 * (A + A.t()))
        s = V @ torch.diag(lam.clamp_min(0).sqrt()) @ V.t()
        ctx.save_for_backward(s)
        return s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        s, = ctx.saved_tensors
        n = s.size(0)
        eye = torch.eye(n, dtype=s.dtype)
        system = torch.kron(s, eye) + torch.kron(eye, s)
        sym = 0.5 * (grad_output + grad_output.t())
        return torch.linalg.solve(system, sym.reshape(-1)).view(n, n)


class CubeRootNewton(Function):
    """Solves y^3 + c y = x elementwise (c > 0) by Newton steps; implicit derivative."""

    @staticmethod
    def forward(ctx, x, c=1.0, iters=30):
        if c <= 0:
            raise ValueError("c must be positive")
        y = torch.zeros_like(x)
        for _ in range(iters):
            y = y - (y.pow(3) + c * y - x) / (3 * y * y + c)
        ctx.save_for_backward(y.detach().clone())
        ctx.c = c
        return y

    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        return grad_output / (3 * y * y + ctx.c), None, None


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


def _spd(seed, n, shift=1.0):
    a = _t(seed, n, n, grad=False)
    return (a @ a.t() / n + shift * torch.eye(n, dtype=torch.float64)).requires_grad_()


def _solve_in():
    return ((_t(0, 4, 4, grad=False) + 3 * torch.eye(4, dtype=torch.float64)).requires_grad_(), _t(1, 4, 2))


def _deq_in():
    return (_t(0, 3, 4), _t(1, 4, 4, scale=0.2))


def _qp_in():
    return (_spd(0, 4), _t(1, 4), _t(2, 2, 4), _t(3, 2))


def _ev_eig():
    A = torch.eye(3, dtype=torch.float64, requires_grad=True)
    lam, _ = SymEig.apply(A)
    g, = torch.autograd.grad(lam.sum(), A)
    return not bool(torch.isfinite(g).all())


def _ev_wass():
    x, y = _t(0, 7), _t(1, 7)
    want, = torch.autograd.grad(Wasserstein1D.apply(x, y), x)
    a = Wasserstein1D.apply(x, y)
    Wasserstein1D.apply(_t(2, 7), _t(3, 7))
    got, = torch.autograd.grad(a, x)
    return not torch.allclose(got, want)


def _eigvals_fixed(A):
    """Sign-invariant use of the eigenvectors: the eigenvalues and the squared components."""
    lam, V = SymEig.apply(A)
    return lam, V * V


def _ev_sqrtm():
    from torch.utils._python_dispatch import TorchDispatchMode
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(o.numel() for o in (out if isinstance(out, (tuple, list)) else [out]) if torch.is_tensor(o))
            return out

    y = MatrixSqrtLyapunov.apply(_spd(0, 8))
    with Watch():
        y.sum().backward()
    return max(sizes) >= 8 ** 4


CASES = [
    dict(name="sinkhorn_distance", target=SinkhornDistance, inputs=lambda: (_u(0, 4, 5, lo=0, hi=1),),
         fault="returns <P, C> but uses the envelope gradient P, valid only for the value with the entropy term",
         kind="wrong", visible=True, evidence=lambda: _wrong(SinkhornDistance, (_u(0, 4, 5, lo=0, hi=1),))),
    dict(name="implicit_solve", target=ImplicitSolve, inputs=_solve_in,
         fault="the adjoint system is solved with A instead of its transpose",
         kind="wrong", visible=True, evidence=lambda: _wrong(ImplicitSolve, _solve_in())),
    dict(name="simplex_projection", target=SimplexProjection, inputs=lambda: (_t(0, 3, 6),),
         fault="the mean in backward is over all entries instead of over the support",
         kind="wrong", visible=True, evidence=lambda: _wrong(SimplexProjection, (_t(0, 3, 6),))),
    dict(name="deq_tanh", target=DEQTanh, inputs=_deq_in,
         fault="the implicit system is not transposed: solves (I - J) instead of (I - J)^T",
         kind="wrong", visible=True, evidence=lambda: _wrong(DEQTanh, _deq_in())),
    dict(name="logdet_general", target=LogDetFn, inputs=lambda: (_spd(0, 4),),
         fault="returns A^-1 instead of A^-T: right for the symmetric example, wrong for other matrices",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(LogDetFn, (_solve_in()[0],))),
    dict(name="symmetric_eig", target=_eigvals_fixed, inputs=lambda: (_spd(0, 4),),
         fault="1 / (l_i - l_j) unguarded: NaN gradient for repeated eigenvalues, even when only the eigenvalues are used",
         kind="wrong", visible=False, evidence=_ev_eig),
    dict(name="equality_qp", target=EqualityQP, inputs=_qp_in,
         fault="the gradient of b has the wrong sign (should be +dnu)",
         kind="wrong", visible=True, evidence=lambda: _wrong(EqualityQP, _qp_in())),
    dict(name="wasserstein_1d", target=Wasserstein1D, inputs=lambda: (_t(0, 7), _t(1, 7), 2),
         fault="the permutations live in module-level buffers shared by all calls of one size: a second call before backward gives the first a wrong gradient",
         kind="wrong", visible=False, evidence=_ev_wass),
    dict(name="matrix_sqrt_lyapunov", target=MatrixSqrtLyapunov, inputs=lambda: (_spd(0, 4),),
         fault="the Lyapunov equation is solved as an n^2 x n^2 Kronecker system: n^4 memory in backward",
         kind="wasteful", visible=False, evidence=_ev_sqrtm),
    dict(name="newton_cubic_root", target=CubeRootNewton, inputs=lambda: (_t(0, 4, 3),),
         fault="a detached copy of the root is saved, so double backward silently misses the dependence of y on x",
         kind="wrong", visible=False, evidence=lambda: not _second_ok(CubeRootNewton, (_t(0, 4),))),
]
