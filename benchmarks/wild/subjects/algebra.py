"""Matrices: projections onto rotations and orthogonal matrices, solves, resampling on grids."""

from typing import Any

import torch
from torch import Tensor

from benchmarks.wild.subject import Subject, double, load, normal

INTERPOL = "interpol.autograd"


def grid(*, channels: int = 2) -> tuple[Tensor, Tensor]:
    """An image, and places in it at which it is read."""
    places = torch.rand(1, 4, 5, 2, generator=torch.Generator().manual_seed(3)) * 4
    return normal(1, channels, 5, 6), places.requires_grad_()


def parametrised(name: str) -> Any:
    """The Function that a reparametrisation of the package makes and uses."""
    return load(f"orthogonium.reparametrizers:{name}")(weight_shape=(1, 3, 5))


def skew_filter() -> tuple[Any, ...]:
    """An image, and a filter whose convolution is skew-symmetric."""
    w = 0.1 * normal(2, 2, 3, 3, grad=False)
    return normal(1, 2, 5, 5), w - w.transpose(0, 1).flip(2, 3)


def rotation_near() -> tuple[Any, ...]:
    """Matrices, the rotations next to them, and the weight of a regularisation."""
    m = normal(2, 3, 3)
    u, _, v = torch.linalg.svd(m.detach())
    return m, (u @ v).requires_grad_(), 0.1


SUBJECTS = [
    Subject("torch-interpol", f"{INTERPOL}:GridPull", lambda: (*grid(), "linear", "dct2", True)),
    Subject(
        "torch-interpol",
        f"{INTERPOL}:GridPush",
        lambda: (normal(1, 2, 4, 5), grid()[1], (5, 6), "linear", "dct2", True),
    ),
    Subject(
        "torch-interpol",
        f"{INTERPOL}:GridCount",
        lambda: (grid()[1], (5, 6), "linear", "dct2", True),
    ),
    Subject("torch-interpol", f"{INTERPOL}:GridGrad", lambda: (*grid(), "quadratic", "dct2", True)),
    Subject(
        "torch-interpol",
        f"{INTERPOL}:SplineCoeff",
        lambda: (normal(2, 7), "dct2", "cubic", -1, False),
    ),
    Subject(
        "torch-interpol",
        f"{INTERPOL}:SplineCoeffND",
        lambda: (normal(1, 5, 6), ["dct2", "dct2"], ["cubic", "cubic"], 2, False),
    ),
    Subject(
        "roma",
        "roma.mappings:_ProcrustesManualDerivatives",
        lambda: (double(2, 3, 3), True, 1e-5),
    ),
    Subject(
        "roma",
        "roma.mappings:_HornEigenvectorManualDerivatives",
        lambda: (double(2, 3, 3), 1e-5),
    ),
    Subject("roma", "roma.mappings:_ProcrustesRegularization", rotation_near),
    Subject("orthogonium", "orthogonium.legacy.skew_ortho_conv:SOC_Function", skew_filter),
]
