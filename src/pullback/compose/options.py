"""What every composition is asked for: a backend, what is saved, a name, and examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pullback.capture.names import program_name
from pullback.errors import CaptureError
from pullback.graph.cut import require_policy
from pullback.run import backends_of

AS_WRITTEN = "change that, or compose it by `pb.nest`, which says that it runs as written"
"""What to do about a program that is not composed."""


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """How a program is composed; where `save` is None, what suits the backend is saved."""

    backend: str = "auto"
    save: str | int | None = None
    name: str | None = None
    verify: bool = True

    @property
    def compiles(self) -> bool:
        """Whether compiled code is asked for."""
        return list(backends_of(self.backend)) != ["eager"]

    def policy(self) -> str | int:
        """What is saved; raises for a backend or a policy that there is not."""
        if self.save is None:
            return "auto" if self.compiles else "everything"
        require_policy(self.save)
        return self.save


def require_examples(program: Any, examples: tuple[Any, ...]) -> None:
    """Raise unless there are examples to capture a program with."""
    if not examples:
        raise CaptureError(
            f"`{program_name(program)}` must be composed with examples of its arguments",
            got="no example",
            fix="pass tensors like those it will be called with, and its other arguments",
        )
