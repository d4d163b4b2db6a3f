"""PyTorch's private parts that a Function needs, each in this one place.

The C slots behind the names of a context (`to_save`, `dirty_tensors`, ...), PyTorch's own `apply`,
and a few questions to the engine. `tests/function/test_slots.py` notices when one of them moves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch._C._functorch import unwrap_if_dead as unwrap_if_dead
from torch.autograd import forward_ad
from torch.autograd import function as torch_function
from torch.autograd.function import BackwardCFunction, FunctionMeta, _SingleLevelFunction
from torch.autograd.function import Function as TorchFunction
from torch.utils import _python_dispatch

_context: Any = BackwardCFunction

get_to_save = _context.to_save.__get__
set_to_save = _context.to_save.__set__
get_dirty = _context.dirty_tensors.__get__
set_dirty = _context.dirty_tensors.__set__
get_non_differentiable = _context.non_differentiable.__get__
set_non_differentiable = _context.non_differentiable.__set__
set_materialize = _context.materialize_grads.__set__
get_saved_tensors = _context.saved_tensors.__get__
get_needs = _context.needs_input_grad.__get__
set_needs = _context.needs_input_grad.__set__

no_setup_context: Any = _SingleLevelFunction.setup_context
no_backward: Any = TorchFunction.backward
no_vjp: Any = TorchFunction.vjp
no_vmap: Any = TorchFunction.vmap
no_jvp: Any = TorchFunction.jvp

transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
_top_transform: Any = torch._C._functorch.peek_interpreter_stack
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
PlainDispatchMode: Any = _python_dispatch.TorchDispatchMode
without_modes: Any = _python_dispatch._disable_current_modes
below_ad_guard: Any = torch._C._AutoDispatchBelowADInplaceOrView
no_torch_function: Any = torch._C.DisableTorchFunction

_torch_apply: Any = next(vars(c)["apply"] for c in TorchFunction.__mro__ if "apply" in vars(c))


def torch_apply(cls: type) -> Callable[..., Any]:
    """PyTorch's own `apply`, bound to `cls`: the way for functorch transforms."""
    return cast("Callable[..., Any]", _torch_apply.__get__(None, cls))


def c_apply(cls: type) -> Callable[..., Any]:
    """The C function under PyTorch's `apply`, bound to `cls`."""
    return cast("Callable[..., Any]", super(TorchFunction, cast(Any, cls)).apply)


def new_class(name: str, base: type, space: dict[str, Any]) -> Any:
    """A Function class made by hand; Dynamo knows one by its exact metaclass."""
    make: Any = FunctionMeta
    return make(name, (base,), space)


def top_transform() -> str:
    """The innermost functorch transform around: "Grad", "Vmap", "Jvp", ..."""
    return str(_top_transform().key().name)


class SeenMeta(FunctionMeta):
    """The metaclass of a Function whose `apply` Dynamo reads as the Python that it is.

    Dynamo has rules of its own for `apply` of a class whose metaclass is exactly PyTorch's.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        type.__setattr__(cls, name, value)
        if name in ("backward", "vjp"):
            cls._pb_choose_apply()  # type: ignore[attr-defined]

    @property  # type: ignore[misc]
    def __class__(cls) -> type:
        """The metaclass, asked for by each `isinstance` that has not found its answer in the type.

        Dynamo asks many before it decides how to read a class. One that the user allowed in its
        graphs (`torch.compiler.allow_in_graph`) is PyTorch's own kind from then on: only of those
        does Dynamo take `apply` as one call.
        """
        if _is_allowed_in_graph(cls):
            be_seen(cls, seen=False)
        return type(cls)


def be_seen(cls: Any, *, seen: bool = True) -> None:
    """Let Dynamo read `cls.apply` as it is written, or treat it as any Function's again."""
    seen = seen and not _is_allowed_in_graph(cls)
    object.__dict__["__class__"].__set__(cls, SeenMeta if seen else FunctionMeta)


def _is_allowed_in_graph(cls: Any) -> bool:
    rules = sys.modules.get("torch._dynamo.trace_rules")  # there once it was allowed
    is_allowed = getattr(rules, "is_callable_allowed", None)
    return is_allowed is not None and bool(is_allowed(cls))


