"""What pullback does, in two minutes: `python -m examples.demo`.

Exits with 0 when every right Function agrees with PyTorch's own derivative, `pb.check` finds both
published mistakes with their reasons and nothing on the others, else with 1.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
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
from examples.compare import Difference, Inputs, compare, pull, text_of, worst_of
from pullback.emit.compiled import has_compiler
from pullback.report import text

# Rounding of float64 stays far below the first; the published mistakes are far above the second.
AGREES, IS_WRONG = 1e-12, 1e-2


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
    """Show how far each right Function is from PyTorch's derivative; whether all agree."""
    say(
        console,
        "[bold]1. Custom functions whose derivative is right[/]",
        "   Each runs beside the same computation in plain PyTorch, in float64; every output",
        "   value and every gradient is compared, and the largest difference shown.",
        "",
    )
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("Function", "computes", "compared", "difference", "verdict"):
        number = head in ("compared", "difference")
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    sizes = []
    for exhibit in RIGHT:
        differences = exhibit.differences()
        size = worst_of(differences).size
        compared = sum(difference.compared for difference in differences)
        verdict = "[green]agrees[/]" if size < AGREES else "[red]DIFFERS[/]"
        table.add_row(exhibit.name, exhibit.formula, str(compared), text_of(size), verdict)
        sizes.append(size)
    console.print(table)
    say(console, "")
    return max(sizes) < AGREES


def show_published(console: Console) -> bool:
    """Show where the published backwards are wrong; whether both are found so."""
    say(
        console,
        "[bold]2. Two published backwards, and where they are wrong[/]",
        "   Their forwards are right and they run without an error: a network would train",
        "   on these gradients.",
        "",
    )
    found = [_show_mistake(console, exhibit) for exhibit in PUBLISHED]
    return all(found)


def _show_mistake(console: Console, exhibit: Exhibit) -> bool:
    inputs = exhibit.inputs()
    expected, got = (
        pull(function, inputs)["gradient of `x`"] for function in (exhibit.plain, exhibit.apply)
    )
    at = int((got - expected).abs().argmax())
    error = abs(got[at] - expected[at]).item()
    found = error > IS_WRONG
    say(
        console,
        f"   {exhibit.name} is {'[red]wrong[/]' if found else 'NOT FOUND WRONG'}",
        f"     largest error  {error:7.4f}  at x = {inputs['x'][at].item():.2f}",
        f"     expected       {expected[at].item():7.4f}  PyTorch's own derivative",
        f"     got            {got[at].item():7.4f}  {exhibit.formula}",
        "",
    )
    return found


def show_checked(console: Console) -> bool:
    """Show what the checker says of all of them; whether it is right each time."""
    say(
        console,
        "[bold]3. The same, by pb.check: it knows neither the formula nor the plain twin[/]",
        "   Every rule of the quick profile on the right ones:",
        "",
    )
    results = [_show_verdict(console, exhibit) for exhibit in RIGHT]
    say(console, "", "   And on the published ones, with the reason and the right backward:", "")
    results += [_show_finding(console, exhibit) for exhibit in PUBLISHED]
    return all(results)


def _show_verdict(console: Console, exhibit: Exhibit) -> bool:
    report = pb.check(exhibit.apply, tuple(exhibit.inputs().values()), profile="quick")
    told = "[green]nothing found[/]" if report.ok else "[red]FINDINGS[/]"
    tried = f"{len(report.rules)} rules, {report.tried.get('runs', 0)} runs"
    say(console, f"   {exhibit.name:<18}{told}, {tried}")
    if not report.ok:
        text.show(report, console)
    return bool(report.ok)


def _show_finding(console: Console, exhibit: Exhibit) -> bool:
    # "deep" gives the search for the reason all the time that it needs.
    inputs = tuple(exhibit.inputs().values())
    report = pb.check(exhibit.apply, inputs, select=["gradient"], profile="deep")
    text.show(report, console)
    say(console, "")
    if len(report.findings) != 1:
        say(console, f"   {exhibit.name}: [red]NOT FOUND WRONG[/]", "")
        return False
    (finding,) = report.findings
    return bool(finding.why and finding.fix and finding.facts.get("backward"))


