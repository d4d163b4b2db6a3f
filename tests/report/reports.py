"""A report to render: every field filled, every severity there, and odd characters in the words."""

from pullback.check.findings.facts import At, Gradient, Number
from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.findings.report import Report
from pullback.judge.run import Raised

VALUES = Rule("G101", "wrong-gradient", "gradient", sentence="Each gradient must be right")
LAYOUT = Rule("Y401", "cotangent-layout", "layout", Severity.FRAGILE, sentence="Any layout")
SAVED = Rule("B854", "unread-saved", "memory", Severity.WASTEFUL, sentence="Read what is saved")

WRONG = Finding.made(
    VALUES,
    at=At(Gradient("x"), (6,), wrong=9, total=9),
    expected=Number(0.170933),
    got=Number(-0.0634372),
    inputs="x: float64[9]",
    why="the saved `sine` is used where the input `x` is needed, in a sentence that is quite long",
    fix="use `x`",
    repro="import torch\n\nassert torch.ones(1) == 2  # 100%",
    subject="Sine",
    place="my ops,old.py:41",
    facts={"backward": "def backward(ctx, g):\n    return g"},
)
FRAGILE = Finding.made(
    LAYOUT, at="[bold]backward[/]", got=Raised("RuntimeError", "100% wrong"), subject="Sine"
)
WASTEFUL = Finding.made(SAVED, at="saved tensor 0", subject="Sine", place="ops.py:3")

REPORT = Report(
    subject="Sine",
    place="my ops,old.py:41",
    findings=(WRONG, FRAGILE, WASTEFUL),
    skips=(Skip(SAVED, "it has none"), Skip(LAYOUT, "it has none")),
    tried={"runs": 12, "judged": 3},
    rules=("G101", "Y401", "B854"),
    examples=("x: float64[9]",),
    seconds=1.23456,
    notes=("the inputs are guessed",),
)
SOUND = Report(subject="Cube", rules=("G101",), tried={"runs": 1})
CUT = Report(subject="Cube", rules=("G101",), interrupted=True)
