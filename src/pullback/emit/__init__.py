"""Emit: a Function as a file that does not need pullback, in Python, C++ or Triton.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pullback.errors import EmitTargetError

TARGETS = ("python", "cpp", "triton")


def emit(
    x: Any,
    target: str = "python",
    *,
    examples: Any = None,
    path: str | os.PathLike[str] | None = None,
    force: bool = False,
    verify: bool = True,
) -> str:
    """`x` as the text of a file that does not need pullback.

    Arguments:
        x: a Function class (hand-written, derived, combined, hybrid or nested), something planned,
            or a function of tensors.
        target: "python", a module that imports only torch; "cpp", a `torch::autograd::Function`
            registered as an op; or "triton", GPU kernels and the Function around them.
        examples: a tuple of arguments like those it will be called with; by default those that it
            was derived or composed with, or those that its own `examples()` gives.
        path: where to write it, too. For "cpp", a folder gets the CMake file and a small program
            that uses the op from LibTorch as well; a path that ends in `.cpp` gets the op alone.
        force: whether a file with another text in that place is replaced.
        verify: whether C++ is compiled and compared with the program in a new process before it is
            handed out. That takes as long as `build`, which then finds the library made. Kernels
            are compared on a GPU, or in Triton's interpreter; where Triton is not installed, the
            file says that it has not been run.

    Returns the text: of the module, or of the C++ file with the op.

    >>> import torch
    >>> def swish(x):
    ...     return x * torch.sigmoid(x)
    >>> text = emit(swish, examples=(torch.randn(3),))
    >>> "class Swish(torch.autograd.Function):" in text
    True
    """
    if target not in TARGETS:
        raise EmitTargetError(
            "`target` must be a language that there is an emitter for",
            expected=" or ".join(f'"{known}"' for known in TARGETS),
            got=repr(target),
        )
    from pullback.emit.files import (  # heavy, with all that they capture
        require_writable,
        write_files,
    )
    from pullback.emit.subject import subject_of

    if path is not None:
        require_writable(path)
    files = _files(subject_of(x, examples), target, path, verify)
    main = next(iter(files))
    if path is not None:
        write_files(files, main, path, force=force)
    return str(files[main])


def _files(subject: Any, target: str, path: Any, verify: bool) -> dict[str, str]:
    """The files of a subject by their names, the one that is returned first."""
    if target == "cpp":
        from pullback.emit.cpp.op import emit_cpp

        name = os.path.basename(path) if path is not None else ""
        file = name if name.endswith(".cpp") and not os.path.isdir(path) else None
        return emit_cpp(subject, is_verified=verify, file=file)
    if target == "triton":
        from pullback.emit.triton.module import emit_triton

        return emit_triton(subject, is_verified=verify)
    from pullback.emit.python.module import emit_python

    return emit_python(subject)


def build(
    path: str | os.PathLike[str],
    *,
    flags: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Any:
    """Compile an emitted C++ file and load its op: see `emit.compiled`."""
    from pullback.emit.compiled import build_file as make

    return make(path, flags=flags, cache=cache)
