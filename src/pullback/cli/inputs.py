"""The inputs that `pullback check` tries a target with: given, recorded, its own, or guessed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pullback.check.inputs.hints import guess, guessed, number_of_guess, refusal_of
from pullback.check.inputs.stated import moved_inside
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_fork
from pullback.check.recordings.recorded import Recording, load_recording
from pullback.check.target.naming import OPS, load
from pullback.check.target.target import Target
from pullback.errors import ExamplesError, TargetError


@dataclass(frozen=True, slots=True)
class InputSource:
    """Where inputs come from: those given on the command line, or a recording."""

    given: Any = None
    recorded: Recording | None = None
    ranks: int | None = None


def named_inputs(name: str) -> tuple[Any, Recording | None]:
    """What `--inputs` or a setting names: inputs, or what makes them, by name; or a recording."""
    if Path(name).is_file():
        return None, load_recording(name)
    if ":" not in name:
        raise ExamplesError(
            f"`{name}` must be a recording, or name inputs",
            expected="a file that `pullback record` wrote, or module:name of inputs",
            got="no such file",
        )
    found = load(name)
    try:
        return (found() if callable(found) else found), None
    except Exception as error:
        raise TargetError(
            f"`{name}` must give inputs when it is called without arguments",
            got=f"{type(error).__name__}: {error}",
        ) from None


def inputs_for(name: str, target: Target, options: InputSource) -> tuple[Any, str]:
    """The inputs to check with, None for the target's own, and a note on where they are from."""
    if options.given is not None:
        return options.given, ""
    if options.ranks is not None and options.recorded is not None:
        return _ranked(name, target, options.recorded, options.ranks)
    recorded = options.recorded.inputs_of(target) if options.recorded else []
    if recorded:
        return recorded, f"the inputs are those of recorded calls: {len(recorded)}"
    if getattr(target.function or target.thing, "examples", None) is not None:
        return None, ""
    if options.ranks is not None:
        return guess(target, 0), "the inputs are guessed, from the type hints of forward"
    args, refusal = _guessed(name, target)
    if args is None:
        raise ExamplesError(
            f"`{name}` must come with inputs that its forward accepts",
            expected="--example for each argument, `examples()` on the class, or type hints",
            got=f"none, and every guess was refused: {refusal}",
            fix=f"pullback check {name} --example EXPR, once for each argument; "
            "or with those of a program that calls it: pullback record -- python train.py",
        )
    args = moved_inside(args, target.intent.domain, target.names_of(len(args)))
    hints = (
        "the schema" if name.startswith(OPS) else "the type hints of forward where there are any"
    )
    return args, f"the inputs are guessed, from {hints}"


def _ranked(name: str, target: Target, recorded: Recording, ranks: int) -> tuple[Any, str]:
    """The recorded inputs of every rank."""
    found = recorded.ranked_inputs_of(target) if recorded.ranks == ranks else None
    if found is None:
        raise ExamplesError(
            f"`{name}` must have been recorded on {ranks} ranks",
            got=f"a recording of {recorded.ranks}, with calls on some of them",
            fix=f"pullback record -- torchrun --nproc-per-node {ranks} train.py",
        )
    return found, f"the inputs are those of recorded calls on {ranks} ranks"


def _guessed(name: str, target: Target) -> tuple[tuple[Any, ...] | None, str]:
    """Arguments made from the hints, else what forward says of them.

    They are tried in another process where that can be: they may kill.
    """
    if why_no_fork():
        args = guessed(target)
        return args, "" if args is not None else refusal_of(target)
    try:
        number, refusal = answer_of(lambda: _numbered(target))
    except Died as death:
        raise ExamplesError(
            f"`{name}` must come with inputs that its forward accepts",
            expected="--example for each argument",
            got=f"guesses, and a process in which they were tried was lost: {death.how}",
            fix=f"pullback check {name} --example EXPR, once for each argument",
        ) from None
    return (None if number is None else guess(target, number)), refusal


def _numbered(target: Target) -> tuple[int | None, str]:
    number = number_of_guess(target)
    return number, "" if number is not None else refusal_of(target)
