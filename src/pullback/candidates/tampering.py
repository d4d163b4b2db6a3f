"""Functions that were replaced, and settings that were changed, while a candidate was there.

What measures and compares is kept before the candidate is loaded; here it is asked whether the
names still mean the same. A function of PyTorch that PyTorch itself puts in another's place (it
does so when parts of it are first imported) is none of the candidate's doing.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

PLACES: tuple[Any, ...] = (
    time,
    threading,
    torch,
    torch.Tensor,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
    torch.autograd,
    torch.nn.functional,
    torch.linalg,
    torch.testing,
    torch.Generator,
    gc,
)
PREFIX = "pullback."
TORCH = os.path.dirname(str(torch.__file__))
PYTHON = sysconfig.get_paths()["stdlib"]

Known = dict[tuple[str, str], tuple[Any, Any]]  # what a name means, and the code behind it


def known_functions() -> Known:
    """What every callable name of the places means now."""
    found: Known = {}
    for place, title in _places():
        for name, value in _members(place).items():
            if callable(value) or isinstance(value, (staticmethod, classmethod)):
                found[title, name] = value, _code_of(value)
    return found


def _members(place: Any) -> dict[str, Any]:
    """The names of a module, or of a class with those that it inherits: most methods of a tensor
    are those of a base class, and one that is replaced stands before it."""
    if isinstance(place, ModuleType):
        return dict(vars(place))
    return {name: value for kind in reversed(place.__mro__) for name, value in vars(kind).items()}


def _places() -> Iterator[tuple[Any, str]]:
    for place in PLACES:
        if isinstance(place, ModuleType):
            yield place, place.__name__
        else:
            yield place, f"{place.__module__}.{place.__qualname__}"
    for name, module in list(sys.modules.items()):
        if name.startswith(PREFIX) and module is not None:
            yield module, name


def replaced_names(before: Known) -> list[str]:
    """The names that mean something else now, by somebody who is not PyTorch."""
    now = known_functions()
    missing = object(), None
    found = []
    for (title, name), (old, code) in before.items():
        new, new_code = now.get((title, name), missing)
        is_same = new is old and new_code is code
        if not is_same and not (new is not old and _is_own(title, name, new)):
            found.append(f"{title}.{name}")
    return sorted(found)


def _code_of(value: Any) -> Any:
    """The code of a function of Python's, which can be replaced while the function stays."""
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _is_own(title: str, name: str, new: Any) -> bool:
    """Whether a new meaning of a name is one that PyTorch gives to it."""
    if not title.startswith("torch"):
        return False
    function = getattr(new, "__func__", new)
    code = _code_of(new)
    named = getattr(function, "__name__", "")
    if code is None:
        module = getattr(function, "__module__", "") or ""
        return bool(module.partition(".")[0] == "torch" and named == name)
    return str(os.path.realpath(code.co_filename)).startswith(TORCH)


# ---- settings ----

SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "torch.backends.cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
    "torch.get_num_threads()": torch.get_num_threads,
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
}


def torch_settings() -> dict[str, str]:
    """The settings of PyTorch that change what is computed, or how fast."""
    return {name: str(read()) for name, read in SETTINGS.items()}


def changed_settings(before: dict[str, str]) -> list[str]:
    """Those that are others now, in words."""
    now = torch_settings()
    return [f"{name}: {old}, now {now[name]}" for name, old in before.items() if now[name] != old]
