"""The sizes that a text was written for, and the lines with which it says so.

A capture holds sizes as symbols. Where the program made a number of one (a Python loop over rows, a
branch), the text holds for that number alone, and begins with a check. Other assumptions on sizes
are PyTorch's own and most often harmless: they get a check if the text is seen to be wrong without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pullback.capture.decided import decided, fixed
from pullback.capture.fake import clause_in_words, in_words, symbol_of
from pullback.capture.joint import Capture
from pullback.derive.agreement import Agreement, Call
from pullback.derive.trial_rows import is_unchecked
from pullback.graph.text_lines import WIDTH

_SHAPE = re.compile(r"\b[^\W\d]\w*\.shape\[\d+\]")
_FIXED = re.compile(rf"({_SHAPE.pattern}) == (\d+)")
_TIED = re.compile(rf"({_SHAPE.pattern}) == ({_SHAPE.pattern})")


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A condition on sizes that a text needs, as Python: `x.shape[0] == 6`."""

    condition: str

    def lines(self, name: str) -> list[str]:
        """The lines with which the Function `name` raises where it does not hold."""
        sizes = list(dict.fromkeys(_SHAPE.findall(self.condition)))
        got = f"{{{sizes[0]}}}" if len(sizes) == 1 else ", ".join(f"{s} = {{{s}}}" for s in sizes)
        says = (f"`{name}`: {self.rule}, ", f"got {got}")
        line = f'    raise ValueError(f"{"".join(says)}")'
        broken = ["    raise ValueError(", *(f'        f"{part}"' for part in says), "    )"]
        return [f"if {self.negated}:", *([line] if len(line) <= WIDTH else broken)]

    @property
    def rule(self) -> str:
        """What must hold, in words."""
        fixed = _FIXED.fullmatch(self.condition) or _TIED.fullmatch(self.condition)
        return f"{fixed[1]} must be {fixed[2]}" if fixed else f"{self.condition} must hold"

    @property
    def negated(self) -> str:
        """The condition that it does not hold."""
        found = _FIXED.fullmatch(self.condition) or _TIED.fullmatch(self.condition)
        return f"{found[1]} != {found[2]}" if found else f"not ({self.condition})"


def fixed_sizes(captured: Capture, names: Sequence[str]) -> tuple[SizeCheck, ...]:
    """What the user's code fixed or decided by sizes; `names` are those of the inputs.

    Where a kernel may go wrong by sizes that do not fit each other, also that they do.
    """
    numbers, found = fixed(captured), dict[str, None]()
    for name, node in zip(names, captured.joint.inputs, strict=True):
        for dim, size in enumerate(node.meta["val"].shape):
            if symbol_of(size) in numbers:
                found[f"{name}.shape[{dim}] == {int(size)}"] = None
    sources = dict(_sources(captured, names))
    for condition in decided(captured):
        if set(condition.free_symbols) <= sources.keys():
            found[in_words(condition, sources)] = None
    if is_unchecked(captured):
        texts = (clause_in_words(clause, names) for clause in captured.clauses)
        found |= {text: None for text in texts if text and _TIED.fullmatch(text)}
    return tuple(map(SizeCheck, found))


def needed_sizes(agreement: Agreement, names: Sequence[str], call: Call) -> list[SizeCheck]:
    """The checks without which a text is wrong for sizes that it was not written for.

    Of the assumptions of the capture, those that keep out most of what is wrong and least of what
    is right, above all of what somebody may mean.
    """
    wrong, right = agreement.misled(call)
    stage, found = agreement.captured.stage, list[SizeCheck]()
    texts = {c: t for c in agreement.captured.clauses if (t := clause_in_words(c, names))}
    while wrong:
        kept_out = {c: [row for row in wrong if not stage.meets(c, row.tensors)] for c in texts}
        lost = {
            c: sum(1 if row.is_odd else 3 for row in right if not stage.meets(c, row.tensors))
            for c in texts
        }
        best = max(texts, key=lambda c: (len(kept_out[c]) - lost[c], -len(c)), default="")
        if not kept_out.get(best):
            break
        found.append(SizeCheck(texts[best]))
        wrong = [row for row in wrong if row not in kept_out[best]]
    return found


def _sources(captured: Capture, names: Sequence[str]) -> Iterator[tuple[object, str]]:
    """Each symbol, with the size that it stands for; the first of equal ones."""
    seen = set[object]()
    for name, node in zip(names, captured.joint.inputs, strict=True):
        for dim, size in enumerate(node.meta["val"].shape):
            expression = size.node.expr if isinstance(size, torch.SymInt) else None
            if expression is not None and expression.is_Symbol and expression not in seen:
                seen.add(expression)
                yield expression, f"{name}.shape[{dim}]"
