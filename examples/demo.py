"""What pullback does, in a minute: `python -m examples.demo`.

Exits with 0 when every right Function agrees with PyTorch's own derivative, `pb.check` finds both
published mistakes with their reasons and nothing on the others, else with 1.
"""

import functools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor

import pullback as pb
from examples import (
    combined,
    hybrid,
    my_activation,
    my_complex_op,
    my_elementwise,
    my_function,
    my_relu,
    nested,
    planned,
    roi_align,
)
from examples.compare import Difference, Inputs, compare, text_of, worst_of
from pullback.emit.compiled import has_compiler

# Rounding of float64 stays far below this.
AGREES = 1e-12
SECONDS = 12.0  # for the plan
TOLD = ("place", "at", "expected", "got", "why", "fix")  # of a finding; the rest is in the page


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A custom function, the formula it computes, and the same in plain PyTorch."""

    name: str
    formula: str
    apply: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    inputs: Callable[[], Inputs]

    def differences(self) -> list[Difference]:
        """The largest difference from PyTorch in the output and in each gradient."""
        return compare(self.apply, self.plain, self.inputs())


RIGHT = (
    Exhibit(
        "CombinedFunction",
        "x^2 + sin y, one node",
        combined.CombinedFunction.apply,
        combined.plain,
        combined.inputs,
    ),
    Exhibit(
        "SquareFunction",
        "x^2",
        nested.SquareFunction.apply,
        torch.square,
        nested.inputs,
    ),
    Exhibit("SineFunction", "sin x", nested.SineFunction.apply, torch.sin, nested.inputs),
    Exhibit("both, nested", "sin(x^2), two nodes", nested.nested, nested.plain, nested.inputs),
    Exhibit(
        "ComplexFunction",
        "x^2 * sin y, a hybrid",
        hybrid.ComplexFunction.apply,
        hybrid.plain,
        hybrid.inputs,
    ),
    Exhibit(
        "MyActivation",
        "sigmoid(x) / sqrt(1 + e^x)",
        my_activation.MyActivation.apply,
        my_activation.plain,
        my_activation.inputs,
    ),
    Exhibit(
        "MyElementWise",
        "x * e^-y",
        my_elementwise.MyElementWise.apply,
        my_elementwise.plain,
        my_elementwise.inputs,
    ),
    Exhibit(
        "MyComplexOp",
        "sin(x)^2",
        my_complex_op.MyComplexOp.apply,
        my_complex_op.plain,
        my_complex_op.inputs,
    ),
    Exhibit(
        "MyFunction",
        f"x *= {my_function.FACTOR}, in place",
        my_function.in_place,
        my_function.plain,
        my_function.inputs,
    ),
    Exhibit("MyReLU", "max(x, 0)", my_relu.MyReLU.apply, my_relu.plain, my_relu.inputs),
    Exhibit(
        "ROIAlignFunction",
        "image features in boxes",
        roi_align.sampled,
        roi_align.plain,
        roi_align.inputs,
    ),
)
PUBLISHED = (
    Exhibit(
        "MyActivationAsPublished",
        "its second factor is taken for a constant",
        my_activation.MyActivationAsPublished.apply,
        my_activation.plain,
        my_activation.inputs,
    ),
    Exhibit(
        "MyComplexOpAsPublished",
        "the saved sine is taken for the input",
        my_complex_op.MyComplexOpAsPublished.apply,
        my_complex_op.plain,
        my_complex_op.inputs,
    ),
)


def show_right(console: Console) -> bool:
    """Each right Function beside PyTorch's derivative, then under every rule; whether all pass."""
    results = [_show_right(console, exhibit) for exhibit in RIGHT]
    return all(results)


def _show_right(console: Console, exhibit: Exhibit) -> bool:
    size = worst_of(exhibit.differences()).size
    verdict = "[green]agrees[/]" if size < AGREES else "[red]DIFFERS[/]"
    # Its name and verdict come first, since the rules take their time.
    console.print(f"   {exhibit.name:<18}{exhibit.formula:<28}", verdict, end=" ", soft_wrap=True)
    report = pb.check(exhibit.apply, tuple(exhibit.inputs().values()), profile="quick")
    told = "[green]nothing found[/]" if report.ok else "[red]FINDINGS[/]"
    tried = f"{len(report.rules)} rules, {report.tried.get('runs', 0)} runs"
    say(console, f"({text_of(size)}); {told}, {tried}")
    if not report.ok:
        say(console, escape(str(report)))
    return size < AGREES and bool(report.ok)


