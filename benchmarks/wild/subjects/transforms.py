"""Linear transforms and their adjoints: wavelets, scattering, non-uniform Fourier transforms."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.wild.subject import Subject, load, normal

WAVELETS = "pytorch_wavelets"
NUFFT = "torchkbnufft._autograd.interp"
ZERO, SYMMETRIC, PERIODIZATION = 0, 1, 2


def filters(module: str, *names: str, **options: Any) -> tuple[Tensor, ...]:
    """The filters of a transform of the package, as its modules keep them."""
    made: nn.Module = load(f"{WAVELETS}:{module}")(**options)
    return tuple(getattr(made, name).detach() for name in names)


def analysis() -> tuple[Any, ...]:
    """An image, and the filters of a Daubechies wavelet."""
    names = ("h0_col", "h1_col", "h0_row", "h1_row")
    return (normal(1, 2, 8, 8), *filters("DWTForward", *names, wave="db2"), ZERO)


def synthesis() -> tuple[Any, ...]:
    """Coefficients of one level, and the filters of a Daubechies wavelet."""
    names = ("g0_col", "g1_col", "g0_row", "g1_row")
    made = filters("DWTInverse", *names, wave="db2")
    return (normal(1, 2, 5, 5), normal(1, 2, 3, 5, 5, seed=1), *made, ZERO)


def line() -> tuple[Any, ...]:
    """A signal, and the filters of a Daubechies wavelet."""
    return (normal(1, 2, 8), *filters("DWT1DForward", "h0", "h1", wave="db2"), ZERO)


def line_back() -> tuple[Any, ...]:
    """Coefficients of one level of a signal, and the filters of a Daubechies wavelet."""
    made = filters("DWT1DInverse", "g0", "g1", wave="db2")
    return (normal(1, 2, 5), normal(1, 2, 5, seed=1), *made, ZERO)


def dual_tree(level: int) -> tuple[Any, ...]:
    """An image, and the filters of a level of the dual-tree transform."""
    names = ("h0o", "h1o") if level == 1 else ("h0a", "h1a", "h0b", "h1b")
    made = filters("DTCWTForward", *names)
    return (normal(1, 2, 8, 8), *made, False, 2, -1, SYMMETRIC)


def dual_tree_back(level: int) -> tuple[Any, ...]:
    """Coefficients of a level of the dual-tree transform, and its filters."""
    names = ("g0o", "g1o") if level == 1 else ("g0a", "g1a", "g0b", "g1b")
    made = filters("DTCWTInverse", *names)
    return (normal(1, 2, 8, 8), normal(1, 2, 6, 4, 4, 2, seed=1), *made, 2, -1, SYMMETRIC)


def scattering(order: int, *, rotated: bool = False) -> tuple[Any, ...]:
    """An image, the filters of a scattering layer, its bias, and colours kept apart."""
    options = {"biort": "near_sym_b_bp"} if rotated else {"biort": "near_sym_a"}
    first = ("h0o", "h1o", "h2o") if rotated else ("h0o", "h1o")
    second = ("h0a", "h0b", "h1a", "h1b", "h2a", "h2b") if rotated else ("h0a", "h0b", "h1a", "h1b")
    if order == 2 and rotated:
        options["qshift"] = "qshift_b_bp"
    module = "ScatLayer" if order == 1 else "ScatLayerj2"
    names = first if order == 1 else (*first, *second)
    size = 8 if order == 1 else 16
    made = filters(module, *names, **options)
    return (normal(1, 1, size, size), *made, SYMMETRIC, 0.01, False)


def k_space(*, adjoint: bool) -> tuple[Any, ...]:
    """An image or samples of it, a trajectory, and the tables of the package."""
    made = load("torchkbnufft:KbInterp")(im_size=(4, 4), grid_size=(8, 8), numpoints=3)
    omega = normal(2, 5, grad=False)
    real = normal(1, 1, *((5,) if adjoint else (8, 8)), seed=1, grad=False)
    data = torch.complex(real, real.flip(-1)).requires_grad_()
    tables = [made.table_0, made.table_1]
    options = (omega, tables, made.n_shift, made.numpoints, made.table_oversamp, made.offsets)
    return (data, *options, *([made.grid_size] if adjoint else []))


def k_space_matrix(*, adjoint: bool) -> tuple[Any, ...]:
    """An image or samples of it, and the interpolation as sparse matrices."""
    matrices = load("torchkbnufft:calc_tensor_spmatrix")(
        normal(2, 5, grad=False), im_size=(4, 4), grid_size=(8, 8), numpoints=3
    )
    real = normal(1, 1, *((5,) if adjoint else (8, 8)), seed=1, grad=False)
    data = torch.complex(real, real.flip(-1)).requires_grad_()
    return (data, matrices, *([torch.tensor([8, 8])] if adjoint else []))


SUBJECTS = [
    Subject("pytorch-wavelets", f"{WAVELETS}.dwt.lowlevel:AFB2D", analysis),
    Subject("pytorch-wavelets", f"{WAVELETS}.dwt.lowlevel:AFB1D", line),
    Subject("pytorch-wavelets", f"{WAVELETS}.dwt.lowlevel:SFB2D", synthesis),
    Subject("pytorch-wavelets", f"{WAVELETS}.dwt.lowlevel:SFB1D", line_back),
    Subject("pytorch-wavelets", f"{WAVELETS}.dtcwt.transform_funcs:FWD_J1", partial(dual_tree, 1)),
    Subject(
        "pytorch-wavelets", f"{WAVELETS}.dtcwt.transform_funcs:FWD_J2PLUS", partial(dual_tree, 2)
    ),
    Subject(
        "pytorch-wavelets", f"{WAVELETS}.dtcwt.transform_funcs:INV_J1", partial(dual_tree_back, 1)
    ),
    Subject(
        "pytorch-wavelets",
        f"{WAVELETS}.dtcwt.transform_funcs:INV_J2PLUS",
        partial(dual_tree_back, 2),
    ),
    Subject(
        "pytorch-wavelets",
        f"{WAVELETS}.scatternet.lowlevel:SmoothMagFn",
        lambda: (normal(3, 4), normal(3, 4, seed=1), 0.01),
    ),
    *(
        Subject(
            "pytorch-wavelets",
            f"{WAVELETS}.scatternet.lowlevel:ScatLayerj{order}{'_rot' * rotated}_f",
            partial(scattering, order, rotated=rotated),
        )
        for order in (1, 2)
        for rotated in (False, True)
    ),
    Subject("torchkbnufft", f"{NUFFT}:KbTableInterpForward", partial(k_space, adjoint=False)),
    Subject("torchkbnufft", f"{NUFFT}:KbTableInterpAdjoint", partial(k_space, adjoint=True)),
    Subject(
        "torchkbnufft", f"{NUFFT}:KbSpmatInterpForward", partial(k_space_matrix, adjoint=False)
    ),
    Subject("torchkbnufft", f"{NUFFT}:KbSpmatInterpAdjoint", partial(k_space_matrix, adjoint=True)),
]
