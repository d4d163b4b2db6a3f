"""Run: how the graphs of a node become functions, one backend per file.

A backend is a module of this folder with one function,

    compile(graph, name, program, names) -> function

`graph` is the forward or the backward graph of a node, in the form that `graph.split` gives;
`name` is "forward" or "backward", `program` what the user calls the program, and `names` the user's
names for the values. The function takes what the placeholders stand for, by position, and returns
what the graph returns: one value as it is, several as a tuple. The law that every backend keeps:

- It is right for every row of tensors that the capture serves, whatever their layout. A backend
  that fixes strides, alignment or sizes checks them, and takes another way where they do not fit.
- It leaves its arguments as they are, keeps none of them, and draws random numbers as eager does.
- It may be called from several threads at once, and on the device and stream of its arguments.

What a backend cannot compile, it refuses with `CaptureError`: the composition then stays as written
and repeats the reason.
"""

from __future__ import annotations

import importlib
from typing import Any

from pullback.errors import BackendError

BACKENDS = ("eager",)


def backend_of(name: str) -> Any:
    """The function `compile` of the backend called `name`."""
    if name not in BACKENDS:
        raise BackendError(
            "`backend` must be the name of a backend",
            expected=" or ".join(f'"{known}"' for known in BACKENDS),
            got=repr(name),
        )
    return importlib.import_module(f"pullback.run.{name}").compile
