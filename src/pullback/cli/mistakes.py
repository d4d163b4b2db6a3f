"""What goes wrong in the user's own code, as a message instead of a traceback of ours."""

from __future__ import annotations

import inspect
import os
from typing import Any

from pullback.capture.places import is_users
from pullback.errors import ExamplesError, TargetError, type_and_line


def require_call(thing: Any, name: str, args: tuple[Any, ...]) -> None:
    """Raise unless `thing`, called `name` on the command line, can be called with `args`."""
    called = getattr(thing, "forward", thing) if isinstance(thing, type) else thing
    if not callable(called):
        raise TargetError(
            f"`{name}` must be something that can be called",
            expected="a Function class, or a function of tensors",
            got=f"a {type(thing).__name__}",
        )
    try:
        parameters = inspect.signature(called)
    except (TypeError, ValueError):  # written in C: it says so itself when it is called
        return
    is_plain = called is thing or not _takes_context(thing)
    try:
        parameters.bind(*(args if is_plain else (None, *args)))
    except TypeError as error:
        raise ExamplesError(
            f"`{name}` must have one --example for each argument",
            expected=_arguments(parameters, is_plain=is_plain),
            got=f"{len(args)}: {error}",
        ) from None


def of_users_code(error: BaseException) -> ExamplesError | None:
    """The message for an error that the user's code raised; None if it came from elsewhere.

    It is the user's where one of their lines stands below all of ours: what raised is that line, or
    an op of PyTorch that it calls.
    """
    place, entry = "", error.__traceback__
    while entry is not None:
        frame = entry.tb_frame
        if frame.f_globals.get("__name__", "").partition(".")[0] == "pullback":
            place = ""
        elif is_users(frame):
            place = f"{os.path.relpath(frame.f_code.co_filename)}:{entry.tb_lineno}"
        entry = entry.tb_next
    if not place:
        return None
    return ExamplesError(
        "the function must run on the examples of its arguments",
        at=place,
        got=type_and_line(error),
        fix="call it on the same examples in Python, and change one or the other",
    )


def _takes_context(cls: type) -> bool:
    """Whether forward takes `ctx` first: not where the class has a `setup_context` of its own."""
    own = getattr(cls, "setup_context", None)
    return own is None or getattr(own, "__module__", "").startswith(("torch.", "pullback."))


def _arguments(parameters: inspect.Signature, *, is_plain: bool) -> str:
    names = list(parameters.parameters.values())[0 if is_plain else 1 :]
    return f"({', '.join(str(one) for one in names)})"