def show_published(console: Console) -> bool:
    """What the checker says of the published backwards; whether it finds both, with a reason."""
    found = [_show_finding(console, exhibit) for exhibit in PUBLISHED]
    return all(found)


def _show_finding(console: Console, exhibit: Exhibit) -> bool:
    # "deep" gives the search for the reason all the time that it needs.
    inputs = tuple(exhibit.inputs().values())
    report = pb.check(exhibit.apply, inputs, select=["gradient"], profile="deep")
    if len(report.findings) != 1:
        say(console, f"   {exhibit.name}: [red]NOT FOUND WRONG[/]")
        return False
    (finding,) = report.findings
    say(console, f"   {exhibit.name}: [red]{escape(finding.head)}[/]")
    for label, fact in finding.labelled():
        if label in TOLD:
            say(console, escape(f"     {label + ':':<10}{fact}"))
    return bool(finding.why and finding.fix and finding.facts.get("backward"))


def show_derived(console: Console) -> bool:
    """The right backwards of the two, derived from their forwards; whether they agree."""
    agreed = [_show_derivation(console, exhibit) for exhibit in PUBLISHED]
    return all(agreed)


def _show_derivation(console: Console, exhibit: Exhibit) -> bool:
    inputs = exhibit.inputs()
    derived = pb.derive(exhibit.plain, *inputs.values())
    size = worst_of(compare(derived.apply, exhibit.plain, inputs)).size
    backward = derived.source().partition("def backward")[2].splitlines()
    body = [line[4:] for line in backward[1:] if line.strip()]
    agrees = size < AGREES
    say(
        console,
        f"   for {exhibit.name}: {'[green]agrees[/]' if agrees else '[red]DIFFERS[/]'}"
        f" with PyTorch, difference {text_of(size)}",
        *(escape(f"   {line}") for line in body),
    )
    return agrees


def show_in_place(console: Console) -> bool:
    """Show that an in-place Function changes its input and protects earlier saves."""
    x = my_function.inputs()["x"].clone()
    square = x**2
    old, version = x.tolist(), x._version
    output = my_function.MyFunction.apply(x, my_function.FACTOR)
    same = output is x
    refused = _refuses_backward(square)
    say(
        console,
        f"   x before the call                            {old}",
        f"   x after the call                             {x.tolist()}",
        f"   the output is the tensor x itself            {_yes(same)}",
        f"   the version of x                             {version} before, {x._version} after",
        f"   x^2, taken before, now refuses its backward  {_yes(refused)}",
    )
    return same and x._version > version and refused


def _refuses_backward(output: Tensor) -> bool:
    try:
        output.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


def show_operator(console: Console) -> bool:
    """Show that ROI align, an operator of its own, is differentiable twice and compiles whole."""
    features, rois = roi_align.inputs().values()
    twice = torch.autograd.gradgradcheck(
        lambda x: roi_align.sampled(x, rois), (features,), fast_mode=True, raise_exception=False
    )
    checks = torch.library.opcheck(
        torch.ops.pullback_examples.roi_align.default,
        (features, rois, 1.0, 2, 2, 0, True),
        raise_exception=False,
    )
    passed = all(result == "SUCCESS" for result in checks.values())
    say(
        console,
        f"   its second derivative equals finite differences       {_yes(twice)}",
        f"   PyTorch's operator check: schema, autograd, compile   {_yes(passed)}",
    )
    return twice and passed


def show_planned(console: Console) -> bool:
    """Show every way to run square(x) * sin(y), and which one wins here; whether that is right."""
    plan = planned.make_plan(min(planned.BUDGET, SECONDS))
    for sized in plan.evidence.sized:
        say(console, f"   {sized.size} elements")
        for row in sorted(sized.rows, key=lambda row: row.relative):
            say(console, escape(f"   {'*' if row == sized.row else ' '} {_row(row)}"))
    size = worst_of(compare(plan.best, planned.plain, planned.inputs())).size
    agrees = size < AGREES
    told = "[green]agrees[/]" if agrees else "[red]DIFFERS[/]"
    say(console, f"   The chosen one {told} with PyTorch, difference {text_of(size)}")
    return agrees


@dataclass(frozen=True, slots=True)
class Emitted:
    """MyComplexOp as C++, and the process that builds it, where there is a compiler."""

    folder: tempfile.TemporaryDirectory
    file: Path
    process: subprocess.Popen | None


