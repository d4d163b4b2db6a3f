"""A call that some rank raised in."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.check.ranks.commands import Reply
from pullback.judge.run import Raised


class Failed(Exception):
    """A call that some rank raised in, where it is asked for a value."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.replies = tuple(replies)
        self.first = next(r for r in replies if r.raised is not None)
        super().__init__(str(self.first.raised))

    @property
    def raised(self) -> Raised:
        """What the first rank raised."""
        assert self.first.raised is not None
        return self.first.raised

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that raised."""
        return tuple(i for i, r in enumerate(self.replies) if r.raised is not None)
