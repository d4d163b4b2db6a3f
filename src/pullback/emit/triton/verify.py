"""Whether a file of kernels computes what the program computes, before it is handed out.

On a GPU the kernels run there; without one, in Triton's interpreter, on inputs like the examples
and at other sizes. Where Triton is not installed nothing can be run, and the file says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.derive.source import differing_text
from pullback.emit.subject import EmitSubject
from pullback.function.generated import run_text
from pullback.judge.comparison import aside
from pullback.judge.text_difference import TextDifference

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
SECONDS = 300.0
MOST = 1 << 22
"""Elements that Triton's interpreter goes over in some seconds."""


def interpreter_absence() -> str | None:
    """Why kernels cannot be run here, in one line; None if they can."""
    return None if importlib.util.find_spec("triton") else "Triton is not installed"


def require_same_kernels(subject: EmitSubject, text: str) -> None:
    """Raise unless the file `text` gives what the program gives, on several rows of inputs."""
    found = kernel_difference(subject, text)
    if found is not None:
        raise differing_text(subject.captured.name, found)


def kernel_difference(subject: EmitSubject, text: str) -> TextDifference | None:
    """What the file computes otherwise, if anything."""
    trials = list(_trials(subject))
    is_gpu = any(x.is_cuda for trial in trials for x in trial.given)
    run = _in_process if is_gpu else _interpreted
    for trial, got in zip(trials, run(subject, text, trials), strict=True):
        found = _compared(trial, got)
        if found is not None:
            return found
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """Inputs, cotangents of the outputs that have them, and what the program gives.

    `wide` is what it gives in double precision, where it runs so: kernels round less than it does.
    """

    what: str
    given: list[Tensor]
    cotangents: list[Tensor]
    expected: list[Tensor]
    names: list[str]
    wide: list[Tensor] | None = None


def _trials(subject: EmitSubject) -> Iterator[_Trial]:
    comparison = subject.comparison
    served = [row for row in comparison.sizes if row.is_served and not row.is_odd]
    for row in [*comparison.rows[:1], *served[:3]]:
        if sum(x.numel() for x in row.tensors) > MOST and not row.tensors[0].is_cuda:
            continue
        with aside():
            try:
                yield _trial(subject, row.what, list(row.tensors))
            except Exception:  # any: the program may refuse other sizes in any way
                continue


def _trial(subject: EmitSubject, what: str, given: list[Tensor]) -> _Trial:
    flags, inputs = subject.wanted, subject.captured.inputs
    needs = [one.needs and (i >= len(flags) or flags[i]) for i, one in enumerate(inputs)]
    own = [x.detach().requires_grad_(need) for x, need in zip(given, needs, strict=True)]
    cotangents, expected, count = _results(subject, own, None)
    names = [f"output {i}" for i in range(count)]
    pairs = zip(inputs, needs, strict=True)
    names += [f"the gradient of `{one.name}`" for one, need in pairs if need]
    wide = None
    try:
        doubled = [x.detach().double() if x.is_floating_point() else x for x in own]
        doubled = [x.requires_grad_(need) for x, need in zip(doubled, needs, strict=True)]
        wide = _results(subject, doubled, [c.double() for c in cotangents])[1]
    except Exception:  # any: a program that names its dtypes
        wide = None
    return _Trial(what, own, cotangents, expected, names[: len(expected)], wide)


def _results(
    subject: EmitSubject, own: list[Tensor], cotangents: list[Tensor] | None
) -> tuple[list[Tensor], list[Tensor], int]:
    """Cotangents, outputs and gradients of the program, and how many are outputs."""
    outputs = subject.call(*subject.captured.fill(own))
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    live = [y for y in outputs if y.requires_grad]
    if cotangents is None:
        draw = torch.Generator().manual_seed(0)
        cotangents = [torch.randn(y.shape, generator=draw).to(y) for y in live]
    wanted = [x for x in own if x.requires_grad]
    pulled: tuple[Tensor, ...] = ()
    if live and wanted:
        given = [c.to(y.dtype) for c, y in zip(cotangents, live, strict=True)]
        pulled = torch.autograd.grad(live, wanted, given, materialize_grads=True)
    return cotangents, [y.detach() for y in (*outputs, *pulled)], len(outputs)


