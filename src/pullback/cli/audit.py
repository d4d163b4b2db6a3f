"""`pytest --pullback` reads the same settings as `pullback check`, for what the tests ran."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pullback.check.findings.finding import Severity
from pullback.check.findings.report import Report
from pullback.check.target.target import Target
from pullback.cli.baseline import Checked
from pullback.cli.identity import Identity, identity_of
from pullback.cli.review import Review
from pullback.cli.settings import Settings, merged
from pullback.cli.toml import read_settings, settings_file
from pullback.report.outcome import counts


class AuditSettings:
    """The settings of a folder, with the options of pytest over them; the baseline is read.

    `given` has None for what is not given.
    """

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        where = settings_file(folder)
        self.settings: Settings = merged(read_settings(where) if where else {}, where, given)
        self._review = Review.begun(self.settings, is_writing=False)
        is_said = "fail_on" in self.settings.origins
        self._least = Severity(self.settings.fail_on) if is_said else Severity.WASTEFUL

    def options_of(self, target: Target) -> dict[str, Any]:
        """How a Function is checked: what is said of it, of its file, and of all."""
        chosen = self.settings.of(*self._names(target))
        options: dict[str, Any] = {"select": chosen.select, "allow": chosen.allow}
        options |= {"profile": chosen.profile, "declares": chosen.declares}
        if chosen.time:
            options["seconds"] = chosen.time
        return options

    def reviewed(self, target: Target, report: Report) -> Report:
        """The report without what a comment allows, and without what the baseline knows."""
        return self._review.taken(Checked(self._identity(target), report)).report

    def fails(self, report: Report) -> bool:
        """Whether a finding is at least as bad as the settings say; any is, if they do not."""
        return any(counts(finding.weight, self._least) for finding in report.findings)

    def _names(self, target: Target) -> tuple[tuple[str, ...], str]:
        identity = self._identity(target)
        return identity.names, identity.file

    def _identity(self, target: Target) -> Identity:
        return identity_of(target.name, target, self.settings.root)