@functools.cache
def emitted() -> Emitted:
    """The C++, which is built on a second core while other things are shown."""
    folder = tempfile.TemporaryDirectory()
    given = tuple(my_complex_op.inputs().values())
    # It is built and compared by us, where that can be watched.
    pb.emit(my_complex_op.MyComplexOp, "cpp", examples=given, path=folder.name, verify=False)
    (file,) = (path for path in Path(folder.name).glob("*.cpp") if path.name != "main.cpp")
    code = f"import pullback; pullback.build({str(file)!r})"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL) if has_compiler() else None
    return Emitted(folder, file, process)


def show_emitted(console: Console) -> bool:
    """Show the right MyComplexOp as C++, built where there is a compiler; whether it agrees."""
    made = emitted()
    source = made.file.read_text("utf-8")
    body = source.partition("  static variable_list backward")[2].partition("\n  }\n")[0]
    lines = ["static variable_list backward" + body, "}"]
    say(console, *(escape(f"   {line}") for line in "\n".join(lines).splitlines()))
    if made.process is None:
        say(console, "   There is no C++ compiler here, so it is not built.")
        return True
    if made.process.poll() is None:
        say(console, "   Its build began with step 1, and is not yet done.")
    made.process.wait()
    op = pb.build(made.file)  # as it was built
    size = worst_of(compare(op, my_complex_op.plain, my_complex_op.inputs())).size
    agrees = size < AGREES
    told = "[green]agrees[/]" if agrees else "[red]DIFFERS[/]"
    say(console, f"   The op {told} with PyTorch, difference {text_of(size)}")
    return agrees


def _row(row) -> str:
    how = f"{row.candidate.backend} {row.candidate.save}".strip() or "as written"
    return f"{row.label:<38}{how:<20}{row.speedup:6.2f} times as fast"


def _yes(answer: bool) -> str:
    return "[green]yes[/]" if answer else "[red]NO[/]"


def say(console: Console, *lines: str) -> None:
    """Print lines as they are: a narrow terminal wraps them, a pipe does not."""
    for line in lines:
        console.print(line, soft_wrap=True)


STEPS = (
    (
        "Custom functions that are right: compared with PyTorch's derivative, then pb.check",
        "The checker knows neither the formula nor the plain twin; in brackets, the difference.",
        "show_right",
    ),
    (
        "Two published backwards that are wrong, and why: pb.check",
        "Their forwards are right and nothing raises: a network would train on these gradients.",
        "show_published",
    ),
    (
        "The right backwards, derived from the same forwards: pb.derive",
        "PyTorch's own derivatives, as source in your variables that needs only torch.",
        "show_derived",
    ),
    (
        "A change in place is known to autograd: MyFunction",
        "It multiplies its input where it stands.",
        "show_in_place",
    ),
    (
        "A kernel of its own behind a Function: ROIAlignFunction",
        "An operator that PyTorch can differentiate twice and compile.",
        "show_operator",
    ),
    (
        "The right one as standalone C++: pb.emit, pb.build",
        "A torch::autograd::Function behind an op, for Python and for pure C++.",
        "show_emitted",
    ),
    (
        "Combined, nested, or in groups? Measured here, forward and backward: pb.plan",
        "square(x) * sin(y) in every grouping; brackets share a node, and * is chosen.",
        "show_planned",
    ),
)
"""What is shown: a title, a sentence, and the name of the function that does it."""


def main(console: Console | None = None) -> int:
    """Walk through the steps; 0 when everything is as it should be, else 1."""
    console = console or Console(highlight=False)
    start = time.perf_counter()
    say(console, "pullback: custom autograd functions for PyTorch, right and fast", "")
    emitted()  # its build takes as long as the first steps
    results = [_step(console, number, *step) for number, step in enumerate(STEPS, 1)]
    ok = all(results)
    say(
        console,
        "[green]All Functions agree with PyTorch, and both published mistakes were found.[/]"
        if ok
        else "[red]Something above is not as it should be.[/]",
        f"That took {time.perf_counter() - start:.0f} s. Next: pullback check your_file.py",
    )
    return 0 if ok else 1


def _step(console: Console, number: int, title: str, sentence: str, name: str) -> bool:
    """Say what comes, do it, and say how long it took."""
    say(console, f"[bold]{number}. {title}[/]", f"   {sentence}")
    start = time.perf_counter()
    is_right: bool = globals()[name](console)
    say(console, f"   [dim]{time.perf_counter() - start:.1f} s[/]", "")
    return is_right


if __name__ == "__main__":
    sys.exit(main())
