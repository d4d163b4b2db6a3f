"""What a case of the benchmark is, and where the cases are found.

A module of cases has a list `CASES`; `planted()`, `sound()` and `control()` collect those lists.
Every target lives at the top of its module, so that a worker process finds it by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Severity = Literal["wrong", "fragile", "wasteful"]


@dataclass(frozen=True)
class Case:
    """One function to check, with the inputs an ordinary author would pass."""

    name: str
    # A torch.autograd.Function (mostly), a pb.Function, a plain callable or a custom op.
    target: type | Callable[..., Any]
    # Makes the inputs: small, contiguous, seeded, requires_grad set where a gradient is wanted.
    # Never the special inputs that bring the fault to light.
    inputs: Callable[[], tuple[Any, ...]]
    # The class of the fault; empty when the case is sound.
    fault: str = ""
    # Which gradient or feature is wrong, in one sentence.
    where: str = ""
    # The public report the case is a model of, such as "Liger#1298".
    cites: str = ""
    severity: Severity = "wrong"
    # Whether the gradients at `inputs` are already wrong, for a random dense cotangent.
    visible: bool = False
    # The same function in plain differentiable torch: what forward computes, without the fault.
    reference: Callable[..., Any] | None = None
    # evidence(call, case): True when `call` shows the fault. It is true of the target and not of
    # the reference: the benchmark's own tests run both.
    evidence: Callable[[Callable[..., Any], Case], bool] | None = None

    @property
    def call(self) -> Callable[..., Any]:
        """The target as something to call."""
        return getattr(self.target, "apply", self.target)  # type: ignore[no-any-return]


class Cases(list[Case]):
    """The cases of one module; `add` names a case by its target."""

    def add(self, target: Any, inputs: Callable[[], tuple[Any, ...]], **facts: Any) -> None:
        """Append a case; `facts` are the other fields of `Case`."""
        name = facts.pop("name", None) or target.__name__
        self.append(Case(name, target, inputs, **facts))


# ---- inputs ----


def normal(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = True
) -> Tensor:
    """Standard normal numbers of a fixed seed, as a leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        other = torch.randn(*shape, generator=generator, dtype=torch.float64)
        values = torch.complex(values, other)
    return values.to(dtype).requires_grad_(grad)


def double(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    """`normal` in float64."""
    return normal(*shape, seed=seed, dtype=torch.float64, grad=grad)


def positive(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, grad: bool = True
) -> Tensor:
    """Uniform numbers between 0.5 and 1.5, as a leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    values = 0.5 + torch.rand(*shape, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_(grad)


def integers(high: int, *shape: int, seed: int = 0, low: int = 0) -> Tensor:
    """Integers below `high`, such as class labels and indices."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator)


# ---- collection ----


def planted() -> list[Case]:
    """Every case with a planted fault."""
    return _collect("benchmarks.faults.planted")


def sound() -> list[Case]:
    """Every sound case that we wrote."""
    return _collect("benchmarks.faults.sound")


def control() -> list[Case]:
    """PyTorch's own operators with their own backwards, wrapped as functions."""
    return _collect("benchmarks.faults.control")


def find(name: str) -> Case:
    """The case of that name, from any of the three groups."""
    for case in [*planted(), *sound(), *control()]:
        if case.name == name:
            return case
    raise LookupError(f"no case is named {name!r}: see planted(), sound() and control()")


def _collect(package: str) -> list[Case]:
    try:
        module = importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or not package.startswith(error.name):
            raise
        return []
    cases = list(getattr(module, "CASES", ()))
    for entry in sorted(
        info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))
    ):
        cases += getattr(importlib.import_module(f"{package}.{entry}"), "CASES", ())
    return cases
