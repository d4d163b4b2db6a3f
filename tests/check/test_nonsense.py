"""Findings are data: with nonsense for all their words, the same is found, folded and shown."""

import re
from dataclasses import replace

import pytest

import pullback as pb
from benchmarks.faults.case import find
from pullback.check.findings.finding import Finding

made = Finding.made.__func__
NONSENSE = "zwiebelfisch: 7 of `q`, at [9]"

# Faults of many kinds, each found by another rule, most of them with echoes and with a repro.
FAULTS = (
    "AddInPlace",
    "CacheCleared",
    "ClampedCotangent",
    "ClassState",
    "ClosedOverGain",
    "DropSmall",
    "FrozenCrash",
    "GradientIsSaved",
    "GradStash",
    "LossHead",
    "MatVmap",
    "NormJvp",
    "OutputCycle",
    "ScaledSoftmax",
    "ScaleKernel",
    "SinCosLazy",
    "UnreducedBias",
)


def made_of_nonsense(cls, *args, **facts):
    """A finding whose words are nonsense from the start, and to the end."""
    told = {name: NONSENSE for name in ("why", "fix") if facts.get(name)}
    return garbled(made(cls, *args, **facts | told))


def garbled(finding):
    """The same finding, as far as it is data."""
    about = finding.about
    facts = {name: _garbled(getattr(about, name)) for name in ("at", "expected", "got")}
    words = ("at", "expected", "got", "inputs", "why", "fix")
    told = {name: NONSENSE for name in words if getattr(finding, name)}
    return replace(finding, **told, about=replace(about, **facts))


def _garbled(fact):
    return replace(fact, rest=NONSENSE) if getattr(fact, "rest", "") else fact


def seen(report):
    """What was found: the rules in order, what is folded into each, and the programs."""
    return [
        (
            finding.rule.code,
            str(finding.weight),
            re.findall(r"\(([A-Z]\d{3})\)", finding.facts.get("also", "")),
            re.sub(r"  # .*", "", finding.repro),
        )
        for finding in report.findings
    ]


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", FAULTS)
def test_words_are_not_needed(name, monkeypatch):
    case = find(name)
    usual = pb.check(case.target, case.inputs, profile="quick")
    monkeypatch.setattr(Finding, "made", classmethod(made_of_nonsense))
    garbage = pb.check(case.target, case.inputs, profile="quick")

    assert usual.findings
    assert seen(garbage) == seen(usual)
    assert all(NONSENSE in str(finding) for finding in garbage.findings)
