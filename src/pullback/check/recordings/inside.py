"""The Functions and ops that a program calls, each with the arguments that it really gets.

A check of a plain function or module sees the gradients of its inputs. What a Function inside it
does with other arguments, a saved tensor or a flag is seen only when it is checked itself, so it
is: the program is run once more at the examples, in a worker, and the calls that it makes there are
recorded as a recording records them.
"""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.function import Function as TorchFunction

from pullback.check.findings.finding import Severity
from pullback.check.findings.report import Report
from pullback.check.options import CheckOptions, OptionsOf, chosen_target, nothing_chosen
from pullback.check.processes.endings import Died
from pullback.check.processes.isolate import answer_of
from pullback.check.recordings.call import function_name, load_function, read_call
from pullback.check.recordings.recorded import Recording
from pullback.check.recordings.stored import CannotStoreError
from pullback.check.target.target import Target, declared_with
from pullback.errors import ExamplesError, PullbackError, RuleNameError
from pullback.judge.example import Example
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, run

CheckOne = Callable[[Target, Any, CheckOptions], Report]


@dataclass(frozen=True, slots=True)
class Inside:
    """One Function or op that a program calls, and the arguments of some of its calls.

    `numbers` are those of the calls in the recording, `allow` is what it may do by its own name.
    """

    name: str
    target: Target
    inputs: tuple[tuple[Any, ...], ...]
    numbers: tuple[int, ...] = ()
    allow: tuple[str, ...] = ()

    def checked(self, check: CheckOne, whole: Target, options: CheckOptions) -> Report:
        """The report on it, under what is chosen for it by its own name; in a surrogate, as one."""
        meant = {"surrogate": True} if whole.intent.has_surrogate else None
        target = declared_with(self.target, meant)
        options = replace(options, allow=(*options.allow, *self.allow))
        return check(target, list(self.inputs), options)


def functions_inside(
    target: Target, examples: Sequence[Example], options_of: OptionsOf = nothing_chosen
) -> tuple[tuple[Inside, ...], tuple[str, ...]]:
    """What a program calls at the examples, and the names of what cannot be checked apart."""
    try:
        file, lost = answer_of(lambda: _recorded(target, examples))
    except Died:
        return (), ()
    inside, missing = grouped_calls(file, options_of)
    known = {one.name for one in inside}
    return inside, tuple(n for n in dict.fromkeys([*lost, *missing]) if n not in known)


def grouped_calls(file: bytes, options_of: OptionsOf) -> tuple[tuple[Inside, ...], tuple[str, ...]]:
    """The calls that `stored_calls` wrote, by Function, and the names of what is not found."""
    found: dict[str, list[tuple[int, tuple[Any, ...]]]] = {}
    functions: dict[str, Any] = {}
    missing: list[str] = []
    for number, stored in enumerate(torch.load(io.BytesIO(file), weights_only=True)):
        if stored is None:
            continue
        call = read_call(stored)
        name = call.target
        try:
            functions[name] = functions.get(name) or _named(name)
            found.setdefault(name, []).append((number, call.inputs))
        except PullbackError:
            missing.append(name)
    inside = []
    for name, rows in found.items():
        target = chosen_target(functions[name], options_of)
        allow = tuple(options_of(target).get("allow", ()))
        args = tuple(args for _, args in rows)
        inside.append(Inside(name, target, args, tuple(dict(rows)), allow))
    return tuple(inside), tuple(missing)


def reports_inside(
    inside: Sequence[Inside], whole: Target, options: CheckOptions, check: CheckOne
) -> tuple[list[Report], list[str]]:
    """A report on each Function that `whole` calls, and the names of those without one."""
    start = time.monotonic()
    reports: list[Report] = []
    missing: list[str] = []
    for one in inside:
        left = None if options.seconds is None else options.seconds - (time.monotonic() - start)
        if (left is not None and left <= 0) or (reports and reports[-1].interrupted):
            missing.append(one.target.name)
            continue
        try:
            reports.append(one.checked(check, whole, options.for_inside(left)))
        except RuleNameError:  # all that is asked is allowed for it
            continue
        except ExamplesError:  # it refuses leaves, say, where the whole passes others
            missing.append(one.target.name)
    return reports, missing


def _recorded(target: Target, examples: Sequence[Example]) -> tuple[bytes, list[str]]:
    """In a worker: the calls that a program makes, as `stored_calls` gives them."""
    recording = Recording()
    names = target.names_of(max(len(example.args) for example in examples))
    with recording.watching():
        for example in examples:
            try:
                run(target.call, example, names)
            except (ForwardRefusedError, BackwardFailedError):
                continue
    return stored_calls(recording)


def stored_calls(recording: Recording) -> tuple[bytes, list[str]]:
    """The calls that can be described, as a file has them, and the names of the others."""
    stored: list[Any] = []
    lost: list[str] = []
    for call in recording.calls:
        try:
            stored.append(call.stored())
        except CannotStoreError:
            stored.append(None)
            lost.append(call.target)
    file = io.BytesIO()
    torch.save(stored, file)
    return file.getvalue(), lost


def _named(name: str) -> Any:
    """The class or op of that name, as this process has it, also one that is defined in a call."""
    for cls in _subclasses(TorchFunction):
        if function_name(cls) == name:
            return cls
    return load_function(name)


def _subclasses(cls: type) -> Iterator[type]:
    one: type
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


# ---- reports ----


def joined(report: Report, parts: Sequence[Report], missing: Sequence[str]) -> Report:
    """One report of a program and of what it calls.

    Where both have findings of one group of rules, those of the inner one say more.
    """
    inner = [finding for part in parts for finding in part.findings]
    groups = {finding.rule.group for finding in inner}
    outer = [finding for finding in report.findings if finding.rule.group not in groups]
    notes = [*report.notes, *(f"`{part.subject}`: {note}" for part in parts for note in part.notes)]
    if parts:
        names = ", ".join(f"`{part.subject}`" for part in parts)
        notes.append(f"it calls {names}, checked with the arguments that it passes there")
    if missing:
        names = ", ".join(f"`{name.rpartition(':')[2]}`" for name in missing)
        notes.append(f"it calls {names}: some rules look into a Function only when it is checked")
    tried = sum((Counter(part.tried) for part in parts), Counter(report.tried))
    return replace(
        report,
        findings=tuple(sorted([*inner, *outer], key=lambda f: list(Severity).index(f.weight))),
        notes=tuple(notes),
        tried=dict(tried),
        interrupted=report.interrupted or any(part.interrupted for part in parts),
    )
