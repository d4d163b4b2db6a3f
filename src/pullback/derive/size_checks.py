"""The sizes that a text was written for, and the lines with which it says what it asks of inputs.

A capture holds sizes as symbols. Where the program made a number of one (a Python loop over rows, a
branch), the text holds for that number alone, and begins with a check. Other assumptions on sizes
are PyTorch's own and most often harmless: they get a check if the text is seen to be wrong without.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pullback.capture.decided import decided, fixed
from pullback.capture.fake import clause_in_words, in_words, is_open, numbers_of, symbol_of
from pullback.capture.joint import Capture
from pullback.graph.text_lines import WIDTH
from pullback.judge.comparison import Comparison
from pullback.judge.observed import Call
from pullback.judge.trial_rows import TrialRow
from pullback.judge.unchecked_kernels import is_unchecked

_SHAPE = re.compile(r"\b[^\W\d]\w*\.(?:shape\[\d+\]|dim\(\)|dtype)")
_FIXED = re.compile(rf"({_SHAPE.pattern}) == (\d+|torch\.\w+)")
_TIED = re.compile(rf"({_SHAPE.pattern}) == ({_SHAPE.pattern})")
_LEAST = re.compile(rf"(\d+) <= ({_SHAPE.pattern})")
_SAME = re.compile(r"(\w+\.shape) == (\w+\.shape)")
_AMONG = re.compile(r"(\w+\.dtype) in \((.*)\)")


@dataclass(frozen=True, slots=True)
class InputCheck:
    """A condition on inputs that a text needs, as Python: `x.shape[0] == 6`."""

    condition: str

    def lines(self, name: str) -> list[str]:
        """The lines with which the Function `name` raises where it does not hold."""
        said, got = f"`{name}`: {self.rule}, ", f"got {self._got}"
        line = f'    raise ValueError(f"{said}{got}")'
        broken = ["    raise ValueError(", f'        "{said}"', f'        f"{got}"', "    )"]
        return [f"if {self.negated}:", *([line] if len(line) <= WIDTH else broken)]

    def holds(self, names: Sequence[str], tensors: Sequence[Tensor]) -> bool:
        """Whether it holds for these tensors under these names."""
        space = {"torch": torch, **dict(zip(names, tensors, strict=True))}
        return bool(eval(self.condition, space))

    @property
    def _got(self) -> str:
        """What it is about, as a part of an f-string."""
        if _SAME.fullmatch(self.condition):
            return " and ".join(f"{{tuple({shape})}}" for shape in self.condition.split(" == "))
        sizes = list(dict.fromkeys(_SHAPE.findall(self.condition)))
        if self._equal or self._bounded:
            return " and ".join(f"{{{size}}}" for size in sizes)
        return ", ".join(f"{size} = {{{size}}}" for size in sizes)

    @property
    def rule(self) -> str:
        """What must hold, for a message."""
        if equal := self._equal:
            return f"{equal[1]} must be {equal[2]}"
        if among := _AMONG.fullmatch(self.condition):
            return f"{among[1]} must be {among[2].replace(', ', ' or ')}"
        least = _LEAST.fullmatch(self.condition)
        return f"{least[2]} must be at least {least[1]}" if least else f"{self.condition} must hold"

    @property
    def negated(self) -> str:
        """The condition that it does not hold."""
        if equal := self._equal:
            return f"{equal[1]} != {equal[2]}"
        if among := _AMONG.fullmatch(self.condition):
            return f"{among[1]} not in ({among[2]})"
        least = _LEAST.fullmatch(self.condition)
        return f"{least[2]} < {least[1]}" if least else f"not ({self.condition})"

    @property
    def _bounded(self) -> re.Match[str] | None:
        """The two sides, where it says what one size or dtype may be at least, or among what."""
        return _LEAST.fullmatch(self.condition) or _AMONG.fullmatch(self.condition)

    @property
    def _equal(self) -> re.Match[str] | None:
        """The two sides, where it says that a size or dtype is a given one, or that of another."""
        every = (form.fullmatch(self.condition) for form in (_FIXED, _TIED, _SAME))
        return next((found for found in every if found), None)


def fixed_sizes(captured: Capture, names: Sequence[str]) -> tuple[InputCheck, ...]:
    """What the user's code fixed or decided by sizes; `names` are those of the inputs.

    Where a kernel may go wrong by sizes that do not fit, also that they do.
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
        forms = (_TIED, _FIXED)
        found |= {t: None for t in texts if t and any(form.fullmatch(t) for form in forms)}
        for name, node in zip(names, captured.joint.inputs, strict=True):
            open_dims = (d for d, size in enumerate(node.meta["val"].shape) if is_open(size))
            found |= {f"1 <= {name}.shape[{d}]": None for d in open_dims}  # or it may divide by 0
    return tuple(map(InputCheck, found))


