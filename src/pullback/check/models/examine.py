"""The passes through a whole model: what they show of its gradients, as plain values.

In a worker where that can be. The module is left as it was: parameters are read, and buffers that
forward changes are put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.function import Function as TorchFunction

from pullback.check.findings.finding import Finding, Rule
from pullback.check.models.gradients import ModelSlopes, SlopePair
from pullback.check.models.observer import CallOrigin, ObservedPass, Observer
from pullback.check.models.program import ModelProgram
from pullback.check.models.rules import CUT, NOT_FINITE, UNUSED, WRONG, model_rules
from pullback.check.options import CheckOptions
from pullback.check.recordings.inside import stored_calls
from pullback.check.recordings.recorded import Recording
from pullback.check.target.target import Target, target_of
from pullback.function.modes import uncompiled
from pullback.judge.example import Example
from pullback.judge.run import describe, run

KINDS = 1_000  # distinct calls of one Function that are kept
NAMED = 6  # parameters that one finding names
LOOKED_AT = 48  # parameters without a gradient that are differenced


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a check of a model is asked for."""

    target: Target
    examples: tuple[Example, ...]
    wanted: frozenset[int]  # the inputs that the user gave with `requires_grad`
    options: CheckOptions

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return self.target.names_of(max(len(example.args) for example in self.examples))


@dataclass(slots=True)
class Examined:
    """What the passes through a model showed: plain values, which a worker can send."""

    calls: bytes = b""
    lost: list[str] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    places: dict[str, dict[str, int]] = field(default_factory=dict)
    observed: ObservedPass | None = None
    findings: list[Finding] = field(default_factory=list)
    suspects: tuple[str, ...] = ()  # names of Functions without which the gradients are right
    notes: list[str] = field(default_factory=list)
    runs: int = 0


def examine(asked: ModelRequest, rules: set[str]) -> Examined:
    """What the passes show, in this process; `rules` are the names of those that are tried."""
    module, example = asked.target.thing, asked.examples[0]
    names, found = asked.names, Examined()
    with uncompiled(), restoring(module):
        recording = Recording(kinds=KINDS)
        with recording.watching():
            for one in asked.examples:
                run(asked.target.call, one, names)
        found.calls, found.lost = stored_calls(recording)
        found.times = dict(recording.times)
        found.places = {name: dict(counts) for name, counts in recording.places.items()}
        found.notes += [f"not checked: {why}" for why in recording.left_out]
        program = ModelProgram(module, example, names, asked.wanted)
        classes = [c.function for c in recording.calls if _is_class(c.function)]
        try:
            found.observed = Observer(program).observe()
        except Exception as error:
            found.notes.append(f"backward through the whole model fails: {describe(error)}")
            return found
        found.findings += _of_observed(program, found.observed)
        if not found.observed.broken and not found.observed.has_nan_output:
            _compare(program, found, list(dict.fromkeys(classes)))
    found.findings = [one for one in found.findings if one.rule.name in rules]
    return found


def _is_class(function: Any) -> bool:
    return isinstance(function, type) and issubclass(function, TorchFunction)


def _of_observed(program: ModelProgram, seen: ObservedPass) -> Iterator[Finding]:
    """The origin of what is not finite."""
    if seen.has_nan_output:
        yield _made(
            NOT_FINITE,
            seen.forward_origin,
            at=f"forward, {seen.forward_origin or 'a call that is not seen'}",
            expected="outputs that are numbers, at finite inputs",
            got="NaN, which this call is the first to make",
        )
    elif seen.broken:
        yield _made(
            NOT_FINITE,
            seen.backward_origin,
            at=f"backward of {seen.backward_origin or 'a call that is not seen'}",
            expected="finite gradients",
            got=f"NaN or infinity in the gradient of {_listed(seen.broken)}; this is the first "
            "call that makes such of finite ones",
        )


