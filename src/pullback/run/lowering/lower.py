"""PyTorch's Inductor, in this one place: a retraced graph as compiled code in a folder.

All of it is private in PyTorch. The code is a Python module, which Inductor writes, with kernels
in C++ or Triton beside it; its function `call` takes one list and returns a tuple.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pullback.graph.copies import copied_graph
from pullback.graph.cost import is_view
from pullback.graph.values import tensor_of
from pullback.run.disk import toolchain
from pullback.run.disk.cache import compiler_folder, headers
from pullback.run.disk.private import intrusion_of
from pullback.run.lowering.retrace import RetracedGraph
from pullback.run.nodes.node import Compiled

# Names that a version of torch does not know are left out.
SETTINGS: Mapping[str, Any] = {
    # As eager: the same random numbers, and no checks of what our signature has checked.
    "fallback_random": True,
    "size_asserts": False,
    "alignment_asserts": False,
    "nan_asserts": False,
    # A plain function, and no memory kept between calls.
    "graph_partition": False,
    "cpp_wrapper": False,
    "triton.cudagraphs": False,
    # Nothing is measured while compiling.
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "freezing": False,
    # The cache is ours.
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
}


@functools.cache
def device_absence(device: str = "cpu") -> str | None:
    """Why nothing can be compiled for this kind of device, in one line; None if it can."""
    if importlib.util.find_spec("torch._inductor.compile_fx") is None:
        return f"this torch ({torch.__version__}) has no Inductor"
    if device == "cpu":
        return _compiler_absence()
    if importlib.util.find_spec("triton") is None:
        return f"no Triton is installed, which compiles for {device}"
    return None


def _compiler_absence() -> str | None:
    missing = toolchain.absence(python=True)
    if missing is None and _program() is None:
        return "CXX must name one program, without options, for Inductor to compile with"
    return missing


def _program() -> str | None:
    """The C++ compiler as one program, which is all that Inductor takes."""
    command = toolchain.compiler() or ()
    return command[0] if len(command) == 1 else None


@functools.cache
def _torch() -> SimpleNamespace:
    """What we use of Inductor. It takes a second to import."""
    with _quiet():
        return _imported()


def _imported() -> SimpleNamespace:
    _choose_assembler()
    from torch._guards import TracingContext, tracing
    from torch._inductor import codecache, config, cpu_vec_isa
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    return SimpleNamespace(
        compile=compile_fx_inner,
        config=config,
        decompositions=select_decomp_table,
        codecache=codecache,
        tracing=tracing,
        context=TracingContext,
        instructions=cpu_vec_isa,
    )


def _choose_assembler() -> None:
    """Let Triton assemble with the `ptxas` that comes with torch, from the first kernel on.

    Inductor does so too, but after it has asked Triton which one that is. The answer is part of the
    name under which a kernel is kept, so a second process would look for its kernels under another
    name, and compile all of them again.
    """
    try:
        from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
    except ImportError:  # a torch that knows of one only
        return
    _set_triton_ptxas_path()


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What Inductor wants ops to be made of before it compiles them."""
    with _settings():
        table: Mapping[Any, Callable[..., Any]] = _torch().decompositions()
        return table


@dataclass(frozen=True, slots=True)
class Lowered:
    """Compiled code: a function, and what `load_lowered` makes it from.

    `module` is the name of its module in the folder, or "" if it has none; `trusted` says whether
    the compiler knew all that the processor can do, and `instructions` for which of that the text
    was written: compiled for others, it leaves elements out.
    """

    call: Compiled
    module: str
    constants: Mapping[str, torch.Tensor]
    trusted: bool
    instructions: str


