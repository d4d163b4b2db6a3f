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
from pullback.compose.options import AS_WRITTEN, ComposeOptions, require_examples
from pullback.compose.reasons import Reasons, call_text, is_refusal, reason_text
from pullback.derive.backward import make_derived
from pullback.derive.returned import record_of
from pullback.derive.traced import traceable
from pullback.function.slots import transforms_active
from pullback.run.nodes.paths import Paths, UncompiledReason


def combine_program(
    program: Callable[..., Any], examples: tuple[Any, ...], options: ComposeOptions
) -> Any:
    """As `pullback.combine` of what is no module."""
    program, save, name = callable_of(program), options.policy(), options.name
    require_examples(program, examples)
    try:
        derived = make_derived(program, examples, save, name=name, keeps_inputs=True, opaque=True)
    except Exception as error:
        if not is_refusal(error):
            raise
        reason = reason_text(error)
        Paths(program_name(program)).as_written(UncompiledReason(reason, AS_WRITTEN))
        return as_written(program, reason, name)
    return _combined(program, derived, options)


def _combined(program: Callable[..., Any], derived: Any, options: ComposeOptions) -> Any:
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

    call, nodes = with_nodes(derived, general, options, refused)

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
