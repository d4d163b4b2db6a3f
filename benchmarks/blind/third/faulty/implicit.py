"""Layers defined by equations or optimisation problems."""
from support import *


class FixedPoint(Function):
    """z = tanh(W z + x), solved by iteration; implicit gradient (deep equilibrium)."""

    @staticmethod
    def forward(ctx, x, w):
        z = torch.zeros_like(x)
        for _ in range(200):
            z = torch.tanh(w @ z + x)
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        z, w = ctx.saved_tensors
        d = 1 - z * z
        jac = d[:, None] * w
        u = torch.linalg.solve(torch.eye(z.numel(), dtype=z.dtype) - jac, grad_output)
        gx = d * u
        return gx, torch.outer(gx, z) if ctx.needs_input_grad[1] else None


class EqualityQP(Function):
    """argmin 0.5 x^T Q x + p^T x subject to A x = b, for constant symmetric Q and A."""

    @staticmethod
    def forward(ctx, p, b, q, a):
        n, m = q.size(0), a.size(0)
        kkt = torch.cat([torch.cat([q, a.t()], 1), torch.cat([a, q.new_zeros(m, m)], 1)])
        sol = torch.linalg.solve(kkt, torch.cat([-p, b]))
        ctx.save_for_backward(kkt)
        ctx.n = n
        return sol[:n]

    @staticmethod
    def backward(ctx, grad_output):
        kkt, = ctx.saved_tensors
        rhs = torch.cat([grad_output, grad_output.new_zeros(kkt.size(0) - ctx.n)])
        d = torch.linalg.solve(kkt, rhs)
        return -d[:ctx.n], -d[ctx.n:], None, None


def equality_qp(p, b):
    """Small fixed problem with three variables and one constraint."""
    q = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 1.0]], dtype=p.dtype)
    return EqualityQP.apply(p, b, q, torch.tensor([[1.0, 2.0, -1.0]], dtype=p.dtype))


class SymmetricLog(Function):
    """Matrix logarithm of a symmetric positive definite matrix."""

    @staticmethod
    @amp_fwd
    def forward(ctx, a):
        lam, vec = torch.linalg.eigh((a + a.t()) / 2)
        ctx.save_for_backward(lam, vec)
        return vec @ torch.diag(lam.log()) @ vec.t()

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        lam, vec = ctx.saved_tensors
        dl = lam[:, None] - lam
        df = lam.log()[:, None] - lam.log()
        same = torch.eye(lam.numel(), dtype=torch.bool)
        quotient = torch.where(same, 1 / lam, df / dl)
        g = vec @ (quotient * (vec.t() @ grad_output @ vec)) @ vec.t()
        return (g + g.t()) / 2


class ComplexSolve(Function):
    """x with A x = b for one right-hand side."""

    @staticmethod
    def forward(ctx, a, b):
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        gb = torch.linalg.solve(a.transpose(-1, -2), grad_output)
        return -torch.outer(gb, x.conj()) if ctx.needs_input_grad[0] else None, gb


class LogDet(Function):
    """log |det A| of one matrix or a batch of matrices."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.slogdet(a)[1]

    @staticmethod
    def backward(ctx, grad_output):
        a, = ctx.saved_tensors
        return grad_output * torch.linalg.inv(a).transpose(-1, -2)


class KeplerSolve(Function):
    """Eccentric anomaly E with E - e sin E = M, by Newton's method."""

    @staticmethod
    def forward(ctx, mean_anomaly, ecc):
        e_anom = mean_anomaly.clone()
        for _ in range(50):
            e_anom = e_anom - (e_anom - ecc * e_anom.sin() - mean_anomaly) / (1 - ecc * e_anom.cos())
        ctx.save_for_backward(e_anom, ecc)
        return e_anom

    @staticmethod
    def backward(ctx, grad_output):
        e_anom, ecc = ctx.saved_tensors
        grads = []
        common = grad_output / (1 - ecc * e_anom.cos())
        if ctx.needs_input_grad[0]:
            grads.append(common)
        if ctx.needs_input_grad[1]:
            grads.append(common * e_anom.sin())
        return tuple(grads + [None] * (2 - len(grads)))