def is_inference(tensor: torch.Tensor) -> bool:
    """Whether `tensor` was made in inference mode, asked behind the back of torch functions."""
    with no_torch_function():
        return tensor.is_inference()


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` was changed in place; 0 for an inference tensor, which does not count."""
    return 0 if is_inference(tensor) else tensor._version


def storage_key(tensor: torch.Tensor) -> int:
    """A number for the memory of `tensor`: tensors that share it have the same one."""
    return int(tensor.untyped_storage()._cdata)


def op_schema(op: Any) -> Any:
    """The schema of a registered op: its name, `arguments` and `returns`; None if it has none."""
    return getattr(op, "_schema", None)


def has_no_values(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether `tensors` are being traced or have no values to look at."""
    plain = (torch.Tensor, torch.nn.Parameter)
    return _modes() > 0 or any(type(t) not in plain or t.is_meta for t in tensors)


def in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is open."""
    return forward_ad._current_level >= 0


is_jit_tracing: Callable[[], bool] = torch._C._is_tracing
"""Whether `torch.jit.trace` records what runs: sizes are tensors then, and ops of the program are
all that it can record."""

_is_batched: Any = torch._C._functorch.is_batchedtensor
_is_legacy_batched: Any = torch._C._functorch.is_legacy_batchedtensor


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether `tensor` stands for many under a vmap, so that it has no memory of its own."""
    return bool(_is_batched(tensor) or _is_legacy_batched(tensor))


def has_tangent(args: Iterable[Any]) -> bool:
    """Whether forward-mode differentiation comes with `args`, so that a jvp follows forward."""
    if forward_ad._current_level < 0:
        return False
    unpack: Any = forward_ad.unpack_dual
    tensors = (arg for arg in args if isinstance(arg, torch.Tensor))
    with forward_ad._set_fwd_grad_enabled(True):  # PyTorch turns it off around forward
        return any(unpack(tensor).tangent is not None for tensor in tensors)


_any_autocast: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack


def is_ordinary_moment() -> bool:
    """Whether calls of this thread go to their kernels, or to autocast and autograd alone.

    No transform, no forward mode, no mode that watches or changes ops.
    """
    return (
        not transforms_active()
        and forward_ad._current_level < 0
        and not _modes()
        and not _function_modes()
    )


def has_autocast() -> bool:
    """Whether autocast is on in this thread, for some kind of device."""
    return _any_autocast()


def forward_is_over(ctx: Any) -> bool:
    """Whether the outputs of a context's forward are registered: forward is over."""
    return bool(ctx._input_metadata)


def inputs_like(node: Any) -> Any:
    """Shapes and dtypes of what `node` gave in forward; empty where this torch does not say."""
    return getattr(node, "_input_metadata", ())


def will_run(node: Any) -> bool:
    """Whether the backward under way goes through `node`; True when none is under way."""
    return engine_runs(node) is not False


def engine_runs(node: Any) -> bool | None:
    """As `will_run`; None for a leaf that `autograd.grad` was asked for, which is needed.

    For such a leaf the engine refuses to answer, by an error that takes tens of microseconds.
    """
    if torch._C._current_graph_task_id() == -1:
        return True
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        return None


_frames: Any = torch._C._dynamo.eval_frame


def unseen(function: Any) -> Any:
    """`function`, whose frames Dynamo leaves alone, as it does those of PyTorch's own files.

    The functions marked so stand in for what PyTorch does there. Frames that they call are looked
    at again.
    """
    action = _frames._FrameAction
    strategy = _frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    _frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def torchs_own(function: Any) -> Any:
    """`function`, which Dynamo then takes for a part of `torch.autograd`.

    `torch.compile(F.apply)` compiles what `F.apply` does only where `apply` is in one of PyTorch's
    own files, which Dynamo has rules for; it asks for the folder in the code object's file name, in
    every release from 2.11 to 2.15, with no `..` in it. So `pullback/function/dispatch.py` is
    `torch/autograd/pullback/function/dispatch.py` for this one function. Tracebacks and debuggers
    find its lines by the loader of the module. (For an error that is not caught, Python up to 3.12
    reads files by itself, and prints the number.)
    """
    code = function.__code__
    folder = os.path.dirname(torch_function.__file__)
    path = os.path.join(folder, "pullback", "function", os.path.basename(code.co_filename))
    function.__code__ = code.replace(co_filename=path)
    return function


def hidden_from_dynamo(function: Any) -> Any:
    """Mark `function`, as `torch.compiler.disable` does, without importing the compiler for it."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = "is_traceable is False"
    function._torchdynamo_disable_recursive = True
    return function
