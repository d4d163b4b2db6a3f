"""Where the outcome of a check goes: formats on the screen, and as many as one likes into files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click

from pullback.errors import EmitPathError, PlanFileError, first_line
from pullback.plan.store import write_whole
from pullback.report import github, html, json, junit, sarif
from pullback.report.outcome import Outcome

TEXT, GITHUB = "text", "github"

RENDERERS: dict[str, Callable[[Outcome], str]] = {
    TEXT: lambda o: "\n\n".join([*map(str, o.reports), *(str(e) for _, e in o.errors)]),
    "json": lambda o: json.render(o.reports, o.errors, o.remarks),
    GITHUB: lambda o: github.render(o.reports, [str(e) for _, e in o.errors], o.remarks),
    "sarif": sarif.render,
    "junit": junit.render,
    "html": lambda o: html.render(o.reports, [str(e) for _, e in o.errors], o.remarks),
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """The formats for the screen, and those for files."""

    screen: tuple[str, ...]
    files: tuple[tuple[str, Path], ...]

    @property
    def is_text(self) -> bool:
        """Whether the screen shows the reports as text, each when it is there."""
        return TEXT in self.screen

    def write(self, outcome: Outcome) -> list[EmitPathError]:
        """Write the files, then what the screen has but for text; which files could not be."""
        lost = []
        for kind, path in self.files:
            text = RENDERERS[kind](outcome)
            try:
                write_whole(path, f"{text}\n")
            except (OSError, PlanFileError) as error:
                got = getattr(error, "strerror", None) or first_line(error)
                lost.append(EmitPathError(f"`{path}` must be a file that can be written", got=got))
        for kind in self.screen:
            text = "" if kind == TEXT else RENDERERS[kind](outcome)
            if text:
                click.echo(text)
        return lost


def outputs_of(words: Sequence[str], folder: Path | None = None) -> Outputs:
    """Where to write, from `FORMAT` and `FORMAT=FILE`; a usage error where that cannot be.

    The screen shows text unless something else is named for it. Annotations for GitHub may stand
    below text; the others are documents, of which a screen holds one.
    """
    screen: list[str] = []
    files: list[tuple[str, Path]] = []
    for word in words:
        kind, to_file, path = word.partition("=")
        _require_kind(kind)
        if to_file:
            files.append((kind, _file(path, word)))
        elif kind not in screen:
            screen.append(kind)
    if folder is not None:
        files.append(("html", _page(folder)))
    screen = screen or [TEXT]
    if len(screen) > 1 and set(screen) != {TEXT, GITHUB}:
        raise click.UsageError(
            f"The screen cannot show {' and '.join(screen)} at once. Give all but one a file, "
            f"such as --output-format {screen[-1]}=FILE."
        )
    return Outputs(tuple(sorted(screen, key=list(RENDERERS).index)), tuple(files))


def _require_kind(kind: str) -> None:
    if kind not in RENDERERS:
        near = get_close_matches(kind, RENDERERS, 1)
        meant = f" Did you mean {near[0]}?" if near else ""
        raise click.UsageError(f"{kind!r} is no format: {', '.join(RENDERERS)}.{meant}")


def _file(name: str, word: str) -> Path:
    """The file, known to be writable before anything is checked."""
    path = Path(name)
    got = "no name" if not name else "a folder" if path.is_dir() else _made(path.resolve().parent)
    if got:
        raise click.UsageError(f"--output-format {word}: the file cannot be written: {got}.")
    return path


def _page(folder: Path) -> Path:
    """`index.html` in a folder, which is made."""
    got = _made(folder)
    if got:
        raise click.UsageError(f"--html {folder}: {got}.")
    return folder / "index.html"


def _made(folder: Path) -> str:
    """Make a folder to write to; what keeps it from being one, or nothing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK) else "its folder cannot be written to"