class FactoredSolve(Function):
    """Solves A x = b and reuses the LU factors for the gradient."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.lu = torch.linalg.lu_factor(a)
        x = torch.linalg.lu_solve(*ctx.lu, b)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        gb = torch.linalg.lu_solve(*ctx.lu, grad_output, adjoint=True)
        del ctx.lu
        ga = -gb @ x.transpose(-1, -2) if ctx.needs_input_grad[0] else None
        return ga, gb


class MatrixExp(Function):
    """Matrix exponential; the gradient is read off the exponential of a block matrix."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.matrix_exp(a)

    @staticmethod
    def backward(ctx, grad_output):
        a, = ctx.saved_tensors
        n = a.size(-1)
        with torch.no_grad():
            at = a.t()
            block = torch.cat([torch.cat([at, grad_output], 1), torch.cat([torch.zeros_like(at), at], 1)])
            grad = torch.linalg.matrix_exp(block)[:n, n:]
        return grad


def _spd(n, seed=0):
    m = randn(n, n, seed=seed, grad=False)
    return (m @ m.t() + n * torch.eye(n, dtype=f64)).requires_grad_()


def _well(n, seed=0, dtype=f64):
    return (randn(n, n, seed=seed, grad=False, dtype=dtype) * 0.4 + 2 * torch.eye(n, dtype=dtype)).requires_grad_()


def _logdet_batch():
    return torch.stack([_well(3, s).detach() for s in range(3)]).requires_grad_()


CASES = [
    {"name": "fixed_point_untransposed", "target": FixedPoint,
     "inputs": lambda: (randn(3), randn(3, 3, seed=1, scale=0.2)),
     "fault": "The adjoint system is solved with I - J, not with its transpose.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(FixedPoint, (randn(3), randn(3, 3, seed=1, scale=0.2)))},
    {"name": "equality_qp_rhs_sign", "target": equality_qp, "inputs": lambda: (randn(3), randn(1, seed=1)),
     "fault": "The gradient of the constraint's right-hand side has the wrong sign.",
     "kind": "wrong", "visible": True, "evidence": lambda: wrong_first(equality_qp, (randn(3), randn(1, seed=1)))},
    {"name": "symmetric_log_repeated_eigenvalues", "target": SymmetricLog, "inputs": lambda: (_spd(3),),
     "fault": "Repeated eigenvalues give 0 / 0 in the divided differences and a NaN gradient.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(SymmetricLog, (torch.eye(3, dtype=f64).requires_grad_(),))[0][0]).any())},
    {"name": "complex_solve_adjoint", "target": ComplexSolve, "inputs": lambda: (_well(3), randn(3, seed=1)),
     "fault": "The matrix is transposed without conjugation for the adjoint system, wrong for complex matrices.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(ComplexSolve, (_well(3, dtype=torch.complex128), randn(3, seed=1, dtype=torch.complex128)))},
    {"name": "logdet_batch_broadcast", "target": LogDet, "inputs": lambda: (_well(3),),
     "fault": "The cotangent of a batch is broadcast over columns; silently wrong when the batch is as large as the matrices.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(LogDet, (_logdet_batch(),))},
    {"name": "kepler_gradient_slot", "target": KeplerSolve,
     "inputs": lambda: (rand(4, lo=0.2, hi=3.0), rand(4, seed=1, lo=0.1, hi=0.6)),
     "fault": "If only the eccentricity requires grad, its gradient is returned in the slot of the mean anomaly.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: subset_differs(KeplerSolve, (rand(4, lo=0.2, hi=3.0), rand(4, seed=1, lo=0.1, hi=0.6)), (1,))},
    {"name": "factored_solve_second_call", "target": FactoredSolve, "inputs": lambda: (_well(3), randn(3, 2, seed=1)),
     "fault": "backward deletes the factors from ctx, so it fails when it is run a second time.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: twice_differs(FactoredSolve, (_well(3), randn(3, 2, seed=1)))},
    {"name": "matrix_exp_double_backward", "target": MatrixExp, "inputs": lambda: (_well(3),),
     "fault": "backward computes under no_grad without once_differentiable, so second derivatives are silently missing.",
     "kind": "fragile", "visible": False, "evidence": lambda: wrong_second(MatrixExp, (_well(3),))},
]
