"""A file of kernels: imports, helpers, the kernels with their configurations, launches."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pullback.triton_codegen.expressions import HELPERS
from pullback.triton_codegen.host import COMMON, PhaseText
from pullback.triton_codegen.writer import KernelSource

IMPORTS = """\
import functools
import sys

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
TUNED = {"cache_results": not INTERPRETED}  # kept on disk, by device, dtypes and width"""

CONFIGS = '''\
def configs(*options):
    """What the autotuner tries, once per width of a row; Triton's interpreter measures nothing."""
    found = [triton.Config(dict(meta), num_warps=warps) for meta, warps in options]
    return found[:1] if INTERPRETED else found
'''

Choice = tuple[dict[str, int], int]
"""Constants of a kernel, and its number of warps."""

CHOICES: dict[tuple[str, bool], tuple[Choice, ...]] = {
    ("row", False): (({}, 8), ({}, 4), ({}, 16)),
    ("row", True): (({"STAGES": 3}, 8), ({"STAGES": 3}, 4), ({"STAGES": 1}, 8)),
    ("tile", False): (({}, 4), ({}, 8)),
    ("blocks", False): (({"BLOCK": 4096}, 4), ({"BLOCK": 8192}, 8), ({"BLOCK": 2048}, 4)),
}
"""What is tried for a kernel, by its form and whether it keeps totals; the first is the usual."""


def kernel_text(source: KernelSource, comment: Sequence[str] = (), *, is_tuned: bool = True) -> str:
    """A kernel with its decorators; the comment says what a program of it does."""
    lines = []
    if not source.kernel.is_final and is_tuned:
        listed = ", ".join(f"({_dict(meta)}, {warps})" for meta, warps in choices_of(source))
        keys = [p.name for p in source.params if p.name.startswith("n_col")] or ["COLS"]
        key = ", ".join(f'"{name}"' for name in keys)
        lines.append(f"@triton.autotune(configs({listed}), key=[{key}], **TUNED)")
    text = source.text.splitlines()
    end = next(i for i, line in enumerate(text) if line.endswith("):"))
    noted = [f"    # {line}" for line in comment]
    return "\n".join([*lines, "@triton.jit", *text[: end + 1], *noted, *text[end + 1 :]])


def choices_of(source: KernelSource) -> tuple[Choice, ...]:
    """What is tried for a kernel, the usual first."""
    if source.kernel.is_final:
        return (({}, 4),)
    return CHOICES[source.kernel.form, any(p.name == "STAGES" for p in source.params)]


def usual_options(source: KernelSource) -> dict[str, int]:
    """What a kernel is launched with where nothing was measured."""
    meta, warps = choices_of(source)[0]
    return {**meta, "num_warps": warps}


def _dict(meta: dict[str, int]) -> str:
    return "{" + ", ".join(f'"{key}": {value}' for key, value in meta.items()) + "}"


def common_texts(phases: Sequence[PhaseText]) -> list[str]:
    """The functions that kernels and launches need, as far as they do."""
    helpers = dict.fromkeys(name for phase in phases for name in phase.helpers)
    lines = "\n".join(line for phase in phases for line in phase.lines)
    used = [text for name, text in COMMON.items() if re.search(rf"\b{name}\(", lines)]
    return [CONFIGS, *used, *(HELPERS[name] for name in helpers)]