def lower(
    retraced: RetracedGraph,
    folder: Path,
    *,
    is_backward: bool,
    donated: Sequence[int] = (),
    keeps_casts: bool = False,
) -> Lowered:
    """Compile `retraced` into `folder`.

    Of a backward graph, the arguments at the places `donated` may be written over by the code.
    Inductor leaves out casts to half precision and back, unless the code `keeps_casts`.
    """
    end = retraced.module.graph.output_node()
    # Otherwise a result may get other strides than it has in eager.
    end.meta["user_visible_output_idxs"] = list(range(len(end.args[0])))  # type: ignore[arg-type]
    trusted = True
    with _inside(folder), _own_headers(), _tracing(retraced, donated):
        try:
            with _trusting_the_compiler():
                compiled = _compile(retraced, is_backward=is_backward, keeps_casts=keeps_casts)
                instructions = _instructions()
        except Exception as error:
            _forget_the_processor()
            if "CppCompileError" not in f"{type(error).__name__} {error}":
                raise
            trusted = False
            try:
                compiled = _compile(retraced, is_backward=is_backward, keeps_casts=keeps_casts)
            except Exception:
                _forget_the_processor()  # a compiler that failed here may work later
                raise
            instructions = _instructions()
    if trusted and not any(folder.rglob("*.so")):
        _forget_the_processor()  # nothing has shown that the trust was right
    module = getattr(compiled, "cache_key", "")
    constants = getattr(compiled, "constants", None) or {}
    call = getattr(compiled, "current_callable", None) or compiled
    return Lowered(call, module, constants, trusted, instructions)


def _tracing(
    retraced: RetracedGraph, donated: Sequence[int]
) -> contextlib.AbstractContextManager[Any]:
    """What Inductor asks about the graph that it compiles."""
    context = _torch().context(retraced.stage.mode)
    context.fw_metadata = SimpleNamespace(bw_donated_idxs=list(donated), static_input_indices=[])
    tracing: contextlib.AbstractContextManager[Any] = _torch().tracing(context)
    return tracing


def _compile(retraced: RetracedGraph, *, is_backward: bool, keeps_casts: bool) -> Any:
    # It changes the module that it is given.
    module = torch.fx.GraphModule(retraced.module, copied_graph(retraced.module.graph)[0])
    more: dict[str, Any] = {"emulate_precision_casts": keeps_casts}
    if keeps_casts:
        for node in module.graph.nodes:
            if _has_dtype(node, torch.float16, torch.bfloat16):
                node.meta["low_precision_pointwise_barrier"] = True  # what it gives is rounded
    if _growth(module.graph) >= _GROWTH:
        more["realize_opcount_threshold"] = _OPS
    if any(_has_dtype(node, torch.float64) for node in module.graph.nodes):
        more["triton.mix_order_reduction"] = False  # it sums in single precision on the way
    if retraced.stage.dynamic and torch.torch_version.TorchVersion(torch.__version__) >= "2.14":
        more["size_asserts"] = True  # since then, sizes are read from arguments for these alone
    with _settings(**more):
        return _torch().compile(module, list(retraced.arguments), is_backward=is_backward)


def _has_dtype(node: torch.fx.Node, *dtypes: torch.dtype) -> bool:
    value = tensor_of(node)
    return value is not None and value.dtype in dtypes


_GROWTH, _OPS = 1000, 8
"""Inductor writes a pointwise op again into each op that uses it, and only afterwards sees that it
has it already. In a loop that grows by a factor with each turn: ten leapfrog steps took minutes.
Where one op would come to be of more than `_GROWTH`, those of more than `_OPS` that are used twice
become values of their own. They are fused all the same, so the code is as fast: 5 s instead."""


def _growth(graph: torch.fx.Graph) -> int:
    """How many ops the largest pointwise op consists of, if all before it are written into it."""
    sizes: dict[torch.fx.Node, int] = {}
    for node in graph.nodes:
        is_inlined = torch.Tag.pointwise in getattr(node.target, "tags", ()) or is_view(node)
        sizes[node] = 1 + sum(sizes[n] for n in node.all_input_nodes) if is_inlined else 1
    return max(sizes.values(), default=0)


def load_lowered(
    folder: Path,
    module: str,
    constants: Mapping[str, torch.Tensor],
    *,
    trusted: bool,
    instructions: str,
) -> Compiled:
    """The function that `lower` compiled into `folder`; raises where it is for other instructions.

    Inductor would compile its text for those that it now takes the processor to have.
    """
    (path,) = folder.rglob(f"{module}.py")
    trusting = _trusting_the_compiler() if trusted else contextlib.nullcontext()
    with _inside(folder), trusting, _without_headers(), _settings():
        if _instructions() != instructions:
            _forget_the_processor()  # what it was asked before may have failed by chance
            if _instructions() != instructions:
                raise LookupError(f"the code is for {instructions}, not for {_instructions()}")
        modules = _torch().codecache.PyCodeCache
        call: Compiled = modules.load_by_key_path(
            module, str(path), [], dict(constants) or None
        ).call
        return call