def _compared(trial: _Trial, got: Sequence[Tensor] | str) -> TextDifference | None:
    if isinstance(got, str):
        return TextDifference("output", trial.what, "no error", got)
    allowed = max(TOLERANCES.get(x.dtype, 0.0) for x in trial.given)
    for place, (name, value, other) in enumerate(
        zip(trial.names, trial.expected, got, strict=True)
    ):
        kinds = [f"{name}: {y.dtype} {tuple(y.shape)}" for y in (value, other)]
        if kinds[0] != kinds[1]:
            return TextDifference("output", trial.what, kinds[0], kinds[1])
        other = other.to(value.device)
        worst = _distance(other, value)
        if not worst <= allowed and trial.wide is not None:
            exact = trial.wide[place]
            worst = min(worst, _distance(other, exact) - 2 * _distance(value, exact))
        if not worst <= allowed:
            return TextDifference(
                "output", trial.what, f"{name} within {allowed:g}", f"{worst:.2g} away"
            )
    return None


# ---- running it ----

_DRIVER = """\
import importlib.util, sys, torch

folder, name = sys.argv[1:]
spec = importlib.util.spec_from_file_location("emitted", f"{folder}/emitted.py")
module = importlib.util.module_from_spec(spec)
sys.modules["emitted"] = module
found = []
spec.loader.exec_module(module)
for given, cotangents in torch.load(f"{folder}/trials.pt"):
    try:
        outputs = getattr(module, name).apply(*given)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        live = [y for y in outputs if y.requires_grad]
        wanted = [x for x in given if x.requires_grad]
        pulled = ()
        if live and wanted:
            pulled = torch.autograd.grad(live, wanted, cotangents, materialize_grads=True)
        found.append([y.detach() for y in (*outputs, *pulled)])
    except Exception as error:
        found.append(f"{type(error).__name__}: {str(error)[:300]}")
torch.save(found, f"{folder}/found.pt")
"""


def _interpreted(subject: EmitSubject, text: str, trials: Sequence[_Trial]) -> list[Any]:
    """What the file gives in Triton's interpreter, which only a new process can switch on."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "emitted.py").write_text(text, encoding="utf-8")
        torch.save([(one.given, one.cotangents) for one in trials], f"{folder}/trials.pt")
        environment = {
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-W", "ignore", "-c", _DRIVER, folder, subject.name]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            return [said] * len(trials)
        return list(torch.load(f"{folder}/found.pt"))


def _in_process(subject: EmitSubject, text: str, trials: Sequence[_Trial]) -> list[Any]:
    """What the file gives on the GPU."""
    space: dict[str, Any] = {"__name__": "emitted"}
    run_text(text, f"kernels of {subject.name}", space)
    function, found = space[subject.name].apply, []
    for one in trials:
        with aside():
            outputs = function(*one.given)
            outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
            live = [y for y in outputs if y.requires_grad]
            wanted = [x for x in one.given if x.requires_grad]
            pulled: Sequence[Tensor] = ()
            if live and wanted:
                pulled = torch.autograd.grad(live, wanted, one.cotangents, materialize_grads=True)
            found.append([y.detach() for y in (*outputs, *pulled)])
    return found


def _distance(got: Tensor, expected: Tensor) -> float:
    """How far numbers are from others, of the size of the others; infinite where NaN differs."""
    a, b = got.detach().double(), expected.detach().double()
    if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
        return float("inf")
    known = b.isfinite()
    a, b = a[known], b[known]
    if not b.numel():
        return 0.0
    scale = b.abs().max().clamp(min=1e-6)
    return float(((a - b).abs() / torch.maximum(b.abs(), scale * 0.1)).max())
