"""What becomes of the reports of a run: what comments allow, what a baseline knows, the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pullback.cli import allowing, baseline
from pullback.cli.baseline import BaselineEntry, Checked
from pullback.cli.identity import from_root
from pullback.cli.settings import COMMAND_LINE, Settings
from pullback.report.outcome import Remark


@dataclass(eq=False)
class Review:
    """The baseline of a run and the comments that were used, filled as reports come in."""

    path: Path | None  # of the baseline
    name: str
    is_writing: bool
    known: Counter[BaselineEntry]
    used: set[allowing.Allow]
    lost: Sequence[str] = ()  # files that it names and that are not there: deleted, or renamed
    is_new: bool = False

    @classmethod
    def begun(cls, settings: Settings, *, is_writing: bool) -> Review:
        """Read the baseline, if there is one."""
        given = settings.baseline or (baseline.FILE if is_writing else "")
        is_here = settings.origins.get("baseline") == COMMAND_LINE
        path = (Path() if is_here else settings.root) / given if given else None
        is_new = is_writing and path is not None and not path.exists()
        known = baseline.read_baseline(path) if path and not is_new else Counter[BaselineEntry]()
        named = sorted({entry.file for entry in known if entry.file})
        lost = [file for file in named if not (settings.root / file).is_file()]
        return cls(path, given, is_writing, known, set(), lost, is_new)

    def taken(self, checked: Checked) -> Checked:
        """The same without what a comment allows, and without what the baseline knows."""
        checked, used = allowing.allowed(checked)
        self.used |= used
        return baseline.accepted(checked, self.known, self.name, self.lost)

    def remarks(self, checked: Sequence[Checked], files: Sequence[str]) -> Iterator[Remark]:
        """What can be tidied up, after all was taken; `files` were checked as a whole."""
        yield from allowing.idle(checked, self.used)
        left = baseline.gone(self.known, checked, files)
        if self.is_writing and self.path is not None:
            renewed = baseline.renewed(self.known, left, checked)
            baseline.write_baseline(self.path, renewed)
            return
        for entry, count in sorted(left.items()):
            times = f", {count} times" if count > 1 else ""
            yield Remark(self.name, f"no longer found{times}: {entry}; --write-baseline removes it")

    def whole_files(self, names: Sequence[str], left: Collection[str], root: Path) -> list[str]:
        """The targets that are files, with a report on every Function in them.

        `left` are the targets without a report. Where there are none, the files of the baseline
        that are not there any more were looked for, too.
        """
        whole = [
            from_root(Path(name), root)
            for name in names
            if Path(name).is_file() and not any(f"{one}:".startswith(f"{name}:") for one in left)
        ]
        return [*whole, *self.lost] if whole and not left else whole

    def written(self, checked: Sequence[Checked]) -> str:
        """What to say of the baseline that was written."""
        count = sum(len(one.report.findings) for one in checked)
        more = "" if self.is_new else " more than before"
        return f"Written to {self.name}: {count} finding{'s' * (count != 1)}{more}."
