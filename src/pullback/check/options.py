"""What a check is asked for, beside its target and the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.check.target.target import Target, declared_with, target_of

# Seconds of work by profile: to search for why a gradient is wrong, and for a proof that it is not.
REASON_SECONDS = {"quick": 0.0, "standard": 1.5, "deep": 20.0}
PROOF_SECONDS = {"quick": 0.0, "standard": 1.0, "deep": 20.0}

Progress = Callable[[str, int, int], None]


def nothing_chosen(target: Target) -> Mapping[str, Any]:
    """What holds for a Function by its name where no settings say anything."""
    return {}


OptionsOf = Callable[[Target], Mapping[str, Any]]


def chosen_target(thing: Any, options_of: OptionsOf) -> Target:
    """A Function or op that a program calls, with what is declared of it by its own name."""
    target = target_of(thing)
    return declared_with(target, options_of(target).get("declares"))


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of `pb.check`, which explains them.

    `options_of` is what settings say of a Function that a program calls, by its own name: a mapping
    with what it `declares` beside its class, and what it is to `allow`.
    """

    select: Sequence[str] = ()
    allow: Sequence[str] = ()
    profile: str = "standard"
    declares: Mapping[str, Any] | None = None
    reference: Callable[..., Any] | None = None
    domain: Any = None
    isolate: bool = True
    seconds: float | None = None
    ranks: int | None = None
    placements: Mapping[str, Any] | None = None
    sanitize: bool = False
    progress: Progress | None = None
    options_of: OptionsOf = nothing_chosen

    def for_inside(self, seconds: float | None) -> CheckOptions:
        """What of it holds for a Function that is called inside of what is checked."""
        return CheckOptions(
            select=self.select,
            allow=self.allow,
            profile=self.profile,
            seconds=seconds,
            progress=self.progress,
            options_of=self.options_of,
        )
