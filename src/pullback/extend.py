"""The extension API: the names that a check or a backend of another package is written with.

A check is a module with `RULE`, a `Rule`, and `check(subject)`, which yields `Finding` or `Skip`;
its docstring is its page. `REPROS` and `RAISING` are forms that show its findings, `EXPLAINS` says
of which findings of other rules its own are the cause: all three may be left out. A package names
the module in the entry-point group `pullback.checks`:

    [project.entry-points."pullback.checks"]
    not-finite = "acme_checks.not_finite"

A backend is a `Backend`: two methods, and others that have defaults. What it must keep to stands in
`pullback.run.backend`. The groups `pullback.backends` and `pullback.targets` are kept for backends
and emitters: no entry there is read yet.

What is not here may change without notice; our own rules import from the modules themselves.
"""

from pullback.check.findings.explaining import Cause as Cause
from pullback.check.findings.facts import At as At
from pullback.check.findings.facts import Cotangent as Cotangent
from pullback.check.findings.facts import Gradient as Gradient
from pullback.check.findings.facts import Input as Input
from pullback.check.findings.facts import Number as Number
from pullback.check.findings.facts import Output as Output
from pullback.check.findings.facts import Words as Words
from pullback.check.findings.finding import Finding as Finding
from pullback.check.findings.finding import Rule as Rule
from pullback.check.findings.finding import Severity as Severity
from pullback.check.findings.finding import Skip as Skip
from pullback.check.repro.context import Form as Form
from pullback.check.repro.context import Repro as Repro
from pullback.check.repro.context import ReproContext as ReproContext
from pullback.check.repro.context import compared as compared
from pullback.check.repro.context import indented as indented
from pullback.check.repro.context import text_of as text_of
from pullback.check.subject.gap import worst_of as worst_of
from pullback.check.subject.subject import Subject as Subject
from pullback.check.subject.subject import each as each
from pullback.check.target.target import target_of as target_of
from pullback.judge.example import Example as Example
from pullback.judge.example import can_differ as can_differ
from pullback.judge.example import example_of as example_of
from pullback.judge.example import tensors_in as tensors_in
from pullback.judge.mismatch import Mismatch as Mismatch
from pullback.judge.run import BackwardFailedError as BackwardFailedError
from pullback.judge.run import ForwardRefusedError as ForwardRefusedError
from pullback.judge.run import Raised as Raised
from pullback.judge.run import Run as Run
from pullback.judge.tolerances import is_close as is_close
from pullback.run.backend import Backend as Backend
from pullback.run.nodes.node import Compiled as Compiled
from pullback.run.nodes.node import NodeSpec as NodeSpec
