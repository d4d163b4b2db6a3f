"""How the calls of one composition were run: counts, and a warning for what ran uncompiled.

Whoever asks for compiled code is warned, once for each reason, when a call runs without it, and
what to do. `explain()` lists how often each path was taken.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from pullback.errors import UncompiledWarning, WrongCodeWarning


@dataclass(frozen=True, slots=True)
class UncompiledReason:
    """Why a call runs without compiled code, and what its author can do about that."""

    what: str
    fix: str


RANDOM = UncompiledReason(
    "it draws random numbers, which only eager ops draw as PyTorch does",
    "draw them outside and pass them in, or leave dropout outside of the composition",
)
LAZY = UncompiledReason(
    "an input is a conjugate or a negative that is not written out",
    "call `.resolve_conj().resolve_neg()` on it first",
)
OFFSETS = UncompiledReason(
    "it sees where an input begins in its memory, as `as_strided` does",
    "use slices and views instead, which count from the beginning of the tensor",
)
META = UncompiledReason("an input is on the meta device", "call it with tensors that have values")
SUBCLASS = UncompiledReason(
    "an input is no plain tensor, list, tuple, dict or plain value", "pass plain tensors"
)
KEYWORD = UncompiledReason(
    "an input is passed to a keyword-only parameter", "make that parameter positional"
)
TRANSFORM = UncompiledReason(
    "a transform of `torch.func`, forward mode or a mode of PyTorch is active",
    "compile around it: `torch.compile` traces the program itself",
)
TWICE = UncompiledReason(
    "its backward is differentiated, which runs the program again",
    'use backend="eager" where second derivatives are the rule',
)
ABSENT = UncompiledReason(
    "an output of a program with a hand-written backward has no gradient",
    "return only what is used, or compose the part that is used by itself",
)
INFINITE = UncompiledReason(
    "an output with an infinite slope has no gradient, and zeros in its place would give NaN",
    "return only what is used, or compose the part that is used by itself",
)
BATCHED = UncompiledReason(
    "its backward runs under `vmap`", "call backward once for each cotangent"
)
HOOKED = UncompiledReason(
    "hooks on saved tensors gave them back with another layout or dtype",
    "let the hooks give back what they were given",
)
LAYOUTS = UncompiledReason(
    "it was called with more layouts than code is made for", "call `.contiguous()` on its inputs"
)


@dataclass(eq=False)
class Paths:
    """The paths of one composition called `name`; safe to use from several threads.

    `warns` says whether compiled code was asked for, so that its absence is worth a warning.
    """

    name: str
    warns: bool = True
    _counts: dict[str, list[int]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tally(self, path: str) -> list[int]:
        """The count of a path, to be counted up by whoever takes it."""
        with self._lock:
            return self._counts.setdefault(path, [0])

    def uncompiled(self, reason: UncompiledReason) -> None:
        """Count a call that runs without compiled code, and say so if that was not said."""
        self.tally(f"uncompiled: {reason.what}")[0] += 1
        self.warn(reason)

    def warn(self, reason: UncompiledReason) -> None:
        """Warn of a reason, once."""
        if self.warns and self._is_new(reason.what):
            warnings.warn(
                UncompiledWarning(
                    f"`{self.name}` must run compiled code", got=reason.what, fix=reason.fix
                ),
                stacklevel=2,
            )

    def as_written(self, reason: UncompiledReason) -> None:
        """Warn that there is no node at all, whichever backend was asked for."""
        rule = f"`{self.name}` must be captured to be one node"
        warnings.warn(UncompiledWarning(rule, got=reason.what, fix=reason.fix), stacklevel=2)

    def differs(self, backend: str, call: str, difference: object) -> None:
        """Warn of code that computes something else, once for each place."""
        if self._is_new(f"{backend} {call} {difference}"):
            warnings.warn(
                WrongCodeWarning(
                    f'what backend "{backend}" made of `{self.name}` must compute what the program '
                    "computes",
                    at=call,
                    got=str(difference),
                    fix="nothing: such calls run eagerly from now on, and are right",
                ),
                stacklevel=2,
            )

    def _is_new(self, said: str) -> bool:
        with self._lock:
            is_new = said not in self._said
            self._said.add(said)
        return is_new

    def lines(self) -> Iterator[str]:
        """How often each path was taken, where there is more than the eager one."""
        if not self.warns:
            return iter(())
        with self._lock:
            counts = {path: count[0] for path, count in self._counts.items()}
        return (
            f"  {number} call{'s' * (number != 1)} {path}"
            for path, number in counts.items()
            if number
        )
