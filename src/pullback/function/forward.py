"""Forward: the user's, then what is left to do after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.compiler import is_compiling

from pullback.errors import (
    DirtyNotReturnedError,
    ReturnedInputSavedError,
    SavedNonTensorError,
)
from pullback.function.replay import origin_of
from pullback.function.slots import (
    get_dirty,
    get_to_save,
    has_tangent,
    no_torch_function,
    set_to_save,
    unseen,
)
from pullback.function.unwritten import keep_arguments

if TYPE_CHECKING:
    from pullback.function.info import FunctionInfo

LIST = object()  # stands behind the outputs of a forward that returned a list


def make_run(info: FunctionInfo) -> Callable[..., Any]:
    """The forward of the shadow class: the user's, then what is left to do after it."""
    cls, has_setup = info.cls, info.signature.has_setup
    is_opaque = info.is_opaque

    def run(ctx: Any, *args: Any) -> Any:
        if is_opaque:
            output = _call_unseen(info, ctx, args)
        elif has_setup:
            output = cls.forward(*args)
            cls.setup_context(ctx, args, output)
        else:
            output = cls.forward(ctx, *args)
        # Every call pays for what follows, so the usual case is short: each saved tensor is an
        # input or the output, and there is nothing more to do.
        if ctx.__class__ is not info.plain or info.is_mixed or output.__class__ is list:
            return _close(info, ctx, args, output)
        if get_dirty(ctx) is not None:
            return _close(info, ctx, args, output)
        saved = get_to_save(ctx)
        if saved is not None:
            if has_setup and output.__class__ is tuple:
                return _close(info, ctx, args, output)
            for tensor in saved:
                if tensor is output and not has_setup:
                    continue
                for arg in args:
                    if arg is tensor and arg is not output:
                        break
                else:
                    return _close(info, ctx, args, output)
        return output

    return cast("Callable[..., Any]", unseen(run))


def _close(info: FunctionInfo, ctx: Any, args: tuple[Any, ...], output: Any) -> Any:
    """What is left to do after a forward that saved, kept or returned something unusual."""
    saved = get_to_save(ctx) or ()
    outputs = tuple(output) if isinstance(output, (tuple, list)) else (output,)
    is_recorded, state = bool(ctx.next_functions), ctx.__dict__
    if is_recorded:
        _require_saved_tensors(info, saved)
    if info.is_mixed:
        state["_pb_plain"] = tuple(i for i, a in enumerate(args) if not isinstance(a, Tensor))
    if get_dirty(ctx) is not None:
        _require_returned(info, ctx, args, outputs)
    if info.signature.has_setup:
        both = (*saved, *(ctx.saved_for_forward or ()))
        _require_not_returned(info, ctx, args, both, outputs)
    kept = [*(ctx._pb_kept or ())]
    if ctx._pb_data:
        kept += ctx.saved_data.hand_over(len(kept))
    if info.completes and is_recorded:
        state["_pb_arguments"] = keep_arguments(ctx, args, saved, kept)
    if kept and is_recorded:
        state["_pb_user_saves"] = len(saved)
        state["_pb_kept"] = kept if has_tangent(args) else None  # a jvp that follows reads them
        saved = (*saved, *kept)
        set_to_save(ctx, saved)
    elif kept:
        state["_pb_kept"] = kept  # nothing is recorded: only jvp may still ask for them
    # A compiler traces one backward and keeps its ops: there is no second to prepare for.
    if is_recorded and not is_compiling():
        with no_torch_function():
            origin = origin_of(ctx, args, saved, outputs)
        if origin is not None:
            ctx._pb_become_keeping()
            state["_pb_origin"] = origin
    if isinstance(output, list):
        ctx._pb_become_keeping()
        state["_pb_list_output"] = True
        return (*output, LIST)
    return output


def _require_saved_tensors(info: FunctionInfo, saved: tuple[Any, ...]) -> None:
    for position, tensor in enumerate(saved):
        if not (tensor is None or isinstance(tensor, Tensor)):
            raise SavedNonTensorError(
                f"`{info.name}`: `save_for_backward` must be given tensors or `None`",
                at=info.signature.place,
                got=f"{type(tensor).__name__} as argument {position}",
                fix="keep it as an attribute of `ctx`, or in `ctx.saved_data`",
                torch="save_for_backward can only save variables, but argument "
                f"{position} is of type {type(tensor).__name__}",
            )


def _call_unseen(info: FunctionInfo, ctx: Any, args: tuple[Any, ...]) -> Any:
    """The user's forward, out of the compiler's sight."""
    cls = info.cls
    if not info.signature.has_setup:
        return info.opaque(cls.forward)(ctx, *args)
    output = info.opaque(cls.forward)(*args)
    info.opaque(cls.setup_context)(ctx, args, output)
    return output


def _require_returned(info: FunctionInfo, ctx: Any, args: tuple[Any, ...], outputs: Any) -> None:
    """Every tensor marked dirty is returned. (PyTorch warns of one that is not an input.)"""
    for place, tensor in enumerate(get_dirty(ctx)):
        names = [info.signature.name(i) for i, arg in enumerate(args) if arg is tensor]
        name = names[0] if names else f"argument {place} of `mark_dirty`"
        if not any(tensor is item for item in outputs):
            raise DirtyNotReturnedError(
                f"`{info.name}.forward` must return `{name}`, which it marked dirty",
                at=info.signature.place,
                got=f"{len(outputs)} output{'s' * (len(outputs) != 1)}, none of them `{name}`",
                fix=f"return `{name}` itself, or work on a clone and do not mark it",
                torch="Some elements marked as dirty during the forward method were not returned "
                "as output. The inputs that are modified inplace must all be outputs of the "
                "Function.",
            )


def _require_not_returned(
    info: FunctionInfo, ctx: Any, args: tuple[Any, ...], saved: tuple[Any, ...], outputs: Any
) -> None:
    """With setup_context, no input is both returned as it is and saved."""
    dirty = get_dirty(ctx) or ()
    for position, arg in enumerate(args):
        if not isinstance(arg, Tensor) or any(arg is item for item in dirty):
            continue
        if any(arg is item for item in outputs) and any(arg is item for item in saved):
            name = info.signature.name(position)
            raise ReturnedInputSavedError(
                f"`{info.name}` must not save `{name}` and return it as it is",
                at=info.signature.place,
                got=f"`{name}` among the outputs and among the saved tensors",
                fix=f"return `{name}.view_as({name})`, or write `forward(ctx, ...)` in one piece",
                torch="An input that has been returned as-is as output is being saved for "
                "backward. This is not supported if you override setup_context. You should return "
                "and save a view of the input instead, e.g. with x.view_as(x) or setup ctx inside "
                "the forward function itself.",
            )