def needed_sizes(
    comparison: Comparison, names: Sequence[str], call: Call, checks: Sequence[InputCheck]
) -> list[InputCheck]:
    """The checks besides `checks` without which a text is wrong for sizes it was not written for.

    Of the assumptions of the capture, and of its sizes that are numbers, those that keep out most
    of what is wrong and least of what is right, above all of likely sizes.
    """
    wrong, right = comparison.misled(call, comparison.sizes)
    wrong = [row for row in wrong if all(check.holds(names, row.tensors) for check in checks)]
    found, wrong = chosen_checks(dict(_assumptions(comparison.captured, names)), wrong, right)
    fixed, _ = chosen_checks(dict(_numbers(comparison.captured, names)), wrong, [])
    return found + fixed


def needed_ranks(comparison: Comparison, names: Sequence[str], call: Call) -> list[InputCheck]:
    """The numbers of dimensions without which a text is wrong: a mean divides by one size, say."""
    wrong, right = comparison.misled(call, comparison.ranks)
    pairs = zip(names, comparison.captured.joint.inputs, strict=True)
    checks = [InputCheck(f"{name}.dim() == {node.meta['val'].dim()}") for name, node in pairs]
    return chosen_checks(
        {one.condition: partial(one.holds, names) for one in checks}, wrong, right
    )[0]


Tests = dict[str, Callable[[Sequence[Tensor]], bool]]


def chosen_checks(
    tests: Tests, wrong: list[TrialRow], right: Sequence[TrialRow]
) -> tuple[list[InputCheck], list[TrialRow]]:
    """The best of some tests, as checks, and the wrong rows that none of them keeps out."""
    found = list[InputCheck]()
    while wrong:
        kept_out = {t: [r for r in wrong if not holds(r.tensors)] for t, holds in tests.items()}
        lost = {
            text: sum(1 if row.is_odd else 3 for row in right if not holds(row.tensors))
            for text, holds in tests.items()
        }
        useful = [text for text, rows in kept_out.items() if rows]
        if not useful:
            break
        best = max(useful, key=lambda t: (len(kept_out[t]) - lost[t], -len(t)))
        found.append(InputCheck(best))
        wrong = [row for row in wrong if row not in kept_out[best]]
    return found, wrong


def _assumptions(
    captured: Capture, names: Sequence[str]
) -> Iterator[tuple[str, Callable[[Sequence[Tensor]], bool]]]:
    """What a capture goes by in sizes, as Python, each with its test on tensors."""
    yield from _numbers(captured, names, is_fixed=True)
    for clause in captured.clauses:
        if text := clause_in_words(clause, names):
            yield text, partial(captured.stage.meets, clause)


def _numbers(
    captured: Capture, names: Sequence[str], *, is_fixed: bool = False
) -> Iterator[tuple[str, Callable[[Sequence[Tensor]], bool]]]:
    """That sizes are those of the example: all, or those that are numbers in the capture."""
    for name, node in zip(names, captured.joint.inputs, strict=True):
        for dim, size in enumerate(node.meta["val"].shape):
            if not (is_fixed and is_open(size)):
                check = InputCheck(f"{name}.shape[{dim}] == {int(numbers_of([size])[0])}")
                yield check.condition, partial(check.holds, names)


def gathered(
    checks: Sequence[InputCheck], captured: Capture, names: Sequence[str]
) -> list[InputCheck]:
    """The checks, with one of whole shapes in the place of those of all their sizes."""
    ranks = {
        name: node.meta["val"].dim()
        for name, node in zip(names, captured.joint.inputs, strict=True)
    }
    found = list(dict.fromkeys(checks))
    for a, b in itertools.permutations(names, 2):
        sizes = {InputCheck(f"{a}.shape[{d}] == {b}.shape[{d}]") for d in range(ranks[a])}
        if ranks[a] == ranks[b] and len(sizes) > 1 and sizes <= set(found):
            place = min(map(found.index, sizes))
            found[place] = InputCheck(f"{a}.shape == {b}.shape")
            found = [check for check in found if check not in sizes]
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
