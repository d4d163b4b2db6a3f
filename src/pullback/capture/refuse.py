"""What cannot be captured, and what to do about it: every refusal of capture is worded here.

`refusing` turns what PyTorch raises on tensors without values into a `CaptureError` at the user's
file and line. Errors that the user's own code raises, and those of pullback, pass unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import HigherOrderOperator

from pullback.capture.fake import NoFakeKernel, SizeNeeded, ValueNeeded, is_fake
from pullback.capture.names import program_name, program_place
from pullback.capture.places import is_users, is_users_error, place_of_error, runs_inside
from pullback.capture.watch import CUSTOM, OP, WatchedCall
from pullback.errors import CaptureError, PullbackError, type_and_line
from pullback.function.slots import op_schema, storage_key, transforms_active

_WHERE = "write the choice with `torch.where`, or make it before the call and pass it as a bool"
_READ = "keep it a tensor, or read it before the call and pass it as a number"
_SIZE = "use a form of fixed size, such as a mask with `torch.where`, or make it before the call"
_OTHER = "write it in ops that do without"
_CUSTOM = "put that part into a custom op: `torch.library.custom_op` with `register_fake`"

# What a read of values is called, and what to do instead: by the name of the call.
_READS = {
    "bool": ("a decision on the value of a tensor", _WHERE),
    "item": ("`.item()`, which reads the value of a tensor", _READ),
    "tolist": ("`.tolist()`, which reads the values of a tensor", _READ),
    "int": ("`int(...)` of a tensor", _READ),
    "float": ("`float(...)` of a tensor", _READ),
    "complex": ("`complex(...)` of a tensor", _READ),
    "index": ("a tensor used as an index or a size", _READ),
    "contains": ("`in`, which compares the values of a tensor", _WHERE),
    "equal": ("`torch.equal`, which compares the values of tensors", _WHERE),
    "allclose": ("`torch.allclose`, which compares the values of tensors", _WHERE),
    "is_nonzero": ("a decision on the value of a tensor", _WHERE),
    "numpy": ("a NumPy array of a tensor's values", f"use torch ops, or {_CUSTOM}"),
    "array": ("a NumPy array of a tensor's values", f"use torch ops, or {_CUSTOM}"),
    "data_ptr": ("the address of a tensor's memory", _CUSTOM),
}

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def refusing(program: Any, place: Callable[[], str] = str) -> Iterator[None]:
    """Turn what stops the capture of `program` into an error that says where and what to do.

    `place` gives the user's place that is being differentiated, for what PyTorch itself raises.
    """
    try:
        yield
    except CaptureError as error:
        error.facts["at"] = error.facts["at"] or program_place(program)
        raise
    except PullbackError:
        raise
    except Exception as error:
        refusal = _refusal(program_name(program), error, place())
        if refusal is not None:
            raise refusal from None
        if is_users_error(error):
            raise
        raise _unknown(program, error) from error


def may_be_of_sizes(error: Exception) -> bool:
    """Whether an error may be that of a call which takes numbers, and was given symbols."""
    return not isinstance(error, PullbackError) and _refusal("", error, "") is None


def _refusal(name: str, error: Exception, late: str) -> CaptureError | None:
    """The error for what is known to stop a capture, at the place that `late` says if none is."""
    users = place_of_error(error)
    place, call = users or late, _call_of(error)
    if (graphs := _nested_op(error)) is not None:
        return _nested_graph(name, place, f"`{graphs.name()}`")
    if (found := _value_read(error, call)) is not None:
        if users or not late:
            return _needs(name, place, *found)
        got = f"the derivative of that line, which needs {found[0]}"
        return _needs(name, place, got, _OTHER)
    if isinstance(error, NoFakeKernel):
        return _unfaked(name, place, _op_name(error))
    if call is not None and call.kind == CUSTOM and "fake impl" in str(error):
        return _unfaked(name, place, call.name)
    if type(error).__module__.startswith("torch._dynamo"):
        return _nested_graph(name, place, "a call that only `torch.compile` can make")
    return None


def _value_read(error: Exception, call: WatchedCall | None) -> tuple[str, str] | None:
    """What read the values of a tensor, if that is why an error was raised, and what to do."""
    if call is not None and call.name in _READS:
        return _READS[call.name]
    if isinstance(error, TypeError) and "FakeTensor" in str(error):
        return "a tensor where a number is needed: its value is read", _READ
    if isinstance(error, ValueNeeded):
        op = f"`{_op_name(error)}`, which reads the value of a tensor"
        if call is not None and call.kind == OP:
            return f"`{call.name}`, in which PyTorch calls {op}", f"{_OTHER}, or {_READ}"
        return op, _READ
    if isinstance(error, SizeNeeded):
        op = f"`{_op_name(error)}`, whose result has as many elements as the values say"
        return op, _SIZE
    return None


def _unknown(program: Any, error: Exception) -> CaptureError:
    name = program_name(program)
    return CaptureError(
        f"`{name}` must run on tensors without values",
        at=place_of_error(error) or program_place(program),
        got=type_and_line(error),
        fix=f"call `{name}` itself on the same examples; if it runs there, {_CUSTOM}",
    )


def _unfaked(name: str, place: str, op: str) -> CaptureError:
    own = not op.startswith("aten::")
    return CaptureError(
        f"`{name}` must be made of ops that can run on tensors without values",
        at=place,
        got=f"`{op}`, which has no fake kernel",
        fix=f'give it one: `torch.library.register_fake("{op}")`' if own else _CUSTOM,
    )


def _nested_graph(name: str, place: str, got: str) -> CaptureError:
    return CaptureError(
        f"`{name}` must not call other graphs (`torch.cond`, `torch.while_loop`, ...)",
        at=place,
        got=got,
        fix="write the choice with `torch.where`, and the loop in Python",
    )


def unreadable(name: str, call: str, place: str) -> CaptureError:
    """The error for a call that takes values out of tensors."""
    got, fix = _READS[call]
    return _needs(name, place, got, fix)


def asked_beginning(name: str, place: str) -> CaptureError:
    """The error for a program in units that asks where a tensor begins in its memory."""
    return CaptureError(
        f"`{name}` must do the same work wherever its tensors begin in their memory",
        at=place,
        got="`storage_offset`",
        fix=f"use `pb.combine({name}, ...)`, which follows it, or slice the tensor",
    )


def reads_values(call: str) -> bool:
    """Whether a call of this name takes values out of tensors."""
    return call in _READS


def _needs(name: str, place: str, got: str, fix: str) -> CaptureError:
    rule = f"`{name}` must do the same work whatever the values of its tensors are"
    return CaptureError(rule, at=place, got=got, fix=fix)


def _call_of(error: BaseException) -> WatchedCall | None:
    """The call that raised `error`: the outermost one below the deepest of the user's frames."""
    found = None
    entry = error.__traceback__
    while entry is not None:
        call = entry.tb_frame.f_locals.get("call")
        if is_users(entry.tb_frame):
            found = None
        elif found is None and isinstance(call, WatchedCall):
            found = call
        entry = entry.tb_next
    return found


