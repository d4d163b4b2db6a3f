"""The native backend: the node of `run.node` in C++, which runs backward without Python.

One extension serves every program (`cpp/`). It is built when a node is asked for, once for each
torch and Python, which takes a C++ compiler about half a minute, and is kept in the cache on disk;
`absence` says why it cannot be had.

What the node calls is compiled by Inductor as for backend "inductor". Where the Python around the
kernels can be read (`wrapper.py`), neither forward nor backward runs Python or holds its lock;
otherwise each is one call of it.

What a native node is called with, it checks itself: it returns `MISS` for a call that the spec does
not cover, and has then done nothing.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.layouts import Layout
from pullback.errors import BackendError, BuildError, CaptureError
from pullback.run.backend import Backend, SizedCode
from pullback.run.backends.inductor import BACKEND as INDUCTOR
from pullback.run.backends.inductor import aligned_code, realigned
from pullback.run.disk import building, toolchain
from pullback.run.lowering.wrapper import reading_of
from pullback.run.nodes.minimal import Minimal
from pullback.run.nodes.node import MISS, Compiled, LayoutDemand, NodeSpec, ValueSource

_SOURCE = Path(__file__).with_name("cpp") / "node.cpp"
PATIENCE = 10.0  # seconds before a build begins: the first calls have the machine to themselves
_lock = threading.Lock()
_failure: list[str] = []  # why the extension could not be built, in one line


@dataclass
class _State:
    """Whether the extension is built, the thread that builds it, and who waits for that."""

    is_ready: bool = False
    thread: threading.Thread | None = None
    waiting: list[Any] = field(default_factory=list)


_state = _State()

log = logging.getLogger("pullback")


class NativeBackend(Backend):
    """Inductor's code in a node of C++."""

    meanwhile = "inductor"  # whose code it runs, with less around it

    def absence(self) -> str | None:
        """Why there is no native node here, in one line; None if there is, or can be built."""
        return _failure[0] if _failure else toolchain.absence(python=True) or INDUCTOR.absence()

    def specialise_all_sizes(self, graph: fx.Graph, row: Sequence[Any], *, name: str) -> SizedCode:
        """As Inductor does it."""
        return INDUCTOR.specialise_all_sizes(graph, row, name=name)

    def specialise(
        self, graph: fx.Graph, row: Sequence[Any], *, name: str, donated: Sequence[int] = ()
    ) -> Compiled:
        """As Inductor does it; without Python where that can be had."""
        code = aligned_code(graph, row, name=name, donated=donated)
        if any(isinstance(value, Tensor) and value.is_cuda for value in row):
            _run_once(code, row, donated)
        reading = reading_of(code, row)
        if reading is None:
            return realigned(code, row)
        rows = list(reading.taken), list(reading.steps), list(reading.constants), list(reading.made)
        try:
            facts = reading.device, list(reading.reused), reading.register_count
            return native_extension().steps(*facts, *rows)  # type: ignore[no-any-return]
        except ValueError:  # a kernel that cannot be called from C++
            return realigned(code, row)

    def make_node(self, spec: NodeSpec) -> Callable[..., Any]:
        """As `node.make_node`, in C++.

        The function checks its arguments: tensors and parameters of the kinds that the spec says,
        with gradient recording on, and no mode, transform, tangent or autocast around. It returns
        `MISS` for all others. Its `grad_fn` has the name of the program's, and is of the class
        `CppFunction`. Raises `CaptureError` for a program that returns numbers.
        """
        if len(spec.live) + len(spec.silent) < len(spec.outputs):
            raise CaptureError(f"`{spec.name}` must return only tensors to be one native node")
        node: Callable[..., Any] = native_extension().entry(_description(spec))
        type(node).checks_calls = True  # type: ignore[attr-defined]
        return node

    def whole(self, minimal: Minimal, compiled: Compiled) -> Compiled:
        """As `minimal.whole`; without Python where `compiled` is."""
        if not isinstance(compiled, native_extension().Library):
            return minimal.whole(compiled)
        results = [_result(one) for one in minimal.sources]
        return native_extension().picked(compiled, results)  # type: ignore[no-any-return]

    def donates(self, forward: Compiled) -> bool:
        """Whether the node gives what this forward saved to the compiled backward, to write over.

        It does where nobody else can have seen it: what was once a tensor in Python is held by it.
        """
        return isinstance(forward, native_extension().Library)

    def is_ready(self, notify: Callable[[], Any]) -> bool:
        """Whether a native node can be had at once.

        If not, it is built in the background, and the method `notify` of an object that is still
        alive then is called when that is done.
        """
        with _lock:
            if _state.is_ready or self.absence() is not None:
                return _state.is_ready
            if _state.thread is None and building.is_built(_library()):
                _state.is_ready = True
            elif _state.thread is None:
                log.warning(
                    "building the native node in the background (about half a minute, once for "
                    'this torch); until then, nodes run with backend "inductor"'
                )
                _state.thread = threading.Timer(PATIENCE, _build)
                _state.thread.name, _state.thread.daemon = "pullback-build", True
                _state.thread.start()
            if not _state.is_ready:
                _state.waiting.append(weakref.WeakMethod(notify))
            return _state.is_ready


