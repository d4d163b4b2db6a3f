"""Run: how the graphs of a node become functions, one backend per file.

A backend is a module of this folder with two functions, and may have others:

    absence() -> str | None
    specialise(graph, row, *, name, free_sizes=False) -> function
    make_node(spec) -> function
    whole(minimal, compiled) -> function
    donates(forward) -> bool

`absence` says in one line why it cannot be used here. `specialise` compiles the forward or the
backward graph of a node (`name`), in the form that `graph.split` gives, for arguments that are laid
out as those of `row`; with `free_sizes`, for those of every size that lie in memory alike. What it
gives takes a list of the arguments, which it may empty, checks nothing, and returns a row of
results; with `free_sizes` it has a method `meets(row)` that says whether it serves a row. The law
that every backend keeps:

- For arguments that fit, it computes what eager mode computes, up to rounding. Nobody relies on
  that: each node is compared with its recipe (`verify`). That a call fits is for the caller to see
  to (`making`, `node`); one that does not, takes another way.
- It leaves its arguments as they are, keeps none of them, and draws no random numbers.
- It may be called from several threads at once, and on the device and stream of its arguments.

`make_node` builds the autograd node, where the backend has one of its own (`node.make_node`), and
`whole` completes what a minimal graph returns (`minimal.whole`). The node may let a backward graph
write over some of its arguments: where `donates` says so of the forward that saved them,
`specialise` is told their places (`donated`).

What a backend cannot compile, it refuses with `CaptureError`: that node then runs eagerly, and
`explain()` repeats the reason.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from pullback.errors import BackendError

BACKENDS = ("eager", "inductor", "native")
AUTO = "auto"
VARIABLE = "PULLBACK_BACKENDS"
"""Names the backends that "auto" may choose from, with commas between; by default all there are."""


def backends_of(name: str) -> dict[str, Any]:
    """The modules of the backends that `name` stands for, by their names."""
    if name != AUTO:
        return {name: backend_of(name)}
    given = [one.strip() for one in os.environ.get(VARIABLE, "").split(",") if one.strip()]
    return {one: backend_of(one) for one in given or available()}


def candidates(backends: Mapping[str, Any], tell: Callable[[], Any]) -> list[str]:
    """Those of several backends to choose from now.

    "native" runs the code of "inductor" with less around it. While it is being built, which this
    begins in the background, "inductor" serves, and the method `tell` is called when it is there;
    from then on "inductor" is not needed.
    """
    names = list(backends)
    if "native" in names and "inductor" in names:
        is_ready = backends["native"].is_ready(tell)
        names.remove("inductor" if is_ready else "native")
    return names


def text_of(name: str) -> str:
    """A choice of backends in words."""
    names = list(backends_of(name))
    return f'backend "{names[0] if len(names) == 1 else name}"'


def backend_of(name: str) -> Any:
    """The module of the backend called `name`; raises `BackendError` if it is of no use here."""
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
    return _module(name)


def available() -> tuple[str, ...]:
    """The names of the backends that can be used here."""
    return tuple(name for name, why in absences().items() if why is None)


def absences() -> dict[str, str | None]:
    """For each backend, why it cannot be used here, in one line; None if it can."""
    return {name: _module(name).absence() for name in BACKENDS}


def _module(name: str) -> Any:
    return importlib.import_module(f"pullback.run.{name}")