def _compare(program: ModelProgram, found: Examined, classes: list[type]) -> None:
    """Gradients that are missing, and those that are not slopes of the outputs."""
    slopes = ModelSlopes(program)
    assert found.observed is not None
    allowed = {*program.parameters, *map(program.input_key, program.asked)}
    missing = [name for name in found.observed.missing if name in allowed]
    cut, unused = _parted(slopes, missing[:LOOKED_AT])
    found.findings += (_cut(program, found.observed, *one) for one in cut.items())
    if unused:
        found.findings.append(
            _made(
                UNUSED,
                at=f"the parameter{'s' * (len(unused) > 1)} {_listed(unused)}",
                expected="a gradient, or `requires_grad=False`",
                got=f"None for {len(unused)} of {len(program.parameters)} parameters",
                fix="remove what forward does not use, or set its `requires_grad` to False",
            )
        )
    if len(missing) > LOOKED_AT:
        found.notes.append(
            f"of {len(missing)} parameters without a gradient {LOOKED_AT} are reported"
        )
    wrong = slopes.is_wrong(slopes.gradients())
    if wrong is not None:
        found.suspects = tuple(target_of(cls).name for cls in slopes.suspects(classes))
        _add_wrong(found, wrong)


def _cut(program: ModelProgram, observed: ObservedPass, name: str, slope: float) -> Finding:
    """A parameter or input along which the outputs have a slope, without a gradient."""
    origins = observed.cuts.get(name, [])
    where = "; ".join(map(str, origins[:3])) or "a call that is not seen"
    kind = "the parameter" if name in program.parameters else "the input"
    return _made(
        CUT,
        origins[0] if origins else None,
        at=f"{kind} `{name}`, cut by {where}",
        expected=f"a gradient: the outputs have a slope of {slope:.4g} along it",
        got="None",
        fix=f"use `{name}` itself, or set its `requires_grad` to False where it is meant",
    )


def _add_wrong(found: Examined, wrong: SlopePair) -> None:
    """Add that the gradients are not the slopes of the outputs: a finding where one is at fault."""
    claimed, value = f"{wrong.claimed:.5g}", f"{wrong.estimate.value:.5g}"
    if found.suspects:
        names = ", ".join(f"`{name}`" for name in found.suspects)
        found.findings.append(
            _made(
                WRONG,
                at=f"the gradients of parameters and inputs, through {names}",
                expected=f"{value}, the slope of the outputs along a direction",
                got=claimed,
                why=f"with the forward of {names} alone, autograd gives the slope",
            )
        )
        return
    assert found.observed is not None
    cuts = dict.fromkeys(one for many in found.observed.cuts.values() for one in many)
    where = f"; gradients are cut at {', '.join(map(str, list(cuts)[:3]))}" if cuts else ""
    gap = f"{claimed} by autograd, {value} by differences"
    found.notes.append(f"the gradients are not the slopes of the outputs ({gap}){where}")


def _parted(slopes: ModelSlopes, names: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    """Those without a gradient along which the outputs have a slope, and the others."""
    cut: dict[str, float] = {}
    unused: list[str] = []
    for name in names:
        if not slopes.changes(name):
            unused.append(name)
            continue
        slope = slopes.along([name], {name: None})
        if slope is not None and slope.is_certain and slope.estimate.value:
            cut[name] = slope.estimate.value
        elif slope is None or not slope.estimate.is_known or not slope.estimate.value:
            unused.append(name)
    return cut, [name for name in unused if name in slopes.program.parameters]


def _made(rule: Rule, origin: CallOrigin | None = None, **facts: Any) -> Finding:
    whole = next(one.rule for one in model_rules() if one.rule.code == rule.code)
    return Finding.made(whole, place=origin.place if origin is not None else "", **facts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:NAMED]) + more


@contextmanager
def restoring(module: nn.Module) -> Iterator[None]:
    """Afterwards, the buffers of a module are as they were."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
