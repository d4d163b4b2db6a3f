"""`forward` must not change its inputs, unless it marks them dirty and returns them.

What it checks
    Every tensor among the arguments, also in lists, holds the same numbers after forward as before,
    with grad required and without; an input that is marked dirty and returned may change.

Why it matters
    Another op may have saved the same tensor: its gradient is then wrong, with no error, as in
    Liger#272, where forward stored the gradient into its input.

Fails
    x.mul_(scale); return x.clone()

Passes
    ctx.mark_dirty(x); x.mul_(scale); return x

Cannot see
    A change that writes back the same numbers. An input given away on purpose is declared:
    `declares = {"donates": "x"}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.example import tensors_in
from pullback.check.snapshot import Snapshot
from pullback.check.subject import Finding, ForwardRefusedError, Rule, Skip, Subject

RULE = Rule(code="M701", name="mutated-input", group="mutation", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input that forward changes without saying so."""
    told: set[str] = set()
    for example in subject.examples:
        for needs in (None, frozenset[int]()):
            args = example.fresh(needs=needs)
            if subject.writes_inputs:
                args = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
            named = [
                (name, tensor)
                for name, arg in zip(subject.names, args, strict=False)
                for tensor in tensors_in(arg)
            ]
            snapshot = Snapshot(named)
            try:
                run = subject.run_with(example, args)
            except ForwardRefusedError as refusal:
                yield Skip(RULE, f"forward refuses: {refusal}")
                return
            returned = {id(output) for output in run.outputs}
            marked = {name for name, tensor in named if id(tensor) in returned}
            for change in snapshot.changes():
                is_allowed = change.name in marked or subject.target.intent.is_donated(change.name)
                if change.name in told or is_allowed:
                    continue
                told.add(change.name)
                yield subject.finding(
                    RULE,
                    example=example,
                    at=f"input `{change.name}` at {list(change.index)}, after forward",
                    expected=f"{change.before}, as before forward",
                    got=change.after,
                    fix=f"work on a clone of `{change.name}`, or call ctx.mark_dirty and return it",
                )
