"""The notes of a release, made of `changelog.d`: `python -m docs.changelog 0.2.0`.

The notes come before those that `CHANGELOG.md` has, and the entries are removed: they are in it.
With no version, the notes are printed and nothing is changed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("added", "changed", "deprecated", "removed", "fixed")
HEAD = "# Changelog"


def entries(folder: Path) -> dict[str, list[str]]:
    """The sentences of each kind, those with the highest number first."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    paths = [path for path in folder.glob("*.md") if path.name != "README.md"]
    for path in sorted(paths, key=lambda path: (-int(path.name.split(".")[0]), path.name)):
        found[path.name.split(".")[1]].append(" ".join(path.read_text("utf-8").split()))
    return found


def notes(folder: Path, version: str, day: str) -> str:
    """The notes of one release."""
    return "\n".join([f"## {version} ({day})", *_sections(entries(folder)), ""])


def _sections(found: dict[str, list[str]]) -> Iterator[str]:
    for kind, sentences in found.items():
        if sentences:
            yield from ["", f"### {kind.capitalize()}", ""]
            yield from (f"- {sentence}" for sentence in sentences)


def release(root: Path, version: str, day: str) -> Path:
    """Write the notes of a release, and remove the entries."""
    folder, file = root / "changelog.d", root / "CHANGELOG.md"
    before = file.read_text("utf-8").removeprefix(HEAD).strip() if file.exists() else ""
    parts = [HEAD, notes(folder, version, day).strip(), before]
    file.write_text("\n\n".join(part for part in parts if part) + "\n", encoding="utf-8")
    for path in folder.glob("*.md"):
        if path.name != "README.md":
            path.unlink()
    return file


def main(arguments: list[str]) -> None:
    """Print the notes, or make those of the release that is named."""
    today = date.today().isoformat()
    if arguments:
        print(release(ROOT, arguments[0], today))  # noqa: T201
    else:
        print(notes(ROOT / "changelog.d", "unreleased", today))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
