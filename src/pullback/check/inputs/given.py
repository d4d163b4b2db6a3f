"""The inputs that a user gives, as the arguments of calls.

They are a tuple of arguments, a list of such tuples, one tensor, or a function that gives any of
these; where nothing is given, `examples` of the target is that function.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torch import Tensor

from pullback.capture.places import call_user, place_of_error
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_fork
from pullback.check.ranks.given import takes_rank
from pullback.check.surroundings import require_plain_inputs
from pullback.check.target.target import Target
from pullback.errors import ExamplesError, type_and_line
from pullback.judge.example import Example, example_of


def examples_from(target: Target, inputs: Any) -> tuple[Example, ...]:
    """The examples that the user's `inputs` are, or `ExamplesError`."""
    return tuple(example_of(args) for args in arguments_from(target, inputs))


def arguments_from(target: Target, inputs: Any) -> list[tuple[Any, ...]]:
    """The arguments that the user's `inputs` are, those of each call, or `ExamplesError`."""
    if inputs is None:
        inputs = getattr(target.function or target.thing, "examples", None)
    if inputs is None:
        raise ExamplesError(
            f"`{target.name}` must come with inputs to check it with",
            expected="a tuple of arguments, or `examples()` on the class that gives one",
            got="none",
            fix=f"pb.check({target.name}, (torch.randn(3, 4, requires_grad=True),))",
        )
    return _tuples(target, _given_by(target, inputs) if callable(inputs) else inputs)


def _given_by(target: Target, inputs: Callable[[], Any]) -> Any:
    """What a function of the user's gives, or `ExamplesError` with what it raises."""
    rule = f"the examples of `{target.name}` must be made without an error"
    fix = f"call `{getattr(inputs, '__qualname__', 'it')}()` in Python"
    if takes_rank(inputs):
        fix += ", or give `ranks=2` (`--ranks 2`): a check across ranks gives it the rank"
    death = _death_of(inputs)
    if death:
        raise ExamplesError(
            rule, got=f"the process in which they were made was lost: {death}", fix=fix
        )
    try:
        return call_user(inputs)
    except (Exception, SystemExit) as error:
        got = type_and_line(error)
        raise ExamplesError(rule, at=place_of_error(error), got=got, fix=fix) from error


def _death_of(inputs: Callable[[], Any]) -> str:
    """How a process ends in which a function is called first; empty where it comes through.

    What it raises is reported when it is called here. One that is slow is called here, too.
    """

    def trial() -> None:
        with suppress(BaseException):
            inputs()

    if why_no_fork():
        return ""
    try:
        answer_of(trial)
    except Died as death:
        return "" if death.is_hang else death.how
    return ""


def _tuples(target: Target, given: Any) -> list[tuple[Any, ...]]:
    require_plain_inputs(target.name, given)
    if isinstance(given, Tensor):
        return [(given,)]
    if isinstance(given, list) and given and all(isinstance(item, tuple) for item in given):
        return given
    if isinstance(given, tuple):
        return [given]
    raise ExamplesError(
        f"the inputs of `{target.name}` must be arguments to call it with",
        expected="a tuple of arguments, a list of such tuples, or a function that gives one",
        got=f"{type(given).__name__}" + (" that is empty" if not given else ""),
        fix="write (x,) for a single argument",
    )
