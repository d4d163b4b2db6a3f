"""What happens in the process beside the candidate's: the reference, the truth, and the limits.

No code of a candidate ever runs here. It reads a candidate's results from files, as tensors alone.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.candidates.calling import call_once, reactions
from pullback.candidates.comparing import Truth, digest_of, rounded_truths, truth_of
from pullback.candidates.host import Talk
from pullback.candidates.limits import limits_of, needs_of
from pullback.candidates.sections import Caller
from pullback.candidates.sources import Source, fingerprints_of
from pullback.candidates.trials import GIVEN, Trial, TrialMaker
from pullback.errors import ExamplesError
from pullback.judge.example import describe_value, example_of, tensors_in
from pullback.run.lowering.lower import compile_privately

KEPT = 4  # truths that are kept for another look


def serve(talk: Talk) -> None:
    """Do what is asked for, until nobody asks."""
    here = Referee()
    verbs = ("start", "truth", "compare", "digest", "reacts", "compile", "prepare", "go", "limits")
    talk.serve({verb: getattr(here, verb) for verb in verbs})


class Referee:
    """The reference of this process, and the truths that were asked for last."""

    def __init__(self) -> None:
        self._truths: dict[tuple[str, bool], Truth] = {}
        self._calls: dict[str, Callable[..., Any]] = {}

    def start(self, source: Source, inputs: Source | None, path: str) -> dict[str, Any]:
        """Load the reference and its inputs; write the examples into a file."""
        target = source.target()
        self._calls = {"eager": target.call}
        given = _given(target, inputs)
        self.maker = TrialMaker([example_of(args) for args in given])
        torch.save(list(self.maker.examples), Path(path))
        first = self.maker.examples[0]
        self.names = target.names_of(len(first.args))
        self._callers = {
            gradients: Caller(self.maker, gradients=gradients) for gradients in (False, True)
        }
        called = call_once(target.call, first, 0, gradients=False)
        again = call_once(target.call, first, 0, gradients=False)
        is_steady = digest_of(called.outputs) == digest_of(again.outputs)
        tensors = tensors_in(first.args)
        return {
            "symbols": self.maker.symbols(),
            "names": list(self.names),
            "needs": [sorted(example.needs) for example in self.maker.examples],
            "has_gradient": self._has_gradient(),
            "is_steady": is_steady,
            "changes": self._changes(),
            "device": _device(tensors),
            "codes": fingerprints_of(source.loaded())
            if source.name
            else fingerprints_of(target.call),
            "elements": max(example.size for example in self.maker.examples),
            "bytes": sum(t.numel() * t.element_size() for t in called.outputs),
            "inputs": [
                ", ".join(
                    f"{n}: {describe_value(a)}" for n, a in zip(self.names, e.args, strict=False)
                )
                for e in self.maker.examples
            ],
        }

    def _has_gradient(self) -> bool:
        args = self.maker.examples[0].fresh()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return any(t.requires_grad for t in tensors_in(self._calls["eager"](*args)))

    def _changes(self) -> list[int]:
        """The tensors among the arguments that the reference itself writes into."""
        example = self.maker.examples[0]
        called = call_once(self._calls["eager"], example, 0, gradients=False)
        pairs = zip(tensors_in(called.args), tensors_in(example.args), strict=True)
        return [i for i, (a, b) in enumerate(pairs) if digest_of([a]) != digest_of([b])]

    # ---- truth ----

    def truth(self, trial: Trial, gradients: bool) -> dict[str, Any]:
        """Whether the reference takes the inputs of a trial, with finite results."""
        try:
            truth = self._truth(trial, gradients)
        except Exception as error:
            return {"accepted": False, "why": type(error).__name__}
        if truth is None:
            return {"accepted": False, "why": "it would break what the example shows"}
        is_fine = truth.is_finite or trial.values == GIVEN
        return {"accepted": is_fine, "why": "" if is_fine else "not finite", "digest": truth.digest}

    def _truth(self, trial: Trial, gradients: bool) -> Truth | None:
        key = (repr(trial), gradients)
        if key not in self._truths:
            example = self.maker.made(trial)
            if example is None:
                return None
            needs = [self.names[i] for i in sorted(example.needs)] if gradients else []
            call = self._calls["eager"]
            truth = truth_of(call, example, trial.draw, needs, gradients=gradients)
            while len(self._truths) >= KEPT:
                del self._truths[next(iter(self._truths))]
            self._truths[key] = truth
        return self._truths[key]

    def compare(self, trial: Trial, gradients: bool, path: str) -> dict[str, Any]:
        """What the results in a file are beside the truth."""
        truth = self._truth(trial, gradients)
        got = _loaded(path)
        Path(path).unlink(missing_ok=True)  # it may be large
        if truth is None or got is None:
            return {"status": "shape", "what": "results", "got": "no tensors in the file"}

        def rounded() -> Any:
            example = self.maker.made(trial)
            assert example is not None
            call, plain = self._calls["eager"], truth.plain
            return rounded_truths(call, example, trial.draw, plain, gradients=gradients)

        return truth.compare(got, rounded).to_json()

    def digest(self, path: str) -> dict[str, Any]:
        """A short text for the results in a file."""
        return {"digest": digest_of(_loaded(path) or [])}

    def reacts(self, trial: Trial, side: int) -> dict[str, Any]:
        """By argument: whether the outputs change with one half of it."""
        try:
            return {"reacts": reactions(self._calls["eager"], self.maker, trial, side)}
        except Exception:  # other numbers need not be any that it takes
            return {"reacts": []}

    # ---- times ----

    def compile(self) -> dict[str, Any]:
        """Let `torch.compile` of the reference be timed as well."""
        compile_privately()
        call = torch.compile(self._calls["eager"], dynamic=False)
        for gradients in (False, self._has_gradient()):
            call_once(call, self.maker.examples[0], 0, gradients=gradients)
        self._calls["compiled"] = call
        return {}

    def prepare(self, mode: str, trials: Sequence[Trial], gradients: bool) -> dict[str, Any]:
        """Make the arguments of a section."""
        self._caller = self._callers[gradients]
        if not self._caller.knows_outputs:
            example = self.maker.examples[0]
            self._caller.remember(call_once(self._calls["eager"], example, 0, gradients=False))
        self._caller.prepare(mode, trials)
        return {}

    def go(self, which: str, cold: bool) -> dict[str, Any]:
        """Make the calls of a section: how long each took."""
        section = self._caller.run(self._calls[which], cold=cold)
        return {"times": section.times}

    def limits(self, gradients: bool) -> dict[str, Any]:
        """What the machine can do, and what the calls need at least."""
        example = self.maker.examples[0]
        try:
            needs = needs_of(self._calls["eager"], example, gradients=gradients)
            return {"machine": limits_of(example, needs), "needs": needs}
        except Exception as error:  # counting needs ops that PyTorch knows
            return {"machine": {}, "needs": {}, "why": type(error).__name__}


def _given(target: Any, inputs: Source | None) -> list[tuple[Any, ...]]:
    """The arguments to judge with: those given, else `examples` of the reference or its module."""
    given: Any = inputs.loaded() if inputs is not None else None
    if given is None:
        module = getattr(target.thing, "__module__", "")
        given = getattr(target.thing, "examples", None)
        if given is None:
            given = getattr(sys.modules.get(module), "examples", None)
    given = given() if callable(given) else given
    if isinstance(given, Tensor):
        given = (given,)
    rows = given if isinstance(given, list) else [given]
    if not rows or not all(isinstance(row, tuple) and row for row in rows):
        raise ExamplesError(
            f"`{target.name}` must come with inputs to judge with",
            expected="a tuple of arguments, a list of such tuples, or a function that gives one",
            got=type(given).__name__ if given is not None else "none",
        )
    return rows


def _device(tensors: Sequence[Tensor]) -> str:
    gpus = [tensor for tensor in tensors if tensor.is_cuda]
    return str(gpus[0].device) if gpus else "cpu"


def _loaded(path: str) -> list[Tensor | None] | None:
    """The tensors in a file that a candidate wrote; None where there is something else."""
    try:
        found = torch.load(Path(path), weights_only=True)
    except Exception:  # a candidate may write anything into it
        return None
    is_fine = isinstance(found, list) and all(t is None or isinstance(t, Tensor) for t in found)
    return found if is_fine else None
