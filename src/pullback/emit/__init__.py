"""Emit: a Function as a file that does not need pullback, in Python, C++ or Triton.

The public functions stand here and import what they need when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from pullback.errors import EmitTargetError

TARGETS = ("python", "cpp", "triton")


class LoadedOp(Protocol):
    """An op that was loaded, which is called, or a namespace of ops, which are its attributes."""

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """What the op gives: it is not known before it is loaded."""

    def __getattr__(self, name: str) -> LoadedOp:
        """An op of a namespace, or an overload of an op."""


def emit(
    x: object,
    target: str = "python",
    *,
    examples: object = None,
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
            "`target` must be a language that pullback can emit",
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
) -> LoadedOp:
    """Compile a C++ file that registers ops, unless that was done before, and load it.

    Arguments:
        path: a C++ file with `TORCH_LIBRARY` or `TORCH_LIBRARY_FRAGMENT`, such as `emit` writes; or
            a folder with one of them.
        flags: more options for the compiler.
        cache: the folder to keep libraries in; by default one in `$PULLBACK_CACHE_DIR`, else in
            this user's caches.

    Returns the op, `torch.ops.<ns>.<name>`; of a file with several, the namespace `torch.ops.<ns>`;
    `torch.ops` if they are in several. The compiler is `$CXX` if that is set.

    >>> import torch
    >>> from pullback.emit import emit
    >>> _ = emit(torch.sin, "cpp", examples=(torch.ones(2),), path="sine.cpp")  # doctest: +SKIP
    >>> build("sine.cpp")(torch.zeros(2))  # doctest: +SKIP
    tensor([0., 0.])
    """
    from pullback.emit.compiled import build_file as make

    return make(path, flags=flags, cache=cache)  # type: ignore[no-any-return]