def show_derived(console: Console) -> bool:
    """Show the right backwards of the two, derived from their forwards; whether they agree."""
    say(
        console,
        "[bold]4. The right backwards, derived from the same forwards: pb.derive[/]",
        "   PyTorch's own derivatives, as source in your variables that needs only torch.",
        "",
    )
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
        "",
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
        "[bold]5. A change in place is known to autograd: MyFunction[/]",
        f"   x before the call                            {old}",
        f"   x after the call                             {x.tolist()}",
        f"   the output is the tensor x itself            {_yes(same)}",
        f"   the version of x                             {version} before, {x._version} after",
        f"   x^2, taken before, now refuses its backward  {_yes(refused)}",
        "",
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
        "[bold]6. A kernel of its own behind a Function: ROIAlignFunction[/]",
        f"   its second derivative equals finite differences       {_yes(twice)}",
        f"   PyTorch's operator check: schema, autograd, compile   {_yes(passed)}",
        "",
    )
    return twice and passed


def show_planned(console: Console) -> bool:
    """Show every way to run square(x) * sin(y), and which one wins here; whether that is right."""
    say(
        console,
        "[bold]7. Combined, nested, or in groups? Measured here, forward and backward: pb.plan[/]",
        "   square(x) * sin(y) as three nodes, as one, and every grouping between; those in",
        "   brackets share a node. The marked ones were chosen.",
        "",
    )
    plan = planned.make_plan()
    for sized in plan.evidence.sized:
        say(console, f"   {sized.size} elements")
        for row in sorted(sized.rows, key=lambda row: row.relative):
            say(console, escape(f"   {'*' if row == sized.row else ' '} {_row(row)}"))
        say(console, "")
    say(console, *(escape(f"   {line}") for line in plan.explain().splitlines()), "")
    size = worst_of(compare(plan.best, planned.plain, planned.inputs())).size
    agrees = size < AGREES
    told = "[green]agrees[/]" if agrees else "[red]DIFFERS[/]"
    say(console, f"   The chosen one {told} with PyTorch, difference {text_of(size)}", "")
    return agrees


def show_emitted(console: Console) -> bool:
    """Show the right MyComplexOp as C++, built where there is a compiler; whether it agrees."""
    say(
        console,
        "[bold]8. The right one as C++ that needs nothing of ours: pb.emit, pb.build[/]",
        "   A torch::autograd::Function behind an op, for Python and for pure C++.",
        "",
    )
    inputs = my_complex_op.inputs()
    with tempfile.TemporaryDirectory() as folder:
        given = tuple(inputs.values())
        # It is built and compared below, where that can be watched.
        pb.emit(my_complex_op.MyComplexOp, "cpp", examples=given, path=folder, verify=False)
        (file,) = (path for path in Path(folder).glob("*.cpp") if path.name != "main.cpp")
        source = file.read_text("utf-8")
        body = source.partition("  static variable_list backward")[2].partition("\n  }\n")[0]
        lines = ["static variable_list backward" + body, "}"]
        say(console, *(escape(f"   {line}") for line in "\n".join(lines).splitlines()), "")
        if not has_compiler():
            say(console, "   There is no C++ compiler here, so it is not built.", "")
            return True
        say(console, "   Building it with the C++ compiler: half a minute the first time.")
        start = time.perf_counter()
        op = pb.build(file)
        seconds = time.perf_counter() - start
        size = worst_of(compare(op, my_complex_op.plain, inputs)).size
    agrees = size < AGREES
    told = "[green]agrees[/]" if agrees else "[red]DIFFERS[/]"
    say(
        console,
        f"   Built in {seconds:.1f} s. The op {told} with PyTorch, difference {text_of(size)}",
        "",
    )
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


def main(console: Console | None = None) -> int:
    """Walk through the examples; 0 when everything is as it should be, else 1."""
    console = console or Console(highlight=False)
    start = time.perf_counter()
    say(console, "pullback: custom autograd functions for PyTorch, right and fast", "")
    shows = (
        show_right,
        show_published,
        show_checked,
        show_derived,
        show_in_place,
        show_operator,
        show_planned,
        show_emitted,
    )
    results = [show(console) for show in shows]
    ok = all(results)
    say(
        console,
        "[green]All Functions agree with PyTorch, and both published mistakes were found.[/]"
        if ok
        else "[red]Something above is not as it should be.[/]",
        f"That took {time.perf_counter() - start:.0f} s. Next: pullback check your_file.py",
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
