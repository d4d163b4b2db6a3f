"""The user's names for the arguments of a repro, wherever the repro itself does not need them."""

from __future__ import annotations

import re

# What a repro calls its own things, where an argument has the usual name.
OTHERS = {
    "g": "cotangent",
    "h": "cotangent_h",
    "u": "cotangent_u",
    "v": "cotangent_v",
    "out": "output",
    "t": "each",
    "k": "number",
    "step": "small_step",
    "total": "whole_sum",
    "left": "left_slope",
    "right": "right_slope",
    "old": "old_memory",
    "weights": "all_weights",
}


def with_names(body: str, names: dict[str, str]) -> str:
    """`body` with the user's names, given by the placeholder that stands for each."""
    for placeholder, name in names.items():
        if placeholder == name or not name.isidentifier() or not _has(body, placeholder):
            continue
        if _has(body, name):
            other = OTHERS.get(name)
            if other is None or _has(body, other) or other in names.values():
                continue
            body = _renamed(body, name, other)
        body = _renamed(body, placeholder, name)
    return body


def _has(body: str, name: str) -> bool:
    return _whole(name).search(body) is not None


def _renamed(body: str, old: str, new: str) -> str:
    return _whole(old).sub(new, body)


def _whole(name: str) -> re.Pattern[str]:
    """A name that is no attribute, no part of a longer name, and no keyword of a call."""
    return re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
