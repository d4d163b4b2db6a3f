"""Why a gradient is wrong, and the backward that is right: asked once for each subject.

The reason comes from `diagnose`, the backward from `derive` itself. Both are extras to a
finding that stands without them: they have a limit in seconds of work by profile, which the load of
the machine does not change, and what they raise is not reported.
"""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from pullback.check.options import REASON_SECONDS
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of, why_no_autograd, why_no_fork
from pullback.check.subject.subject import Subject
from pullback.function.plain import plain_program

if TYPE_CHECKING:
    from pullback.diagnose.fault import Fault

PATIENCE = 2.5  # times as much work, or as long at rest, and the search is ended

LONGEST = 24  # lines of a backward that is shown


@dataclass(frozen=True, slots=True)
class Reason:
    """What is known about one wrong gradient: each part empty where it is not."""

    why: str = ""
    fix: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class _Known:
    reasons: dict[str, Reason]
    backward: str


_known: WeakKeyDictionary[Subject, _Known] = WeakKeyDictionary()


def faults_of(*args: Any, **options: Any) -> Any:
    """As `diagnose.diagnosis.diagnose`; it imports Dynamo, which the quick profile does without."""
    from pullback.diagnose.diagnosis import diagnose

    return diagnose(*args, **options)


def derived_from(*args: Any) -> Any:
    """As `derive.backward.derive_function`, imported when it is needed."""
    from pullback.derive.backward import derive_function

    return derive_function(*args)


def reason_of(subject: Subject, name: str) -> Reason:
    """Why the gradient of input `name` is wrong at the examples."""
    return _of(subject).reasons.get(name, Reason())


def right_backward(subject: Subject) -> str:
    """The source of the backward that forward implies, or nothing where it cannot be derived."""
    return _of(subject).backward


def _of(subject: Subject) -> _Known:
    if subject not in _known:
        seconds = REASON_SECONDS[subject.profile]
        known = _Known({}, "")
        if seconds and subject.target.is_function:
            known = _searched(subject, seconds)
        _known[subject] = known
    return _known[subject]


def _searched(subject: Subject, seconds: float) -> _Known:
    """What is found within the time; nothing where one step of the search takes too long."""

    def search() -> _Known:
        # First the backward: it imports what both need, so that the search has all its time.
        backward = _backward(subject, seconds)
        return _Known(_reasons(subject, seconds), backward)

    if why_no_fork():
        return search()
    try:
        known: _Known | None = answer_of(
            lambda: None if why_no_autograd() else search(), PATIENCE * seconds
        )
    except Died:
        return _Known({}, "")
    return search() if known is None else known


def _reasons(subject: Subject, seconds: float) -> dict[str, Reason]:
    """The reasons by the name of the input; those that `diagnose` cannot name are left out."""
    args = subject.small.fresh()
    try:
        faults = faults_of(subject.target.function, *args, seconds=seconds)
    except Exception:  # an odd function: the finding stands without a reason
        return {}
    return {fault.input: _reason(subject, fault) for fault in faults}


def _reason(subject: Subject, fault: Fault) -> Reason:
    why = fault.pattern if fault.is_known else ""
    edit = fault.edit.text if fault.edit is not None and fault.edit.is_small else ""
    return Reason(why, edit, _whole_place(subject, fault.place))


def _whole_place(subject: Subject, place: str) -> str:
    """The line that `diagnose` names, in the file as the target names it."""
    file, _, line = place.rpartition(":")
    ours = subject.target.place("backward", "vjp")
    path = ours.rpartition(":")[0]
    return f"{path}:{line}" if file and path.endswith(file) and line.isdigit() else ""


def _backward(subject: Subject, seconds: float) -> str:
    """The derived backward as a method; only where deriving it takes no longer than `seconds`."""
    args = subject.small.fresh()
    start = time.process_time()
    try:
        with torch.enable_grad():
            source = derived_from(_named(subject), *args).source()
    except Exception:  # what cannot be derived: the finding stands without it
        return ""
    lines = source.partition("    def backward(")[2].rstrip().splitlines()
    if time.process_time() - start > seconds or not 0 < len(lines) <= LONGEST:
        return ""
    text = textwrap.dedent("\n".join([f"    def backward({lines[0]}", *lines[1:]]))
    return "\n".join([*_baked(subject), text])


def _baked(subject: Subject) -> list[str]:
    """A comment that says for which plain arguments the text was written."""
    args = zip(subject.names, subject.small.args, strict=False)
    plain = [f"{name}={arg!r}" for name, arg in args if not isinstance(arg, torch.Tensor)]
    return [f"# for {', '.join(plain)}; return None in its place too"] if plain else []


def _named(subject: Subject) -> Callable[..., Any]:
    """Forward as a program whose parameters have the user's names."""
    program = plain_program(subject.target.function)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [name for name in subject.names if name.isidentifier()]
    if len(names) == len(subject.names):
        parameters = [inspect.Parameter(name, kind) for name in names]
        program.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return program
