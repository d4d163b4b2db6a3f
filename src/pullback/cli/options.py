"""The options of `pullback check` that are settings too, and the settings that come of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pullback.check.findings.finding import PROFILES, Severity
from pullback.check.findings.registered import Registered
from pullback.check.rules import require_known, selected
from pullback.cli.changed import HEAD, files_with_functions, python_files
from pullback.cli.complete import complete_rules
from pullback.cli.identity import from_root
from pullback.cli.settings import Settings, merged
from pullback.cli.spread import Shard
from pullback.cli.toml import read_settings, settings_file
from pullback.errors import TargetError

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--select",
        multiple=True,
        metavar="RULE",
        shell_complete=complete_rules,
        help="Only these: name, code or group; may be repeated.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="RULE",
        shell_complete=complete_rules,
        help="Not these: name, code or group; may be repeated.",
    ),
    click.option(
        "--profile", type=click.Choice(PROFILES), help="How much to try.  [default: standard]"
    ),
    click.option(
        "--time",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="After so long no other rule is begun on a target; 0 is no limit, as is the default.",
    ),
    click.option(
        "--fail-on",
        type=click.Choice([severity.value for severity in Severity]),
        help="The least severity that makes the exit code 1.  [default: fragile]",
    ),
    click.option(
        "--baseline",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Findings that are known and do not count.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many targets to check at once.  [default: 1]",
    ),
    click.option(
        "--cache/--no-cache",
        default=None,
        help="Whether to take the result of an earlier check of what has not changed since.",
    ),
    click.option(
        "--output-format",
        multiple=True,
        metavar="FORMAT[=FILE]",
        help="text, json, github, sarif, junit or html, into a file where one is named; may be "
        "repeated.",
    ),
)

RUN = (
    click.option(
        "--settings",
        "settings_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The settings file, instead of pullback.toml or pyproject.toml here or above.",
    ),
    click.option("--show-settings", is_flag=True, help="Print what holds, and where it is from."),
    click.option(
        "--write-baseline",
        is_flag=True,
        help="Write today's findings into the baseline, so that only new ones count.",
    ),
    click.option(
        "--changed",
        is_flag=False,
        flag_value=HEAD,
        metavar="[REF]",
        help="Only what differs from where this branch left REF, or from HEAD.",
    ),
    click.option(
        "--shard", type=Shard(), help="Only the I-th of N parts of the targets, for CI: 1/4."
    ),
    click.option(
        "--html",
        "html",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write index.html into this folder: one page that needs no network.",
    ),
)


def settings_options(function: F) -> F:
    """A command with all of these options."""
    for option in reversed((*OPTIONS, *RUN)):
        function = option(function)
    return function


def settings_from(path: Path | None, given: dict[str, Any]) -> Settings:
    """The settings that hold: those of the command line over those of the file."""
    where = path.resolve() if path else settings_file(Path.cwd())
    from_file = read_settings(where) if where else {}
    spoken = {key: None if value == () else value for key, value in given.items()}
    return merged(from_file, where, spoken)


def require_rules(settings: Settings, among: Sequence[Registered] | None = None) -> None:
    """Raise unless every rule that the settings name is there, and some are left to try."""
    for table in (*settings.per_file.values(), *settings.per_target.values()):
        require_known((*table.get("select", ()), *table.get("allow", ())))
    selected(profile=settings.profile, select=settings.select, allow=settings.allow, among=among)


def functions_files(settings: Settings, files: Iterable[Path]) -> Iterator[str]:
    """Those of the files that define Functions and are not excluded; none is imported."""
    root = settings.root
    return files_with_functions(f for f in files if not settings.excludes([from_root(f, root)]))


def targets_of(settings: Settings) -> tuple[str, ...]:
    """The targets that the settings name, as they are called from here; `*` is expanded."""
    found: list[str] = []
    for name in settings.targets:
        if "*" in name:
            found += functions_files(settings, settings.root.glob(name))
        else:
            found.append(from_here(name, settings.root))
    return tuple(dict.fromkeys(found))


def unfolded(settings: Settings, names: Iterable[str]) -> Iterator[str]:
    """The targets with the files that define Functions in the place of each folder."""
    for name in names:
        if not name.strip() or not Path(name).is_dir():  # no name is no folder either
            yield name
            continue
        found = list(functions_files(settings, python_files(Path(name))))
        if not found:
            raise TargetError(
                f"`{name}` must hold a file that defines a Function",
                expected="a class whose base is called ...Function, or an op, at the top of a file",
                got="none that is not excluded",
                fix="name the files: they are imported, and looked into",
            )
        yield from found


def from_here(name: str, root: Path) -> str:
    """A target, or inputs, that the settings name, as they are called from here."""
    where, colon, rest = name.rpartition(":")
    path = root / (where if colon else name)
    is_there = path.is_file() or (not colon and path.is_dir())
    return f"{os.path.relpath(path)}{colon}{rest if colon else ''}" if is_there else name
