"""Run: how the graphs of a node become functions, by one backend or another.

`backend.py` says what a backend is and what it must keep; `backends/` has one for each file, as
`BACKEND`. `nodes/` makes nodes by them, `lowering/` is PyTorch's compiler, and `disk/` keeps what
was compiled.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pullback.errors import BackendError

if TYPE_CHECKING:
    from pullback.run.backend import Backend

BACKENDS = ("eager", "inductor", "native", "triton")
AUTO = "auto"
ASKED_FOR = ("triton",)
"""Backends that "auto" takes only where `VARIABLE` names them."""

VARIABLE = "PULLBACK_BACKENDS"
"""Names the backends that "auto" may choose from, with commas between; by default all there are."""


def backends_of(name: str) -> dict[str, Backend]:
    """The backends that `name` stands for, by their names."""
    if name != AUTO:
        return {name: backend_of(name)}
    given = [one.strip() for one in os.environ.get(VARIABLE, "").split(",") if one.strip()]
    usual = [one for one in available() if one not in ASKED_FOR]
    return {one: backend_of(one) for one in given or usual}


def candidates_now(backends: Mapping[str, Backend], notify: Callable[[], Any]) -> list[str]:
    """Those of several backends to choose from now.

    While one is being built, which this begins in the background, another serves (`meanwhile`), and
    the method `notify` is called when it is there; from then on the other is not needed.
    """
    names = list(backends)
    for name, backend in backends.items():
        if backend.meanwhile in names:
            names.remove(backend.meanwhile if backend.is_ready(notify) else name)
    return names


def describe_backend(name: str) -> str:
    """A choice of backends in words."""
    names = list(backends_of(name))
    return f'backend "{names[0] if len(names) == 1 else name}"'


def backend_of(name: str) -> Backend:
    """The backend called `name`; raises `BackendError` if it is of no use here."""
    if name not in BACKENDS:
        raise BackendError(
            "`backend` must be the name of a backend",
            expected=" or ".join(f'"{known}"' for known in (AUTO, *BACKENDS)),
            got=repr(name),
        )
    absence = absences()[name]
    if absence is not None:
        raise BackendError(
            "`backend` must be one that can be used here",
            expected=" or ".join(f'"{known}"' for known in available()),
            got=f'"{name}": {absence}',
        )
    return _backend(name)


def available() -> tuple[str, ...]:
    """The names of the backends that can be used here."""
    return tuple(name for name, why in absences().items() if why is None)


def absences() -> dict[str, str | None]:
    """For each backend, why it cannot be used here, in one line; None if it can."""
    return {name: _backend(name).absence() for name in BACKENDS}


def _backend(name: str) -> Backend:
    backend: Backend = importlib.import_module(f"pullback.run.backends.{name}").BACKEND
    return backend