BACKEND = NativeBackend()


def _build() -> None:
    try:
        building.build_library(_library(), lambda path: path)
    except Exception as error:
        _failure.append(_in_one_line(error))
        return
    with _lock:
        _state.is_ready = True
        waiting, _state.waiting = _state.waiting, []
    for one in waiting:
        notify = one()
        if notify is not None:
            notify()


def _run_once(code: Compiled, row: Sequence[Any], donated: Sequence[int]) -> None:
    """Let code for a GPU measure which of several block sizes it takes."""
    with torch.no_grad():
        given = [Layout.copy_of(x) if i in donated else x for i, x in enumerate(row)]
        realigned(code, row)(given)


def _result(source: Any) -> tuple[str, Any]:
    if isinstance(source, ValueSource):
        return ("given" if source.is_input else "made"), source.place
    return ("nothing", 0) if source is None else ("number", source)


# ---- the extension ----


def native_extension() -> Any:
    """The extension; raises `BackendError` where it cannot be built."""
    with _lock:
        missing = BACKEND.absence()
        if missing is None:
            try:
                return _loaded()
            except (BuildError, ImportError, OSError) as error:
                missing = _in_one_line(error)
                _failure.append(missing)
    raise BackendError(
        'backend "native" must be able to build its node here',
        got=missing,
        fix=_fix_of(missing),
    )


def _fix_of(missing: str) -> str:
    """What to do where the extension cannot be had, by the reason."""
    if toolchain.absence(python=True) is not None:
        return 'install a C++ compiler, or use backend="inductor"'
    if os.strerror(errno.ENOSPC) in missing:
        return building.SPACE
    return "do what it says; for a compiler that refuses, set CXX to another one"


def _library() -> building.Library:
    # It is compiled quickly, since all that takes time runs in kernels; and with no warnings.
    return building.Library("pullback_node", _SOURCE, flags=("-O1", "-w"), python=True)


@functools.cache
def _loaded() -> Any:
    if not building.is_built(_library()):
        log.info("building the native node: about half a minute, once for this torch")
    module = building.extension(_library())
    module.set_miss(MISS)
    return module


def _in_one_line(error: BaseException) -> str:
    if isinstance(error, BuildError):
        return f"its node could not be built: {error.facts['got'].splitlines()[0]}"
    lines = str(error).splitlines()
    return f"its node could not be loaded: {lines[0] if lines else type(error).__name__}"


# ---- what the extension is given ----


def _description(spec: NodeSpec) -> dict[str, Any]:
    sources = [one if isinstance(one, ValueSource) else None for one in spec.numbers]
    return {
        "name": f"{spec.name}Backward",
        "inputs": [_row(one) for one in spec.inputs],
        "needs": [one.needs for one in spec.inputs],
        "forward": spec.forward,
        "outputs": [_code(one) for one in spec.outputs],
        "saved": [_code(one) for one in spec.saved],
        "read": spec.read,
        "numbers": [None if isinstance(one, ValueSource) else one for one in spec.numbers],
        "number_sources": [0 if one is None else _code(one) for one in sources],
        "shadows": spec.shadows,
        "is_live": [place in spec.live for place in range(len(spec.outputs))],
        "cotangents": [_row(one) for one in spec.cotangents],
        "donated": spec.donated,
        "begin": _beginning(spec),
        "general": spec.general,
    }


def _row(layout: Layout) -> tuple[Any, ...]:
    return layout.dtype, layout.device, layout.shape, layout.stride


def _code(source: ValueSource) -> int:
    """A source as one number: an input as its place, what forward made as the complement of it."""
    return source.place if source.is_input else ~source.place


def _beginning(spec: NodeSpec) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A first backward: its compiled graph, the layouts of what it reads, whether to keep it."""

    def begin(row: Sequence[Any]) -> tuple[Any, ...]:
        found = [Layout.of(tensor, needs=False) for tensor in row[: spec.read]]
        kept = spec.kept or found
        if spec.demand is LayoutDemand.LAYOUT and list(kept) != found:
            # Hooks gave them back in another layout. It may be run with these: an index out of
            # range would end all use of a GPU.
            row = [*(one.empty().zero_() for one in kept), *row[spec.read :]]
        pull = spec.backward(row)
        layouts = [_row(one) for one in kept], [_row(one) for one in pull.cotangents]
        return pull.run, *layouts, pull.is_kept

    return begin
