"""`pullback check`: every rule on Functions, by name or by file, and what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch.autograd.function import Function as TorchFunction

from pullback.check.finding import PROFILES
from pullback.check.inputs.hints import guess, guessed, number_of_guess, refusal_of
from pullback.check.isolate import Died, answer_of, can_fork
from pullback.check.naming import OPS, load, module_of, ops_of
from pullback.check.recorded import Recording, is_op, load_recording
from pullback.check.registration import body_of
from pullback.check.report import Report
from pullback.check.rules import selected
from pullback.check.runner import check
from pullback.check.target import Target, target_of
from pullback.cli.target import example_option, value_of
from pullback.errors import ExamplesError, PullbackError, RecordingError, TargetError
from pullback.report import github, json, text

FOUND, COULD_NOT_RUN = 1, 2

Failure = tuple[str, PullbackError]  # a target, and what keeps it from being checked


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for every target of one command."""

    select: tuple[str, ...]
    allow: tuple[str, ...]
    profile: str
    given: tuple[Any, ...] | None = None
    recorded: Recording | None = None


@click.command("check")
@click.argument("targets", metavar="TARGET...", nargs=-1)
@example_option
@click.option(
    "--inputs",
    "recording",
    type=click.Path(exists=True, dir_okay=False),
    help="A recording (pullback record): its Functions, or its inputs for the targets.",
)
@click.option(
    "--load",
    "libraries",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A library with ops to load first (torch.ops.load_library); may be repeated.",
)
@click.option(
    "--select",
    multiple=True,
    metavar="RULE",
    help="Only these: name, code or group; may be repeated.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="RULE",
    help="Not these: name, code or group; may be repeated.",
)
@click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default="standard",
    show_default=True,
    help="How much to try.",
)
@click.option(
    "--json",
    "is_json",
    is_flag=True,
    help="Print one JSON document, in the form of docs/check-schema.json.",
)
@click.option(
    "--github", "is_github", is_flag=True, help="Print annotations for a GitHub workflow."
)
def command(
    targets: tuple[str, ...],
    expressions: tuple[str, ...],
    recording: str | None,
    libraries: tuple[str, ...],
    select: tuple[str, ...],
    allow: tuple[str, ...],
    profile: str,
    is_json: bool,
    is_github: bool,
) -> None:
    """Check custom autograd functions: is every gradient right, everywhere it will be used?

    A TARGET is a file (every Function that is defined in it), file.py:Name, module:Name,
    torch.ops.namespace.op, or torch.ops.namespace (every op in it). Its inputs are those of
    --example, else those recorded in --inputs, else what `examples()` on the class gives, else they
    are made from the type hints of forward.

    Exit code 0: nothing was found. 1: something was, also where something else could not be
    checked. 2: nothing was found, and something could not be checked.

    \b
    Examples:
      pullback check my_ops.py
      pullback check my_ops:Swish --example "torch.randn(8, requires_grad=True)"
      pullback check torch.ops.my.op --load my_ops.so --profile quick
      pullback check --inputs pullback-recording.pt
    """
    recorded = load_recording(recording) if recording else None
    if not targets and recorded is None:
        raise click.UsageError("Name a TARGET, or a recording with --inputs.")
    if not targets:
        _require_calls(recording, recorded)
    given = tuple(value_of(expression) for expression in expressions) or None
    options = Options(select, allow, profile, given, recorded)
    for library in libraries:
        _load(library)
    console = Console(highlight=False)
    is_text = not (is_json or is_github)
    reports: list[Report] = []
    errors: list[Failure] = []
    try:
        selected(profile=profile, select=select, allow=allow)
    except PullbackError as mistake:  # told once, and not for each target
        errors, targets, recorded = [("", mistake)], (), None
    found = _found(targets, errors) if targets or recorded is None else _of(recorded, errors)
    for name, target in found:
        report = _checked(name, target, options, errors)
        if report is not None:
            reports.append(report)
            if is_text:
                text.show(report, console)
                console.print()
        if report is not None and report.interrupted:
            break
    if is_json:
        click.echo(json.render(reports, errors))
    elif is_github:
        click.echo(github.render(reports, [str(error) for _, error in errors]))
    elif len(reports) + len(errors) > 1 and reports:
        click.echo(_total(reports, errors))
    for _, error in errors:
        click.echo(str(error), err=True)
    click.get_current_context().exit(_code(reports, errors))


def _code(reports: Sequence[Report], errors: Sequence[Failure]) -> int:
    if any(report.findings for report in reports):
        return FOUND
    is_cut = any(report.interrupted for report in reports)
    return COULD_NOT_RUN if errors or is_cut or not reports else 0


def _total(reports: Sequence[Report], errors: Sequence[Failure]) -> str:
    wrong = [report.subject for report in reports if not report.ok]
    told = f": {', '.join(wrong)}" if wrong else ""
    count = f"{len(reports)} Function{'s' if len(reports) > 1 else ''}"
    lost = ", ".join(name.rpartition(":")[2] for name, _ in errors)
    left = f"; {len(errors)} could not be checked: {lost}" if errors else ""
    return f"{count} checked, {len(wrong)} with findings{told}{left}."


# ---- targets ----


def _require_calls(path: str | None, recorded: Recording | None) -> None:
    """Raise unless a recording holds the calls of a Function."""
    if recorded is None or not recorded.calls:
        raise RecordingError(
            f"`{path}` must hold the calls of a Function",
            got="none",
            fix="record a program that calls one: pullback record -- python train.py",
        )