def _nested_op(error: BaseException) -> Any:
    """The op on graphs (`cond`, `while_loop`, `scan`, ...) inside of which `error` was raised."""
    entry = error.__traceback__
    while entry is not None:
        owner = entry.tb_frame.f_locals.get("self")
        if isinstance(owner, HigherOrderOperator):
            return owner
        entry = entry.tb_next
    return None


def _op_name(error: Any) -> str:
    return str(error.func).rsplit(".", 1)[0].replace(".", "::", 1)


# ---- what is asked of a program before and while it is captured ----


def require_needs(
    name: str, tensors: Sequence[tuple[str, Tensor]], needs: Sequence[bool] | None
) -> list[bool]:
    """Which tensors need a gradient: `needs`, or those of the examples that require one."""
    if needs is None:
        return [tensor.requires_grad for _, tensor in tensors]
    flags = [bool(need) for need in needs]
    if len(flags) != len(tensors):
        raise CaptureError(
            f"`needs` must say for each tensor among the arguments of `{name}` whether it needs a "
            "gradient",
            expected=f"{len(tensors)}, for ({', '.join(n for n, _ in tensors)})",
            got=f"{len(flags)}",
        )
    for (argument, tensor), need in zip(tensors, flags, strict=True):
        if need and not (tensor.is_floating_point() or tensor.is_complex()):
            raise CaptureError(
                f"`{argument}` of `{name}` must be of a dtype that has gradients to need one",
                expected="a floating-point or complex dtype",
                got=f"{tensor.dtype}",
                fix="say False in its place in `needs`",
            )
    return flags


def require_mask(name: str, count: int, used: Sequence[bool] | None) -> list[bool]:
    """Which differentiable outputs get a cotangent: `used`, or all of them."""
    flags = [True] * count if used is None else [bool(flag) for flag in used]
    if len(flags) != count:
        raise CaptureError(
            f"`used` must say for each differentiable output of `{name}` whether it is used",
            expected=f"{count}",
            got=f"{len(flags)}",
        )
    return flags


def require_strided(name: str, argument: str, tensor: Tensor) -> None:
    """Raise unless `tensor` is an ordinary one: dense, and of no subclass that acts on ops."""
    got = ""
    if tensor.is_nested:
        got = "a nested tensor"
    elif tensor.is_quantized:
        got = "a quantized tensor"
    elif tensor.layout is not torch.strided:
        got = f"{tensor.layout}"
    elif type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ and not is_fake(tensor):
        got = type(tensor).__name__
    if got:
        raise CaptureError(
            f"`{argument}` of `{name}` must be an ordinary dense tensor",
            got=got,
            fix="convert it before the call",
        )


