"""`combine`: a whole program as one node with one backward.

The node is that of `derive`: the program is captured together with the backward that the engine
runs for it, in which every hand-written rule stands as it is written. What is added here: it always
keeps its inputs, so that a second derivative can always be had, and a call that cannot be captured
runs as written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.capture.names import program_name
from pullback.compose.fast_path import with_nodes
from pullback.compose.nested import as_written, callable_of
from pullback.compose.reasons import Reasons, call_text, is_refusal, reason_text
from pullback.derive.backward import make_derived
from pullback.derive.returned import record_of
from pullback.derive.traced import traceable
from pullback.errors import CaptureError
from pullback.function.slots import transforms_active
from pullback.graph.cut import require_policy
from pullback.run import backends_of
from pullback.run.nodes.paths import Paths, UncompiledReason


def combine(
    program: Callable[..., Any],
    *examples: Any,
    backend: str = "auto",
    save: str | int | None = None,
    name: str | None = None,
    verify: bool = True,
) -> Any:
    """As `pullback.combine`, which says what it does."""
    program = callable_of(program)
    save = policy_of(save, backend)
    require_examples(program, examples)
    try:
        derived = make_derived(program, examples, save, name=name, keeps_inputs=True, opaque=True)
    except Exception as error:
        if not is_refusal(error):
            raise
        reason = reason_text(error)
        Paths(program_name(program)).as_written(UncompiledReason(reason, AS_WRITTEN))
        return as_written(program, reason, name)
    return _combined(program, derived, backend, verify=verify)


AS_WRITTEN = "change that, or compose it by `pb.nest`, which says that it runs as written"


def compiles(backend: str) -> bool:
    """Whether a choice of backends asks for compiled code."""
    return list(backends_of(backend)) != ["eager"]


def policy_of(save: str | int | None, backend: str) -> str | int:
    """What is saved: `save`, or what suits the backend."""
    if save is None:
        return "auto" if compiles(backend) else "everything"
    require_policy(save)
    return save


def require_examples(program: Any, examples: tuple[Any, ...]) -> None:
    """Raise unless there are examples to capture a program with."""
    if not examples:
        raise CaptureError(
            f"`{program_name(program)}` must be composed with examples of its arguments",
            got="no example",
            fix="pass tensors like those it will be called with, and its other arguments",
        )


def _combined(program: Callable[..., Any], derived: Any, backend: str, *, verify: bool) -> Any:
    """`derived`, which runs the program as written for calls that it refuses."""
    reasons, known = Reasons(), record_of(derived)

    def general(*args: Any, **kwargs: Any) -> Any:
        if reasons and _key(known.recipes, args, kwargs) in reasons:
            return program(*args, **kwargs)
        try:
            return known.call(derived, *args, **kwargs)
        except Exception as error:
            if not is_refusal(error):
                raise
            if not transforms_active():
                refuse(args, kwargs, error)
        return program(*args, **kwargs)

    def refuse(args: Any, kwargs: Any, error: Exception) -> None:
        key = _key(known.recipes, args, kwargs)
        reasons.add(key, call_text((args, kwargs)), reason_text(error))
        nodes.paths.warn(UncompiledReason(reason_text(error), AS_WRITTEN))

    def refused(args: Any, error: Exception) -> bool:
        if is_refusal(error):  # others are raised by the general way
            refuse(args, {}, error)
        return is_refusal(error)

    call, nodes = with_nodes(derived, general, backend, refused, verify=verify)

    def explain() -> str:
        count = len(known.general.captured.units)
        first = f"combined: one node of {count} units, {nodes.text()}"
        opaque = [f"  as it is: `{one}`, not traced" for one in known.general.captured.opaque]
        return "\n".join([first, *opaque, *nodes.lines(), *reasons.lines()])

    derived = traceable(derived, call)
    derived.composed = "combined"
    derived.is_wrong = staticmethod(lambda: nodes.is_wrong)
    derived.eager_reasons = staticmethod(lambda: tuple(nodes.reasons))
    derived.explain = staticmethod(explain)
    return derived


def _key(recipes: Any, args: Any, kwargs: Any) -> Any:
    """What a capture of this call depends on."""
    return recipes.key((args, kwargs))[:2]
