"""A finding and its repro speak of the same entry and the same numbers.

A repro is made of short numbers, which are not those that a rule drew: so what it gives, once it
has failed, is what the finding tells of.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.finding import Finding
from pullback.check.mismatch import Mismatch, index_of, number, numbers
from pullback.check.repros.scene import Scene

_REAL = r"(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
_NUMBER = re.compile(rf"^[-+]?{_REAL}(?:[-+]{_REAL}j)?(?=$|,)")
_ENTRY = re.compile(r" at \[[\d, ]*\]")
_SHARE = re.compile(r", wrong in \d+ of \d+ entries")
_CHANGED = re.compile(r"torch\.equal\(([\w\[\]]+), before\)")
_WHERE = re.compile(r"^gradient of `[^`]+`(?: at \[[\d, ]*\])?(?:, wrong in \d+ of \d+ entries)?")


def of_mismatch(finding: Finding, shown: Mismatch) -> Finding:
    """The finding, told of the gradient that its repro shows to be wrong."""
    if not (_is_plain(finding.expected) and _is_plain(finding.got) and _WHERE.match(finding.at)):
        return finding
    at = _WHERE.sub(lambda _: shown.at, finding.at, count=1)
    expected, got = numbers(shown.expected, shown.got)
    return replace(finding, at=at, expected=expected, got=got)


def of_change(finding: Finding, body: str, made: dict[str, Any]) -> Finding:
    """The finding, told of what is no longer as the repro has it `before`."""
    changed = _CHANGED.search(body)
    if changed is None or not isinstance(made.get("before"), Tensor):
        return finding
    return _told(finding, made["before"], eval(changed.group(1), made))


def of_slope(finding: Finding, made: dict[str, Any]) -> Finding:
    """The finding, told of the numbers that its repro has for the entry that the finding names."""
    told = {"expected": made.get("slope"), "got": made.get("got")}
    for label, value in told.items():
        fact = getattr(finding, label)
        if value is not None and not isinstance(value, complex) and _NUMBER.match(fact):
            shown = number(float(value))
            told_anew: dict[str, Any] = {label: _NUMBER.sub(shown, fact, count=1)}
            finding = replace(finding, **told_anew)
    return finding


def of_names(finding: Finding, scene: Scene, body: str, made: dict[str, Any]) -> Finding:
    """The finding, told of the worst entry of what its repro calls `got` and `expected`."""
    got, expected = made.get("got"), made.get("expected")
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        return finding
    if got.shape != expected.shape or not got.numel() or not _is_about(scene, got, body):
        return finding
    return _told(finding, expected, got)


def _told(finding: Finding, expected: Tensor, got: Tensor) -> Finding:
    """The finding with the numbers at the worst entry of `got`."""
    if not (_NUMBER.match(finding.expected) and _NUMBER.match(finding.got)):
        return finding
    apart = torch.nan_to_num((got.detach() - expected.detach()).abs().double(), nan=torch.inf)
    if not bool((apart > 0).any()):
        return finding
    flat = int(apart.flatten().argmax())
    index = list(index_of(flat, got.shape))
    want, have = numbers(*(t.detach().flatten()[flat].item() for t in (expected, got)))
    return replace(
        finding,
        at=_SHARE.sub("", _ENTRY.sub(f" at {index}" if index else "", finding.at, count=1)),
        expected=_NUMBER.sub(want, finding.expected, count=1),
        got=_NUMBER.sub(have, finding.got, count=1),
    )


def _is_plain(text: str) -> bool:
    """Whether a fact is a number and nothing else; no gradient counts as one."""
    found = _NUMBER.match(text)
    return text == "None" or (found is not None and found.group() == text)


def _is_about(scene: Scene, got: Tensor, body: str) -> bool:
    """Whether what the repro calls `got` can only be the gradient that the finding names."""
    if not scene.name:
        return False
    shapes = [scene.example.args[i].shape for i in scene.needed]
    own = scene.example.args[scene.position].shape
    if got.shape != own or shapes.count(own) != 1:
        return False
    if own not in [output.shape for output in scene.run.outputs]:
        return True
    return not got.requires_grad and "held" not in body  # an output is compared there too
