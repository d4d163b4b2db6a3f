"""Solutions that are differentiated by the equation they solve: roots, systems, eigenvectors."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.wild.subject import Subject, double, load, normal, positive_definite, uniform

ADAM = "torchopt.accelerated_op.adam_op"


def solve_iteratively() -> Any:
    """A linear system by conjugate gradients."""
    operator, solve = load("xitorch:LinearOperator"), load("xitorch.linalg:solve")

    def solved(a: Tensor, b: Tensor) -> Tensor:
        m = operator.m(a, is_hermitian=True)
        return solve(m, b, method="cg", rtol=1e-12, atol=1e-12)  # type: ignore[no-any-return]

    return solved


def lowest_eigenvalues() -> Any:
    """The lowest eigenvalues of a symmetric matrix."""
    operator, symeig = load("xitorch:LinearOperator"), load("xitorch.linalg:symeig")

    def values(a: Tensor) -> Tensor:
        m = operator.m(0.5 * (a + a.mT), is_hermitian=True)
        found, _ = symeig(m, neig=2, method="custom_exacteig")
        return found  # type: ignore[no-any-return]

    return values


def root() -> Any:
    """The root of `tanh(a y + b) + y / 2`, where it is increasing."""
    rootfinder = load("xitorch.optimize:rootfinder")

    def equation(y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a * y + b) + y / 2

    def found(a: Tensor, b: Tensor) -> Tensor:
        start = torch.zeros_like(b)
        return rootfinder(  # type: ignore[no-any-return]
            equation, start, params=(a, b), method="broyden1"
        )

    return found


def integral() -> Any:
    """The integral of `cos(a x)` from zero to `b`."""
    quad = load("xitorch.integrate:quad")

    def integrated(a: Tensor, b: Tensor) -> Tensor:
        return quad(  # type: ignore[no-any-return]
            lambda x, a: torch.cos(a * x), torch.zeros_like(b), b, params=(a,), n=40
        )

    return integrated


def zero_order() -> Any:
    """A loss whose gradient is estimated by drawing directions."""
    decorate = load("torchopt:diff.zero_order.zero_order")

    @decorate(
        torch.distributions.Normal(loc=0, scale=1), method="forward", argnums=0, num_samples=8
    )
    def loss(x: Tensor) -> Tensor:
        return (x**2).sum()

    return loss


def decomposed() -> tuple[Any, ...]:
    """A matrix of distinct singular values."""
    return (double(4, 3),)


def spikes() -> tuple[Any, ...]:
    """Voltages up to four thresholds of 1, and how a spike is formed."""
    tensors = (torch.tensor(1.0, requires_grad=True), torch.tensor(0.5), torch.tensor(65536.0))
    return (uniform(3, 4, low=-1.0, high=4.0), *tensors)


def wrapped() -> Any:
    """A defence that rounds, with the gradient passed through."""
    return load("advertorch.bpda:BPDAWrapper")(lambda x: torch.round(4 * x) / 4).forward


def substituted() -> Any:
    """A defence that rounds, with the gradient of a smooth stand-in."""
    made = load("advertorch.bpda:BPDAWrapper")
    return made(lambda x: torch.round(4 * x) / 4, forwardsub=torch.tanh).forward


SUBJECTS = [
    Subject(
        "xitorch",
        solve_iteratively,
        lambda: (positive_definite(4, 4), double(4, 2, seed=1)),
        "solve_torchfcn",
    ),
    Subject("xitorch", lowest_eigenvalues, lambda: (positive_definite(4, 4),), "symeig_torchfcn"),
    Subject(
        "xitorch", "xitorch._impls.linalg.symeig:degen_symeig", lambda: (positive_definite(3, 3),)
    ),
    Subject(
        "xitorch",
        root,
        lambda: (double(3).abs().detach().requires_grad_(), double(3, seed=1)),
        "_RootFinder",
    ),
    Subject(
        "xitorch",
        integral,
        lambda: (double(3), uniform(1, low=0.5).detach().double().requires_grad_()),
        "_Quadrature",
    ),
    Subject("torchopt", zero_order, lambda: (normal(4),), "ZeroOrder"),
    *(
        Subject(
            "torchopt",
            f"{ADAM}:AdamOp.{name}",
            lambda: (normal(3, 4), uniform(3, 4, seed=1), 0.9),
        )
        for name in ("MuOp", "NuOp")
    ),
    Subject("deepquantum", "deepquantum.qmath:QR", decomposed),
    Subject("tensorcircuit", "tensorcircuit.backends.pytorch_ops:torchqr", decomposed),
    Subject(
        "hypll",
        "hypll.manifolds.poincare_ball.math.stats:FrechetMean",
        lambda: (
            double(5, 3, scale=0.2),
            torch.tensor(1.0, dtype=torch.float64),
            -1,
            [0],
            False,
        ),
    ),
    Subject(
        "mrpro",
        "mrpro.operators.LinearOperator:_AutogradWrapper",
        lambda: (lambda x: 2 * x.flip(-1), lambda g: 2 * g.flip(-1), normal(3, 4)),
    ),
    Subject(
        "tad-mctc",
        "tad_mctc.autograd.attach:_AttachGradientReverse",
        lambda: (normal(2, 3), 2 * normal(2, 3, grad=False), lambda x: (x**2).sum(-1)),
    ),
    Subject("rockpool", "rockpool.nn.modules.torch.lif_torch:StepPWL", spikes),
    Subject(
        "rockpool",
        "rockpool.nn.modules.torch.lif_torch:PeriodicExponential",
        lambda: (uniform(3, 4, low=-1.0, high=4.0), torch.tensor(1.0), 0.5, torch.tensor(65536.0)),
    ),
    Subject(
        "rockpool",
        "rockpool.nn.modules.torch.lif_bitshift_torch:Bitshift",
        lambda: (normal(3, 4), torch.tensor(3.0), torch.tensor(0.9)),
    ),
    Subject("advertorch", wrapped, lambda: (uniform(2, 3, 4),), "BPDAWrapper.identity"),
    Subject("advertorch", substituted, lambda: (uniform(2, 3, 4),), "BPDAWrapper.substitute"),
]