def require_own_generator_free(name: str, call: WatchedCall) -> None:
    """Raise when random numbers are drawn from a generator of the program's own."""
    if any(isinstance(value, torch.Generator) for value in (*call.args, *call.kwargs.values())):
        raise CaptureError(
            f"`{name}` must draw random numbers from PyTorch's own generator",
            at=call.place,
            got=f"`{call.name}` with a generator of its own",
            fix="leave `generator` out, or draw before the call and pass the numbers",
        )


def require_drawn_once(name: str, call: WatchedCall) -> None:
    """Raise when `checkpoint` draws again, from a restored state, what forward has drawn."""
    if runs_inside(call.frame, "torch.utils.checkpoint"):
        raise CaptureError(
            f"`{name}` must not draw random numbers inside `torch.utils.checkpoint`",
            at=call.place,
            got=f"`{call.name}`, run again in backward",
            fix="leave the checkpoint out: what is saved is chosen after the capture",
        )


def require_backward_free(name: str, call: WatchedCall) -> None:
    """Raise when a program runs backward by itself."""
    if call.name == "backward":
        raise CaptureError(
            f"`{name}` must leave the `.grad` of its tensors to its caller",
            at=call.place,
            got="a call of `backward`",
            fix="use `torch.autograd.grad` for a gradient that is part of the computation",
        )


def require_hook_free(name: str, call: WatchedCall) -> None:
    """Raise when a program hangs hooks on its tensors."""
    if call.name in ("register_hook", "register_post_accumulate_grad_hook"):
        raise CaptureError(
            f"`{name}` must not hang hooks on its tensors between its units",
            at=call.place,
            got=f"a call of `{call.name}`",
            fix="write what the hook does as the backward of a Function",
        )


def require_transform_free(name: str, call: WatchedCall) -> None:
    """Raise when a call is made inside a `torch.func` transform."""
    if transforms_active():
        raise CaptureError(
            f"`{name}` must use `torch.func` transforms inside of Functions only",
            at=call.place,
            got=f"`{call.name}` inside a transform",
            fix="put the transformed part into the `forward` of a Function",
        )


def unseen_apply(name: str, function: str, place: str) -> CaptureError:
    """The error for a Function whose `apply` was called in a way that cannot be watched."""
    return CaptureError(
        f"`{name}` must call `{function}.apply` by that name",
        at=place,
        got=f"`{function}.forward`, called directly or through an alias of `apply`",
        fix=f"write `{function}.apply(...)` in the place of the alias",
    )


def hidden_call(name: str, op: str, place: str) -> CaptureError:
    """The error for an op that compiled code made."""
    return CaptureError(
        f"`{name}` must make its calls in Python, where they can be seen",
        at=place,
        got=f"`{op}`, called by compiled code",
        fix="call the compiled code in the `forward` of a Function, or make it a custom op",
    )


def require_kept(name: str, value: Any) -> None:
    """Raise unless `value`, which is no tensor, may stand among the outputs as it is."""
    if isinstance(value, (*_PLAIN, *_TORCH_PLAIN, *_SYMBOLIC)):
        return
    raise CaptureError(
        f"`{name}` must return tensors, numbers, strings and `None`, in tuples, lists and dicts",
        got=f"{type(value).__name__}",
        fix="return its tensors one by one",
    )


def require_memory_apart(
    name: str, changed: Sequence[tuple[str, Tensor]], every: Sequence[tuple[str, Tensor]]
) -> None:
    """Raise when an input that is changed in place shares its memory with another input."""
    for one, tensor in changed:
        for other, another in every:
            if another is tensor and other == one:
                continue
            if storage_key(tensor) == storage_key(another):
                raise CaptureError(
                    f"`{one}`, which `{name}` changes in place, must share its memory with no "
                    "other input",
                    got=f"memory shared with `{other}`",
                    fix=f"pass a clone of `{other}`",
                )


def changed_late(name: str, place: str) -> CaptureError:
    """The error for an input, or a tensor outside the program, that backward changes."""
    return CaptureError(
        f"`{name}` must not change its inputs or tensors from outside it in backward",
        at=place,
        got="a change in place, made by backward",
        fix="let backward work on a clone, and return what it finds as a gradient",
    )


def require_no_graphs(name: str, graph: fx.Graph) -> None:
    """Raise when a program makes a call on graphs, such as `torch.cond`."""
    for node in graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            raise _nested_graph(name, str(node.meta.get("place", "")), f"`{node.target.name()}`")


def unwritable(name: str, node: fx.Node) -> CaptureError:
    """The error for an op that has no place in a graph of ops without side effects."""
    place = str(node.meta.get("place", ""))
    schema = op_schema(node.target)
    if schema is None:
        return _nested_graph(name, place, f"`{node.target}`")
    return CaptureError(
        f"`{name}` must not use custom ops that change their arguments",
        at=place,
        got=f"`{schema.name}`",
        fix="let the op return a new tensor, or clone the argument inside it",
    )
