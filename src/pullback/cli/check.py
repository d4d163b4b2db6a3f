"""`pullback check`: every rule on Functions, by name or by file, and what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from torch.autograd.function import Function as TorchFunction

from pullback.check.finding import Severity
from pullback.check.inputs.hints import guess, guessed, number_of_guess, refusal_of
from pullback.check.inputs.stated import moved_inside
from pullback.check.isolate import Died, answer_of, can_fork
from pullback.check.naming import OPS, load, module_of, ops_of
from pullback.check.ranks.rules import rank_rules
from pullback.check.recorded import Recording, is_op, load_recording
from pullback.check.registration import body_of
from pullback.check.report import Report
from pullback.check.runner import arguments_from, check
from pullback.check.target import Target, declared_with, target_of
from pullback.cli.aside import Aside
from pullback.cli.baseline import Checked
from pullback.cli.changed import changed_files, files_with_functions, is_touched
from pullback.cli.complete import complete_targets
from pullback.cli.identity import Identity, identity_of
from pullback.cli.kept import recalled
from pullback.cli.options import require_rules, settings_from, settings_options, targets_of
from pullback.cli.outputs import outputs_of
from pullback.cli.results import Found, checked_targets
from pullback.cli.review import Review, whole_files
from pullback.cli.settings import Settings
from pullback.cli.spread import share_of
from pullback.cli.target import example_option, value_of
from pullback.errors import ExamplesError, PullbackError, RecordingError, TargetError
from pullback.judge.example import example_of
from pullback.report import text
from pullback.report.outcome import Failure, Outcome

FOUND, COULD_NOT_RUN = 1, 2
KEPT = "this is the result of an earlier check: nothing has changed since (--no-cache)"


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for every target of one command."""

    settings: Settings
    given: tuple[Any, ...] | None = None
    recorded: Recording | None = None
    ranks: int | None = None
    placements: tuple[tuple[str, str], ...] = ()
    sanitize: bool = False


@click.command("check")
@click.argument("targets", metavar="TARGET...", nargs=-1, shell_complete=complete_targets)
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
    "--ranks",
    type=click.IntRange(min=2),
    metavar="N",
    help="Check across N ranks: Functions that communicate (torch.distributed).",
)
@click.option(
    "--placement",
    "placements",
    multiple=True,
    type=(str, str),
    metavar="NAME KIND",
    help="With --ranks: shard, shard(dim), replicate or partial, of an input or `out`.",
)
@click.option(
    "--sanitize",
    is_flag=True,
    help="Ask NVIDIA's compute-sanitizer as well, where it is installed.",
)
@settings_options
@click.option("--json", "is_json", is_flag=True, help="The same as --output-format json.")
@click.option("--github", "is_github", is_flag=True, help="The same as --output-format github.")
def command(
    targets: tuple[str, ...],
    expressions: tuple[str, ...],
    recording: str | None,
    libraries: tuple[str, ...],
    ranks: int | None,
    placements: tuple[tuple[str, str], ...],
    sanitize: bool,
    settings_path: Path | None,
    show_settings: bool,
    write_baseline: bool,
    changed: str | None,
    shard: tuple[int, int] | None,
    html: Path | None,
    is_json: bool,
    is_github: bool,
    **given: Any,
) -> None:
    """Check custom autograd functions: is every gradient right, everywhere it will be used?

    A TARGET is a file (every Function that is defined in it), file.py:Name, module:Name,
    torch.ops.namespace.op, or torch.ops.namespace (every op in it). Its inputs are those of
    --example, else those recorded in --inputs, else what `examples()` on the class gives, else they
    are made from the type hints of forward. Settings stand in [tool.pullback] of pyproject.toml or
    in pullback.toml; the command line wins over them.

    Exit code 0: nothing was found that counts. 1: something was, also where something else could
    not be checked. 2: nothing was found, and something could not be checked.

    \b
    Examples:
      pullback check my_ops.py
      pullback check my_ops:Swish --example "torch.randn(8, requires_grad=True)"
      pullback check torch.ops.my.op --load my_ops.so --profile quick
      pullback check --inputs pullback-recording.pt
      pullback check my_ops.py --write-baseline
      pullback check --changed main --output-format github --output-format sarif=out.sarif
      pullback check parallel.py --ranks 2
    """
    given["output_format"] += ("json",) * is_json + ("github",) * is_github
    settings = settings_from(settings_path, given)
    if show_settings:
        click.echo(settings.shown())
        return
    outputs = outputs_of(settings.output_format, html)
    aside = Aside(is_asked=not outputs.is_text)
    if not (targets or recording or settings.targets or changed is not None):
        raise click.UsageError(
            "Name a TARGET, a recording with --inputs, --changed, or `targets` in the settings."
        )
    review = Review.begun(settings, is_writing=write_baseline)
    console = Console(highlight=False)
    names: tuple[str, ...] = ()
    found: Sequence[Found] = ()
    options = Options(settings, None, None, ranks, placements, sanitize)
    errors: list[Failure] = []
    checked: list[Checked] = []
    is_cut = False
    try:
        recorded = load_recording(recording) if recording else None
        names = targets or _named(settings, recording, recorded, changed)
        values = tuple(value_of(expression) for expression in expressions) or None
        options = replace(options, given=values, recorded=recorded)
        for library in libraries:
            _load(library)
        require_rules(settings, rank_rules() if ranks else None)
        own = None if targets else recorded
        found = share_of(_chosen(names, own, settings, changed, errors), shard)
    except PullbackError as mistake:  # told once, and not for each target
        errors.append(("", mistake))
    try:
        for one in checked_targets(found, partial(_checked, options), settings.jobs, errors):
            checked.append(review.taken(one))
            if outputs.is_text:
                text.show(checked[-1].report, console)
                console.print()
    except KeyboardInterrupt:  # not while rules are tried: what was found before is told
        is_cut = True
        done = {name for name, _ in errors} | {one.identity.name for one in checked}
        left = [identity.name for identity, _ in found if identity.name not in done]
        errors += [(name, _cut(name)) for name in left[:1]]
    aside.end()
    files = [] if shard or changed else whole_files(names, settings.root)
    remarks = tuple(review.remarks(checked, files))
    reports = tuple(one.report for one in checked)
    outcome = Outcome(reports, tuple(errors), remarks, Severity(settings.fail_on))
    if outputs.is_text:
        for line in _last_lines(outcome, review.written(checked) if write_baseline else "", found):
            click.echo(line)
    outputs.write(outcome)
    for _, error in errors:
        click.echo(str(error), err=True)
    if is_cut and not outcome.fails:
        raise KeyboardInterrupt
    click.get_current_context().exit(_code(outcome, is_known=write_baseline, found=found))


