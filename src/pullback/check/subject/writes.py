"""Inputs that a forward writes into without saying so."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.check.findings.facts import Input
from pullback.check.subject.subject import Subject
from pullback.check.target.registration import schema_of
from pullback.check.watching.snapshot import Change, Snapshot, share_memory
from pullback.check.watching.spy import Marks, marking_of
from pullback.function.slots import version_of
from pullback.judge.example import Example, tensors_in
from pullback.judge.run import run


@dataclass(frozen=True, slots=True)
class Written:
    """An input that forward changed without marking it dirty.

    `is_returned`: an output is its memory; `is_seen`: its version counter shows the change.
    """

    name: str
    change: Change
    is_returned: bool
    is_seen: bool


def written_inputs(
    subject: Subject, example: Example, needs: frozenset[int] | None
) -> list[Written]:
    """The inputs that one call of forward changes behind the caller's back.

    Raises `ForwardRefusedError` where forward does. A plain program that writes with PyTorch's own
    operators hides nothing: autograd sees those. An op says in its schema what it writes into.
    """
    target = subject.target
    marking = marking_of(target) if target.is_function else None
    args = subject.arguments(example, needs)
    named = [(i, t) for i, arg in enumerate(args) for t in tensors_in(arg)]
    snapshot = Snapshot((Input(subject.names[i]), tensor) for i, tensor in named)
    versions = [version_of(tensor) for _, tensor in named]
    call = target.call if marking is None else marking.target.call
    called = run(call, example, subject.names, args=args)
    marks = marking.marks[-1] if marking is not None and marking.marks else Marks()
    found: list[Written] = []
    for change in snapshot.changes():
        position, tensor = named[change.place]
        is_seen = version_of(tensor) != versions[change.place]
        if position in marks.dirty or (is_seen and _is_open(subject, position)):
            continue
        is_returned = any(share_memory(tensor, output) for output in called.outputs)
        found.append(Written(subject.names[position], change, is_returned, is_seen))
    return found


def _is_open(subject: Subject, position: int) -> bool:
    """Whether a write that the version counter shows is behind nobody's back."""
    target = subject.target
    if not target.is_op:
        return not target.is_function
    arguments = getattr(schema_of(target.thing), "arguments", ())
    if position >= len(arguments):
        return True
    alias = arguments[position].alias_info
    return alias is not None and bool(alias.is_write)
