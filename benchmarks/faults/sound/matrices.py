"""Linear algebra where it is well defined: inverses, factors, determinants, spectra."""

import torch
from torch import Tensor
from torch.autograd import Function

import pullback as pb
from benchmarks.faults.sound.entry import Sound, cases_of, real


def require_square(x):
    """Refuse what is not a square matrix or a batch of them."""
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"takes square matrices, got shape {tuple(x.shape)}")


class Inverse(Function):
    """The inverse of a square matrix, from its output."""

    @staticmethod
    def forward(ctx, x):
        require_square(x)
        y = torch.linalg.inv(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return -y.mT @ grad_output @ y.mT


class Solve(Function):
    """`A^-1 b` for a matrix of right-hand sides, from `A` and the solution."""

    @staticmethod
    def forward(ctx, a, b):
        require_square(a)
        if b.dim() != a.dim() or b.shape[:-1] != a.shape[:-1]:
            raise ValueError(f"b must be (..., n, k) beside A, got {a.shape} and {b.shape}")
        x = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        a, x = ctx.saved_tensors
        grad_b = torch.linalg.solve(a.mT, grad_output)
        grad_a = -grad_b @ x.mT if ctx.needs_input_grad[0] else None
        return grad_a, grad_b if ctx.needs_input_grad[1] else None


class LogDet(pb.Function):
    """`log |det A|` of invertible matrices."""

    @staticmethod
    def forward(ctx, x):
        require_square(x)
        ctx.save_for_backward(x)
        return torch.linalg.slogdet(x).logabsdet

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output[..., None, None] * torch.linalg.inv(x).mT


class Cholesky(Function):
    """The Cholesky factor of `(A + A^T) / 2`, so that any direction of `A` makes sense."""

    @staticmethod
    def forward(ctx, a):
        require_square(a)
        factor = torch.linalg.cholesky((a + a.mT) / 2)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    def backward(ctx, grad_output):
        (factor,) = ctx.saved_tensors
        middle = (factor.mT @ grad_output).tril()
        middle = middle - 0.5 * torch.diag_embed(middle.diagonal(dim1=-2, dim2=-1))
        half = torch.linalg.solve_triangular(factor.mT, middle, upper=True)
        grad = torch.linalg.solve_triangular(factor, half, upper=False, left=False)
        return (grad + grad.mT) / 2


class SymmetricEigenvalues(Function):
    """The eigenvalues of `(A + A^T) / 2`, all different at the given point."""

    @staticmethod
    def forward(ctx, a):
        require_square(a)
        ctx.save_for_backward(a)
        return torch.linalg.eigvalsh((a + a.mT) / 2)

    @staticmethod
    def backward(ctx, grad_output):
        (a,) = ctx.saved_tensors
        _, vectors = torch.linalg.eigh((a + a.mT) / 2)
        return (vectors * grad_output.unsqueeze(-2)) @ vectors.mT


class TriangularSolve(Function):
    """`L^-1 b`, reading the lower triangle of `L` alone."""

    @staticmethod
    def forward(ctx, low, b):
        require_square(low)
        if b.dim() != low.dim() or b.shape[:-1] != low.shape[:-1]:
            raise ValueError(f"b must be (..., n, k) beside L, got {low.shape} and {b.shape}")
        x = torch.linalg.solve_triangular(low.tril(), b, upper=False)
        ctx.save_for_backward(low, x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        low, x = ctx.saved_tensors
        grad_b = torch.linalg.solve_triangular(low.tril().mT, grad_output, upper=True)
        grad_low = -(grad_b @ x.mT).tril() if ctx.needs_input_grad[0] else None
        return grad_low, grad_b if ctx.needs_input_grad[1] else None


class Trace(Function):
    """The sum of the diagonal of a matrix."""

    @staticmethod
    def forward(ctx, x):
        require_square(x)
        ctx.size = x.shape[-1]
        return x.diagonal(dim1=-2, dim2=-1).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        eye = torch.eye(ctx.size, dtype=grad_output.dtype, device=grad_output.device)
        return grad_output[..., None, None] * eye


class QuadraticForm(Function):
    """`x^T A x` for each row of `x`; `A` need not be symmetric."""

    @staticmethod
    def forward(ctx, x, a):
        require_square(a)
        if x.dim() != 2 or a.dim() != 2 or x.shape[1] != a.shape[0]:
            raise ValueError(f"takes (n, d) and (d, d), got {x.shape} and {a.shape}")
        ctx.save_for_backward(x, a)
        return ((x @ a) * x).sum(1)

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        weighted = grad_output.unsqueeze(1) * x
        grad_x = weighted @ (a + a.mT) if ctx.needs_input_grad[0] else None
        grad_a = weighted.mT @ x if ctx.needs_input_grad[1] else None
        return grad_x, grad_a


def _near_identity(*shape: int, seed: int = 0) -> Tensor:
    size = shape[-1]
    noise = real(*shape, seed=seed).detach() * 0.3
    return (2 * torch.eye(size, dtype=torch.float64) + noise).requires_grad_()


def _positive_definite(size: int) -> Tensor:
    root = real(size, size).detach()
    return (root @ root.mT + torch.eye(size, dtype=torch.float64)).requires_grad_()


def _spread(size: int) -> Tensor:
    noise = real(size, size).detach() * 0.2
    steps = torch.arange(size, dtype=torch.float64)
    return (torch.diag(steps) + noise).requires_grad_()


SOUND = {
    "inverse": Sound(Inverse, lambda: (_near_identity(2, 3, 3),), torch.linalg.inv, low=False),
    "solve": Sound(
        Solve, lambda: (_near_identity(3, 3), real(3, 2, seed=1)), torch.linalg.solve, low=False
    ),
    "log-determinant": Sound(
        LogDet, lambda: (_near_identity(2, 3, 3),), lambda x: torch.slogdet(x)[1], low=False
    ),
    "cholesky": Sound(
        Cholesky,
        lambda: (_positive_definite(4),),
        lambda a: torch.linalg.cholesky((a + a.mT) / 2),
        low=False,
    ),
    "symmetric-eigenvalues": Sound(
        SymmetricEigenvalues,
        lambda: (_spread(4),),
        lambda a: torch.linalg.eigvalsh((a + a.mT) / 2),
        low=False,
        convention=False,
    ),
    "triangular-solve": Sound(
        TriangularSolve,
        lambda: (_near_identity(3, 3), real(3, 2, seed=1)),
        lambda low, b: torch.linalg.solve_triangular(low.tril(), b, upper=False),
        low=False,
    ),
    "trace": Sound(Trace, lambda: (real(4, 4),), lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1)),
    "quadratic-form": Sound(
        QuadraticForm,
        lambda: (real(4, 3), real(3, 3, seed=1)),
        lambda x, a: torch.einsum("ni,ij,nj->n", x, a, x),
    ),
}

CASES = cases_of(SOUND)