def _code(outcome: Outcome, *, is_known: bool, found: Sequence[Found]) -> int:
    """The exit code: `is_known` says that what was found is in the baseline from now on."""
    if outcome.fails and not is_known:
        return FOUND
    is_cut = any(report.interrupted or report.lost for report in outcome.reports)
    return COULD_NOT_RUN if outcome.errors or is_cut or len(outcome.reports) < len(found) else 0


def _last_lines(outcome: Outcome, written: str, found: Sequence[Found]) -> Iterator[str]:
    """What is told below the reports, on a screen with text."""
    yield from map(str, outcome.remarks)
    if len(outcome.reports) + len(outcome.errors) > 1 and outcome.reports:
        yield _total(outcome.reports, outcome.errors)
    if not found and not outcome.errors:
        yield "Nothing to check: no target is in this part, or has changed."
    if written:
        yield written


def _total(reports: Sequence[Report], errors: Sequence[Failure]) -> str:
    wrong = [report.subject for report in reports if not report.ok]
    told = f": {', '.join(wrong)}" if wrong else ""
    count = f"{len(reports)} Function{'s' if len(reports) > 1 else ''}"
    lost = ", ".join(name.rpartition(":")[2] for name, _ in errors)
    left = f"; {len(errors)} could not be checked: {lost}" if errors else ""
    return f"{count} checked, {len(wrong)} with findings{told}{left}."


# ---- targets ----


def _named(
    settings: Settings, recording: str | None, recorded: Recording | None, changed: str | None
) -> tuple[str, ...]:
    """The targets where the command line names none: of a recording, the settings, or a diff."""
    if recorded is not None:
        return _recorded(recording, recorded)
    if settings.targets:
        return targets_of(settings)
    return tuple(files_with_functions(changed_files(changed or "")))


