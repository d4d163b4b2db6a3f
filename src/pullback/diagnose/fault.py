"""Faults: what is known about the wrong gradients of a backward, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from pullback.diagnose.edit_search import Edit
from pullback.diagnose.gradient_trial import GradientTrial

Number = float | complex | None


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong gradient.

    Arguments:
        input: The input whose gradient it is, by the user's name.
        element: The index of the worst element.
        expected: What the gradient should be there.
        got: What backward gave there; None if it returned None, or something of another shape.
        wrong: How many elements are wrong.
        total: How many elements were looked at: all, but for a large gradient that forward hides
            from autograd.
        pattern: The error, in one sentence.
        edit: The change that makes it right, if one was found.
        place: Where in the user's backward, `file.py:line`.
        is_known: Whether `pattern` names the error.
        witness: The inputs and cotangents, in double precision, that these numbers belong to.
    """

    input: str
    element: tuple[int, ...]
    expected: Number
    got: Number
    wrong: int
    total: int
    pattern: str
    edit: Edit | None
    place: str
    is_known: bool = True
    witness: GradientTrial | None = field(default=None, compare=False, repr=False)

    @property
    def off(self) -> float:
        """By how much the worst element is wrong."""
        return abs((self.got or 0) - (self.expected or 0))

    def __str__(self) -> str:
        at = f" at {list(self.element)}" if self.element else ""
        count = "the only element" if self.total == 1 else f"{self.wrong} of {self.total} elements"
        facts = {
            "at": self.place,
            "expected": f"{_written(self.expected)}{at}",
            "got": f"{_written(self.got)}, off by {self.off:.6g}; {count} wrong",
            "fix": self.edit.text.replace("\n", "\n" + " " * 14) if self.edit else "",
        }
        if self.expected is None and self.got is None:  # of different shapes: nothing to compare
            del facts["expected"], facts["got"]
        lines = [f"the gradient of `{self.input}` is wrong: {self.pattern}"]
        lines += [f"  {label + ':':<10}{fact}" for label, fact in facts.items() if fact]
        return "\n".join(lines)


def _written(number: Number) -> str:
    return "None" if number is None else f"{number:.6g}"


@dataclass(frozen=True, slots=True)
class Faults(Sequence[Fault]):
    """The faults of one Function, one for each wrong gradient: none if it is sound.

    Arguments:
        function: The name of the Function.
        all: The faults, in the order of the inputs.
        trials: In how many trials it was judged; 0 if it could not be.
        reason: What could not be determined, and why; empty if everything was.
    """

    function: str
    all: tuple[Fault, ...] = ()
    trials: int = 0
    reason: str = ""

    @overload
    def __getitem__(self, index: int) -> Fault: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Fault, ...]: ...
    def __getitem__(self, index: int | slice) -> Fault | tuple[Fault, ...]:
        return self.all[index]

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self.all)

    @property
    def is_judged(self) -> bool:
        """Whether it was judged at all: only then is a lack of faults good news."""
        return self.trials > 0

    def __str__(self) -> str:
        if not self.is_judged:
            return f"`{self.function}` was not judged: {self.reason}"
        lines = [str(fault) for fault in self.all]
        lines = lines or [f"`{self.function}`: no gradient is wrong in {self.trials} trials"]
        return "\n".join([*lines, f"  note:     {self.reason}"] if self.reason else lines)
