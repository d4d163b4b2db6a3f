"""What a subject is: one Function or op of a package, with inputs as its own users pass them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

Inputs = Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class Subject:
    """One Function or op to check.

    `target` is an import path, `package.module:Name`, or a function of ours that gives the thing
    to check where the package makes it at run time. Both are used in a process where the package
    can be imported; the modules of subjects themselves import nothing of any package.
    """

    package: str
    target: str | Callable[[], Any]
    # Makes the arguments of `apply`: small, of a fixed seed, as the package's own tests have them.
    inputs: Inputs
    name: str = ""
    # The same function in plain differentiable torch.
    reference: Callable[..., Any] | None = None
    declares: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The name under which results and verdicts are kept: `package:Name`."""
        name = self.name or str(self.target).rpartition(":")[2]
        return f"{self.package}:{name}"

    def load(self) -> Any:
        """The Function, op or callable itself."""
        return load(self.target) if isinstance(self.target, str) else self.target()


def load(path: str) -> Any:
    """What stands at `package.module:Name`."""
    module, _, names = path.partition(":")
    return reduce(getattr, names.split("."), importlib.import_module(module))


def every(package: str = "benchmarks.wild.subjects") -> list[Subject]:
    """The subjects of every module in `subjects/`, in the order of the modules' names."""
    folder = importlib.import_module(package)
    found: list[Subject] = []
    for entry in sorted(info.name for info in pkgutil.iter_modules(folder.__path__)):
        found += importlib.import_module(f"{package}.{entry}").SUBJECTS
    twice = sorted({s.id for s in found if sum(o.id == s.id for o in found) > 1})
    if twice:
        raise ValueError(f"subjects must have names of their own, but there are two {twice}")
    return found


# ---- inputs ----


def normal(*shape: int, seed: int = 0, grad: bool = True, scale: float = 1.0) -> Tensor:
    """Standard normal float32 numbers of a fixed seed, times `scale`, as a leaf."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator)).requires_grad_(grad)


def double(*shape: int, seed: int = 0, grad: bool = True, scale: float = 1.0) -> Tensor:
    """`normal` in float64."""
    return normal(*shape, seed=seed, grad=False, scale=scale).double().requires_grad_(grad)


def uniform(
    *shape: int, low: float = 0.0, high: float = 1.0, seed: int = 0, grad: bool = True
) -> Tensor:
    """Uniform float32 numbers between `low` and `high`, as a leaf."""
    generator = torch.Generator().manual_seed(seed)
    values = low + (high - low) * torch.rand(*shape, generator=generator)
    return values.requires_grad_(grad)


def integers(high: int, *shape: int, seed: int = 0) -> Tensor:
    """Integers below `high`: labels and indices."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def positive_definite(*shape: int, seed: int = 0) -> Tensor:
    """Symmetric positive definite float64 matrices, well conditioned."""
    a = double(*shape, seed=seed, grad=False)
    eye = torch.eye(shape[-1], dtype=a.dtype)
    return (a @ a.mT / shape[-1] + eye).requires_grad_(True)


def linear(inside: int, outside: int, seed: int = 0) -> torch.nn.Module:
    """A small linear layer of a fixed seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(inside, outside)