def _chosen(
    names: Sequence[str],
    recorded: Recording | None,
    settings: Settings,
    changed: str | None,
    errors: list[Failure],
) -> list[Found]:
    """The targets to check; what cannot be found goes to `errors`.

    Those of a recording are what it names, if these are Functions or ops.
    """
    pairs = _found(names, errors) if recorded is None else _of(recorded, errors)
    found = [(identity_of(name, target, settings.root), target) for name, target in pairs]
    if changed is None:
        return found
    touched = changed_files(changed)
    return [one for one in found if is_touched(one[0], touched)]


def _recorded(path: str | None, recorded: Recording | None) -> tuple[str, ...]:
    """The Functions of a recording, by their names."""
    names = tuple(recorded.names if recorded else ())
    if not names:
        raise RecordingError(
            f"`{path}` must hold the calls of a Function",
            got="none",
            fix="record a program that calls one: pullback record -- python train.py",
        )
    return names


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


def _checked(options: Options, identity: Identity, target: Target) -> Report | PullbackError:
    """The report on one target, or what keeps it from being checked."""
    torch.manual_seed(0)  # the same inputs, whatever was checked before
    chosen = options.settings.of(identity.names, identity.file)
    try:
        declared = declared_with(target, chosen.declares)
        inputs, note = _inputs(identity.name, declared, options)

        def run(arguments: Any) -> Report:
            with _progress(target.name if options.settings.jobs == 1 else "") as progress:
                return check(
                    declared,
                    arguments,
                    select=chosen.select,
                    allow=chosen.allow,
                    profile=chosen.profile,
                    ranks=options.ranks,
                    placements=dict(options.placements) or None,
                    sanitize=options.sanitize,
                    seconds=chosen.time or None,
                    progress=progress,
                )

        is_asked = options.ranks is not None or options.sanitize
        if is_asked or not options.settings.cache:
            report, was_kept = run(inputs), False
        else:
            arguments = arguments_from(declared, inputs)
            examples = [example_of(args) for args in arguments]
            again = partial(run, arguments)
            report, was_kept = recalled(declared, identity, examples, chosen, again)
    except PullbackError as error:
        return error
    notes = [note] if note else []
    return report.with_notes(*notes, *[KEPT] * was_kept)


def _cut(name: str) -> TargetError:
    return TargetError(f"`{name}` must have been checked to its end", got="Ctrl-C")


def _inputs(name: str, target: Target, options: Options) -> tuple[Any, str]:
    """The inputs to check with, None for the target's own, and a note on where they are from."""
    if options.given is not None:
        return options.given, ""
    if options.ranks is not None and options.recorded is not None:
        return _ranked(name, target, options.recorded, options.ranks)
    recorded = options.recorded.inputs_of(target) if options.recorded else []
    if recorded:
        return recorded, f"the inputs are those of recorded calls: {len(recorded)}"
    if getattr(target.function or target.thing, "examples", None) is not None:
        return None, ""
    if options.ranks is not None:
        return guess(target, 0), "the inputs are guessed, from the type hints of forward"
    args, refusal = _guessed(name, target)
    if args is None:
        raise ExamplesError(
            f"`{name}` must come with inputs that its forward accepts",
            expected="--example for each argument, `examples()` on the class, or type hints",
            got=f"none, and every guess was refused: {refusal}",
            fix=f"pullback check {name} --example EXPR, once for each argument",
        )
    args = moved_inside(args, target.intent.domain, target.names_of(len(args)))
    hints = (
        "the schema" if name.startswith(OPS) else "the type hints of forward where there are any"
    )
    return args, f"the inputs are guessed, from {hints}"


def _ranked(name: str, target: Target, recorded: Recording, ranks: int) -> tuple[Any, str]:
    """The recorded inputs of every rank."""
    found = recorded.ranked_inputs_of(target) if recorded.ranks == ranks else None
    if found is None:
        raise ExamplesError(
            f"`{name}` must have been recorded on {ranks} ranks",
            got=f"a recording of {recorded.ranks}, with calls on some of them",
            fix=f"pullback record -- torchrun --nproc-per-node {ranks} train.py",
        )
    return found, f"the inputs are those of recorded calls on {ranks} ranks"


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
    if not name or not console.is_terminal or not sys.stdout.isatty():
        yield None
        return
    columns = (TextColumn("{task.fields[subject]}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        task = p.add_task("", subject=name, total=None)

        def tell(rule: str, number: int, total: int) -> None:
            p.update(task, description=rule, completed=number, total=total)

        yield tell