def _of(recorded: Recording, errors: list[Failure]) -> Iterator[tuple[str, Target]]:
    """The Functions and ops of a recording; what is neither goes to `errors`."""
    for name in recorded.targets:
        try:
            yield name, recorded.target_called(name)
        except PullbackError as error:
            errors.append((name, error))


def _load(library: str) -> None:
    """Load a library of ops, or raise `TargetError` with what the system says of it."""
    try:
        torch.ops.load_library(library)
    except (OSError, RuntimeError) as error:  # not to be loaded, or an op registered twice
        raise TargetError(
            f"`{library}` must be a library that PyTorch can load",
            expected="a shared library that was built for this version of PyTorch",
            got=str(error.__cause__ or error).splitlines()[0],
        ) from None


def _found(targets: Sequence[str], errors: list[Failure]) -> Iterator[tuple[str, Target]]:
    """Each target with its name; what cannot be found goes to `errors`."""
    for name in targets:
        try:
            yield from _of_name(name)
        except PullbackError as error:
            errors.append((name, error))


def _of_name(name: str) -> Iterator[tuple[str, Target]]:
    space = name.removeprefix(OPS)
    if name.startswith(OPS) and "." not in space and ops_of(space):
        for op in ops_of(space):
            yield f"{name}.{op}", target_of(load(f"{name}.{op}"))
        return
    is_one = name.startswith(OPS) or (":" in name and not Path(name).exists())
    if is_one:
        yield name, target_of(load(name))
        return
    module = module_of(name)
    functions = list(functions_in(module))
    if not functions:
        raise TargetError(
            f"`{name}` must define a Function to check",
            expected="a subclass of torch.autograd.Function, or a custom op, at its top",
            got="none",
            fix=f"name what to check: {name}:name",
        )
    for function in functions:
        target = target_of(function)
        yield f"{name}:{function.__name__ if target.is_function else target.name}", target


def functions_in(module: ModuleType) -> Iterator[Any]:
    """The Function classes and custom ops that a module defines, in the order of its lines."""
    ops = set[str]()
    for value in list(vars(module).values()):
        if is_op(value) and getattr(body_of(value), "__module__", "") == module.__name__:
            if target_of(value).name not in ops:  # one op may have two names
                yield value
            ops.add(target_of(value).name)
        if not (isinstance(value, type) and issubclass(value, TorchFunction)):
            continue
        if value.__module__ == module.__name__ and target_of(value).method("forward") is not None:
            yield value


# ---- one target ----


def _checked(name: str, target: Target, options: Options, errors: list[Failure]) -> Report | None:
    """The report on one target; what keeps it from being checked goes to `errors`."""
    try:
        inputs, note = _inputs(name, target, options)
        with _progress(target.name) as progress:
            report = check(
                target,
                inputs,
                select=options.select,
                allow=options.allow,
                profile=options.profile,
                progress=progress,
            )
    except PullbackError as error:
        errors.append((name, error))
        return None
    return report.with_notes(note) if note else report


def _inputs(name: str, target: Target, options: Options) -> tuple[Any, str]:
    """The inputs to check with, None for the target's own, and a note on where they are from."""
    if options.given is not None:
        return options.given, ""
    recorded = options.recorded.inputs_of(target) if options.recorded else []
    if recorded:
        return recorded, f"the inputs are those of recorded calls: {len(recorded)}"
    if getattr(target.function or target.thing, "examples", None) is not None:
        return None, ""
    args, refusal = _guessed(name, target)
    if args is None:
        raise ExamplesError(
            f"`{name}` must come with inputs that its forward accepts",
            expected="--example for each argument, `examples()` on the class, or type hints",
            got=f"none, and every guess was refused: {refusal}",
            fix=f"pullback check {name} --example EXPR, once for each argument",
        )
    hints = (
        "the schema" if name.startswith(OPS) else "the type hints of forward where there are any"
    )
    return args, f"the inputs are guessed, from {hints}"


def _guessed(name: str, target: Target) -> tuple[tuple[Any, ...] | None, str]:
    """Arguments made from the hints, else what forward says of them.

    They are tried in another process where that can be: they may kill.
    """
    if can_fork():
        args = guessed(target)
        return args, "" if args is not None else refusal_of(target)
    try:
        number, refusal = answer_of(lambda: _numbered(target))
    except Died as death:
        raise ExamplesError(
            f"`{name}` must come with inputs that its forward accepts",
            expected="--example for each argument",
            got=f"guesses, and a process in which they were tried was lost: {death.how}",
            fix=f"pullback check {name} --example EXPR, once for each argument",
        ) from None
    return (None if number is None else guess(target, number)), refusal


def _numbered(target: Target) -> tuple[int | None, str]:
    number = number_of_guess(target)
    return number, "" if number is not None else refusal_of(target)


@contextmanager
def _progress(name: str) -> Iterator[Any]:
    """A line that says which rule is tried, on a terminal; gone when the check is done."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stdout.isatty():
        yield None
        return
    columns = (TextColumn("{task.fields[subject]}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        task = p.add_task("", subject=name, total=None)

        def tell(rule: str, number: int, total: int) -> None:
            p.update(task, description=rule, completed=number, total=total)

        yield tell