# ---- around Inductor ----


@contextlib.contextmanager
def _trusting_the_compiler() -> Iterator[None]:
    """Let the compiler be taken to know every instruction that the processor has.

    Inductor compiles up to five small libraries to find out, and starts a Python that loads each:
    more than our own kernel takes. A compiler that is too old fails to compile that one.
    """
    kind = _torch().instructions.VecISA
    asks = kind.check_build
    kind.check_build = lambda self, code: True
    try:
        yield
    finally:
        kind.check_build = asks


@contextlib.contextmanager
def _without_headers() -> Iterator[None]:
    """Let no header be preprocessed: what would be compiled with it is compiled already."""
    module = _torch().codecache
    prepares = module._precompile_header
    module._precompile_header = lambda *args, **kwargs: ""
    try:
        yield
    finally:
        module._precompile_header = prepares


_HEADERS = ("_HEADER_DIR", "_HEADER_LOCK_DIR")


@contextlib.contextmanager
def _own_headers() -> Iterator[None]:
    """Let Inductor keep the headers that it precompiles in our cache.

    Else they are in a folder of the temp directory whose name everybody knows, and whoever has made
    that first writes part of the code that is compiled.
    """
    module, before = _torch().codecache, _places(_torch().codecache)
    _move_headers(headers())
    try:
        yield
    finally:
        for name, place in before.items():
            setattr(module, name, place)


def _move_headers(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    module = _torch().codecache
    for name, place in zip(_places(module), (folder, folder / "locks"), strict=False):
        setattr(module, name, str(place))


def _places(module: Any) -> dict[str, str]:
    """The folders of the precompiled headers; none in a torch that keeps them elsewhere."""
    places = {name: getattr(module, name, "") for name in _HEADERS}
    return places if all(places.values()) else {}


def _instructions() -> str:
    """The instructions that Inductor writes and compiles code for."""
    return str(_torch().instructions.pick_vec_isa())


def _forget_the_processor() -> None:
    """Let Inductor find out again what the processor and the compiler have in common."""
    instructions = _torch().instructions
    for kind in (type(each) for each in instructions.supported_vec_isa_list):
        for name in ("__bool__", "_VecISA__bool__impl", "is_avx512_bf16_supported"):
            clear = getattr(getattr(kind, name, None), "cache_clear", None)
            if clear is not None:
                clear()
    instructions.valid_vec_isa_list.cache_clear()


@contextlib.contextmanager
def _settings(**more: Any) -> Iterator[None]:
    config, wanted = _torch().config, {**SETTINGS, **more}
    if _program() is not None:
        wanted["cpp.cxx"] = (_program(),)
    if not shutil.which("openssl") or not _places(_torch().codecache):
        # Torch takes checksums with `openssl`; and a folder that we cannot name is not ours.
        wanted["cpp_cache_precompile_headers"] = False
    known = {name: value for name, value in wanted.items() if _has(config, name)}
    with config.patch(known), _quiet():
        yield


def _has(config: Any, name: str) -> bool:
    try:
        functools.reduce(getattr, name.split("."), config)
    except AttributeError:
        return False
    return True


_TALKERS = ("torch._inductor", "torch.utils.cpp_extension", "torch.fx.experimental")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warning and no log line of Inductor, unless the user asked for torch's logs."""
    logs = () if os.environ.get("TORCH_LOGS") else tuple(map(logging.getLogger, _TALKERS))
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Let Inductor and Triton keep their files in `folder`; only the environment can tell them."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    for name, place in zip(_VARIABLES, (folder, folder / "triton"), strict=True):
        os.environ[name] = str(place)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def compile_privately() -> None:
    """Let `torch.compile` load nothing that others can write, in this process from now on.

    By default its folders are in the temp directory, by names that everybody knows.
    """
    try:
        folder = compiler_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # the cache is of no use
        folder = Path(tempfile.mkdtemp(prefix="pullback-"))
    for name, place in (
        ("TORCHINDUCTOR_CACHE_DIR", folder),
        ("TRITON_CACHE_DIR", folder / "triton"),
    ):
        given = os.environ.get(name)
        if not given or intrusion_of(Path(given).resolve()):
            os.environ[name] = str(place)
    _move_headers(folder / "headers")
    if not _places(_torch().codecache):
        _torch().config.cpp_cache_precompile_headers = False
