"""`pullback check`: every rule on Functions and models, by name or by file, and what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pullback.check.findings.finding import Severity
from pullback.check.findings.report import Report
from pullback.check.inputs.given import arguments_from
from pullback.check.models.rules import model_rules
from pullback.check.options import CheckOptions
from pullback.check.ranks.rules import rank_rules
from pullback.check.rules import all_rules
from pullback.check.runner import checked
from pullback.check.target.target import Target, declared_with
from pullback.cli.aside import Aside
from pullback.cli.baseline import Checked
from pullback.cli.complete import complete_targets
from pullback.cli.identity import Identity, identity_of
from pullback.cli.idle import idle_keys
from pullback.cli.inputs import InputSource, inputs_for, named_inputs
from pullback.cli.kept import recalled
from pullback.cli.options import from_here, require_rules, settings_from, settings_options, unfolded
from pullback.cli.outputs import Outputs, outputs_of
from pullback.cli.results import Found, checked_targets
from pullback.cli.review import Review
from pullback.cli.settings import Chosen, Settings
from pullback.cli.spread import share_of
from pullback.cli.target import example_option, value_of
from pullback.cli.targets import chosen_targets, load_library, named_targets
from pullback.errors import BaselineError, PullbackError, TargetError
from pullback.judge.example import example_of
from pullback.report import text
from pullback.report.outcome import Failure, Outcome, Remark

FOUND, COULD_NOT_RUN = 1, 2
KEPT = "this is the result of an earlier check: nothing has changed since (--no-cache)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line names beside settings; `recording` is what `--inputs` names."""

    targets: tuple[str, ...]
    expressions: tuple[str, ...]
    recording: str | None
    libraries: tuple[str, ...]
    ranks: int | None
    placements: tuple[tuple[str, str], ...]
    sanitize: bool
    write_baseline: bool
    changed: str | None
    shard: tuple[int, int] | None
    html: Path | None


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for every target of one command."""

    asked: Asked
    settings: Settings
    inputs: InputSource


@dataclass(slots=True)
class CheckedTargets:
    """What was to be checked, and what came of it."""

    names: tuple[str, ...] = ()
    found: Sequence[Found] = ()
    inputs: InputSource = field(default_factory=InputSource)
    errors: list[Failure] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)
    is_cut: bool = False

    @property
    def is_mistaken(self) -> bool:
        """Whether the command, or its settings, ask for what there is not: nothing is checked."""
        return any(not name for name, _ in self.errors)

    def left(self) -> set[str]:
        """The targets without a report, by name."""
        found = {identity.name for identity, _ in self.found}
        done = {one.identity.name for one in self.checked}
        return {name for name, _ in self.errors} | found - done


@click.command("check")
@click.argument("targets", metavar="TARGET...", nargs=-1, shell_complete=complete_targets)
@example_option
@click.option(
    "--inputs",
    "recording",
    metavar="FILE|MODULE:NAME",
    help="A recording (pullback record): its Functions, or its inputs for the targets. "
    "Or module:name of inputs, or of a function that makes them.",
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
    settings_path: Path | None,
    show_settings: bool,
    is_json: bool,
    is_github: bool,
    **given: Any,
) -> None:
    """Check custom autograd functions: is every gradient right, everywhere it will be used?

    A TARGET is a file or a folder (every Function in it), file.py:Name, module:Name,
    torch.ops.namespace.op, or torch.ops.namespace (every op in it). A name may be that of a model,
    or of a function that makes one: its parameters are checked, and every Function inside. The
    inputs are those of --example, else those of --inputs, else what `examples()` on the class
    gives, else they are made from the type hints of forward. Settings stand in [tool.pullback] of
    pyproject.toml or in pullback.toml; the command line wins over them.

    Exit code 0: nothing was found that counts. 1: something was, also where something else could
    not be checked. 2: nothing was found, and something could not be checked.

    \b
    Examples:
      pullback check my_ops.py
      pullback check src/
      pullback check my_ops:Swish --example "torch.randn(8, requires_grad=True)"
      pullback check torch.ops.my.op --load my_ops.so --profile quick
      pullback check --inputs pullback-recording.pt
      pullback check my_ops.py --write-baseline
      pullback check --changed main --output-format github --output-format sarif=out.sarif
      pullback check parallel.py --ranks 2
      pullback check my_project.models:make_model --inputs my_project.data:make_batch
    """
    given["output_format"] += ("json",) * is_json + ("github",) * is_github
    asked = Asked(**{one.name: given.pop(one.name) for one in fields(Asked)})
    settings = settings_from(settings_path, given)
    if show_settings:
        click.echo(settings.shown())
        return
    outputs = outputs_of(settings.output_format, asked.html)
    aside = Aside(is_asked=not outputs.is_text)
    _require_use(asked, settings)
    review = Review.begun(settings, is_writing=asked.write_baseline)
    results = _prepared(asked, settings)
    review.is_writing &= not results.is_mistaken
    _check_all(results, Options(asked, settings, results.inputs), review, outputs)
    aside.end()
    outcome = _outcome(results, asked, settings, review)
    if outputs.is_text:
        written = review.written(results.checked) if review.is_writing else ""
        for line in _last_lines(outcome, written, results.found):
            click.echo(line)
    lost = outputs.write(outcome)
    for error in (*(error for _, error in results.errors), *lost):
        click.echo(str(error), err=True)
    if results.is_cut and not outcome.fails:
        raise KeyboardInterrupt
    code = _code(outcome, is_known=asked.write_baseline, found=results.found)
    click.get_current_context().exit(code or COULD_NOT_RUN * bool(lost))


def _require_use(asked: Asked, settings: Settings) -> None:
    """A usage error where nothing is named to check, or options do not go together."""
    if not (asked.targets or asked.recording or settings.targets or asked.changed is not None):
        raise click.UsageError(
            "Name a TARGET, a recording with --inputs, --changed, or `targets` in the settings."
        )
    if asked.placements and asked.ranks is None:
        raise click.UsageError("--placement says what the values of ranks are: give --ranks too.")


def _prepared(asked: Asked, settings: Settings) -> CheckedTargets:
    """The targets and inputs; a mistake in what was asked for is reported once for all targets."""
    results = CheckedTargets()
    try:
        given, recorded = named_inputs(asked.recording) if asked.recording else (None, None)
        names = asked.targets or named_targets(settings, asked.recording, recorded, asked.changed)
        results.names = tuple(unfolded(settings, names))
        values = tuple(value_of(expression) for expression in asked.expressions) or given
        results.inputs = InputSource(values, recorded, asked.ranks)
        for library in asked.libraries:
            load_library(library)
        require_rules(settings, rank_rules() if asked.ranks else (*all_rules(), *model_rules()))
        own = None if asked.targets else recorded
        found = chosen_targets(results.names, own, settings, asked.changed, results.errors)
        results.found = share_of(found, asked.shard)
    except PullbackError as mistake:
        results.errors.append(("", mistake))
    return results


def _check_all(results: CheckedTargets, options: Options, review: Review, outputs: Outputs) -> None:
    """Check one target after the other, and show each as soon as it is there."""
    console = Console(highlight=False)
    check_one = partial(_checked, options)
    jobs = options.settings.jobs
    try:
        for one in checked_targets(results.found, check_one, jobs, results.errors):
            results.checked.append(review.taken(one))
            if outputs.is_text:
                text.show(results.checked[-1].report, console)
                console.print()
    except KeyboardInterrupt:  # not while rules are tried: what was found before is reported
        results.is_cut = True
        done = {name for name, _ in results.errors}
        done |= {one.identity.name for one in results.checked}
        left = [identity.name for identity, _ in results.found if identity.name not in done]
        results.errors += [(name, _cut(name)) for name in left[:1]]


def _outcome(results: CheckedTargets, asked: Asked, settings: Settings, review: Review) -> Outcome:
    """All that came of it; a baseline that cannot be written is an error like others."""
    is_part = asked.shard or asked.changed or results.is_mistaken
    files = [] if is_part else review.whole_files(results.names, results.left(), settings.root)
    try:
        remarks = tuple(review.remarks(results.checked, files))
    except BaselineError as error:
        review.is_writing = False
        results.errors.append((review.name, error))
        remarks = ()
    remarks = (*remarks, *_idle(settings, results))
    reports = tuple(one.report for one in results.checked)
    return Outcome(reports, tuple(results.errors), remarks, Severity(settings.fail_on))


def _idle(settings: Settings, results: CheckedTargets) -> Iterator[Remark]:
    """What the settings say of files and targets that there are not, where targets were found."""
    if not results.is_mistaken:
        yield from idle_keys(settings, [identity for identity, _ in results.found])


def _code(outcome: Outcome, *, is_known: bool, found: Sequence[Found]) -> int:
    """The exit code: `is_known` says that what was found is in the baseline from now on."""
    if outcome.fails and not is_known:
        return FOUND
    is_cut = any(report.interrupted or report.lost for report in outcome.reports)
    return COULD_NOT_RUN if outcome.errors or is_cut or len(outcome.reports) < len(found) else 0


def _last_lines(outcome: Outcome, written: str, found: Sequence[Found]) -> Iterator[str]:
    """What is printed below the reports, on a screen with text."""
    yield from map(str, outcome.remarks)
    if len(outcome.reports) + len(outcome.errors) > 1 and outcome.reports:
        yield _total(outcome.reports, outcome.errors)
    if not found and not outcome.errors:
        yield "Nothing to check: no target is in this part, or has changed."
    if written:
        yield written


def _total(reports: Sequence[Report], errors: Sequence[Failure]) -> str:
    wrong = [report.subject for report in reports if not report.ok]
    names = f": {', '.join(wrong)}" if wrong else ""
    count = f"{len(reports)} Function{'s' if len(reports) > 1 else ''}"
    lost = ", ".join(name.rpartition(":")[2] for name, _ in errors)
    left = f"; {len(errors)} could not be checked: {lost}" if errors else ""
    return f"{count} checked, {len(wrong)} with findings{names}{left}."


# ---- one target ----


def _checked(options: Options, identity: Identity, target: Target) -> Report | PullbackError:
    """The report on one target, or what keeps it from being checked."""
    torch.manual_seed(0)  # the same inputs, whatever was checked before
    chosen = options.settings.of(identity.names, identity.file)
    try:
        declared = declared_with(target, chosen.declares)
        source = _source(options, chosen)
        inputs, note = inputs_for(identity.name, declared, source)

        run = partial(_run, options, chosen, declared)
        if options.inputs.ranks is not None or not options.settings.cache:
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


def _run(options: Options, chosen: Chosen, target: Target, arguments: Any) -> Report:
    """The report on a target at these arguments, made now."""
    with _progress(target.name if options.settings.jobs == 1 else "") as progress:
        asked = CheckOptions(
            select=chosen.select,
            allow=chosen.allow,
            profile=chosen.profile,
            ranks=options.inputs.ranks,
            placements=dict(options.asked.placements) or None,
            sanitize=options.asked.sanitize,
            seconds=chosen.time or None,
            progress=progress,
            options_of=partial(_inside, options.settings),
        )
        return checked(target, arguments, asked)


def _inside(settings: Settings, target: Target) -> dict[str, Any]:
    """What the settings say of a Function that is called inside a target."""
    identity = identity_of(target.name, target, settings.root)
    chosen = settings.of(identity.names, identity.file)
    return {"allow": chosen.allow, "declares": chosen.declares}


def _source(options: Options, chosen: Chosen) -> InputSource:
    """Where the inputs of one target come from: the command line, else the settings."""
    given = options.inputs
    if given.given is not None or given.recorded is not None or not chosen.inputs:
        return given
    return InputSource(*named_inputs(from_here(chosen.inputs, options.settings.root)), given.ranks)


def _cut(name: str) -> TargetError:
    return TargetError(f"`{name}` must have been checked to its end", got="Ctrl-C")


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
