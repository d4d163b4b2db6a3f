"""The pytest plugin: `pytest --pullback` audits every custom Function and op that the tests ran.

While the tests run, the calls of Functions and custom ops are recorded, a few of each with their
real inputs. After the tests each is checked with them, under the settings that `pullback check`
reads; what is found is printed as soon as it is found, and makes the run fail. `--pullback-time`
bounds the audit, and Ctrl-C ends it: what was found until then counts. Under xdist every worker
checks what it saw; under torchrun the first rank checks what all ranks saw, across ranks. Neither
pullback nor torch is imported until a test needs them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

KEY = "pullback"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the audit."""
    group = parser.getgroup("pullback", "custom autograd Functions")
    group.addoption(
        "--pullback",
        action="store_true",
        help="audit every custom Function that the tests run, with the inputs they run on",
    )
    group.addoption(
        "--pullback-profile",
        default=None,
        choices=("quick", "standard", "deep"),
        help="how much to try (default: that of the settings, or standard)",
    )
    group.addoption(
        "--pullback-select",
        action="append",
        default=[],
        metavar="RULE",
        help="only this rule: name, code or group; may be repeated",
    )
    group.addoption(
        "--pullback-time",
        type=float,
        default=None,
        metavar="SECONDS",
        help="how long the audit may take after the tests; what is left by then is named",
    )
    group.addoption(
        "--pullback-allow",
        action="append",
        default=[],
        metavar="RULE",
        help="a rule that may fail: name, code or group; may be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark, and the audit where it is asked for."""
    config.addinivalue_line(
        "markers", "no_pullback: what this test runs is not audited by `pytest --pullback`"
    )
    if config.getoption("--pullback"):
        config.pluginmanager.register(Audit(config), "pullback-audit")


@pytest.fixture
def sound() -> Callable[..., None]:
    """`sound(MyFunction, inputs, allow=(...))` fails with every finding: `pb.assert_sound`."""
    from pullback.check import assert_sound

    return assert_sound


class Audit:
    """What one pytest process saw, and what was found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.given = {
            "profile": config.getoption("--pullback-profile"),
            "select": tuple(config.getoption("--pullback-select")) or None,
            "allow": tuple(config.getoption("--pullback-allow")) or None,
        }
        self.seconds = config.getoption("--pullback-time")
        self.settings: Any = None
        self.recorded: Any = None
        # (name and place of a Function) -> (whether it is sound, the text of its report)
        self.reports: dict[tuple[str, str], tuple[bool, str]] = {}
        self.errors: list[str] = []
        self.is_mistaken = False  # whether the settings cannot be read
        self.is_handed_on = False  # whether the first rank audits what this one has seen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record while a test runs, its fixtures included."""
        if item.get_closest_marker("no_pullback") or "torch" not in sys.modules:
            return (yield)
        if self.recorded is None:
            from pullback.check.recordings.recorded import Recording

            self.recorded = Recording()
            _begin()
        with self.recorded.watching():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Check what was seen; a worker hands it on, a finding makes the run fail."""
        if self.recorded is not None:
            self.recorded = _of_all_ranks(self.recorded)
            self.is_handed_on = self.recorded is None
        if self.recorded is not None:
            self._audit(is_cut=session.exitstatus == pytest.ExitCode.INTERRUPTED)
        worker = getattr(session.config, "workeroutput", None)
        if worker is not None:
            found = [[*key, *value] for key, value in self.reports.items()]
            worker[KEY] = {"reports": found, "errors": self.errors}
        elif session.exitstatus == 0:
            session.exitstatus = self._exit_code()

    def _audit(self, *, is_cut: bool) -> None:
        """Check what was recorded, unless the tests themselves were interrupted."""
        names = list(self.recorded.targets)
        if is_cut and names:
            self.errors.append(f"not audited, the tests were interrupted: {', '.join(names)}")
            return
        from pullback.cli.audit import AuditSettings
        from pullback.errors import PullbackError

        try:
            self.settings = AuditSettings(self.config.rootpath, self.given)
        except PullbackError as error:
            self.errors.append(str(error))
            self.is_mistaken = True
            return
        checked = self.recorded.check(
            seconds=self.seconds,
            progress=_progress(self.config),
            on_report=self._take,
            options_of=self.settings.options_of,
            review=self.settings.reviewed,
        )
        left_out = [f"not audited: {why}" for why in self.recorded.left_out]
        self.errors += dict.fromkeys([*checked.errors, *left_out])

    def _take(self, report: Any) -> None:
        is_sound = not self.settings.fails(report)
        self._add(report.subject, report.place, is_sound=is_sound, text=str(report))

    def _add(self, subject: str, place: str, *, is_sound: bool, text: str) -> None:
        """Keep a report, of two on one Function the worse; show a finding at once."""
        known = self.reports.get((subject, place))
        if known is not None and not known[0]:
            return
        self.reports[(subject, place)] = (is_sound, text)
        terminal: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and not is_sound:
            terminal.ensure_newline()
            terminal.write_line(f"{text}\n")

    def _exit_code(self) -> int:
        """The code of a run whose tests passed: a finding or an unknown rule makes it fail."""
        if any(not ok for ok, _ in self.reports.values()):
            return pytest.ExitCode.TESTS_FAILED
        misnamed = any(error.startswith("E404 ") for error in self.errors)
        is_wrong = misnamed or self.is_mistaken
        return pytest.ExitCode.USAGE_ERROR if is_wrong else pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what an xdist worker found; of two reports on one Function, the worse."""
        found = getattr(node, "workeroutput", {}).get(KEY, {})
        for subject, place, is_sound, text in found.get("reports", []):
            self._add(subject, place, is_sound=is_sound, text=text)
        self.errors += [e for e in found.get("errors", []) if e not in self.errors]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """How many Functions were audited, and which have findings; these are shown above."""
        if self.is_handed_on:
            return
        wrong = [subject for (subject, _), (is_sound, _) in self.reports.items() if not is_sound]
        terminalreporter.section("pullback", bold=True)
        for error in self.errors:
            terminalreporter.write_line(f"{error}\n")
        count = len(self.reports)
        colour = {"red": True} if wrong or self.errors else {"green": True}
        names = f": {', '.join(wrong)}" if wrong else ""
        lost = "; not all could be audited" if self.errors else ""
        counted = f"{count} Function{'s' * (count != 1)} audited"
        line = f"{counted}, {len(wrong)} with findings{names}{lost}"
        terminalreporter.write_line(line, **colour)


def _begin() -> None:
    from pullback.check.ranks.parts import begin_parts

    begin_parts(KEY)


def _of_all_ranks(recorded: Any) -> Any:
    """What all ranks have seen, under torchrun: the first rank audits it, the others hand it on."""
    from pullback.check.ranks.parts import brought_together

    return brought_together(recorded, KEY)


def _progress(config: pytest.Config) -> Callable[[str, int, int], None] | None:
    """What shows the rule that is tried, on a terminal: an audit may take longer than the tests."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not getattr(terminal, "isatty", False):
        return None

    def tell(rule: str, number: int, total: int) -> None:
        terminal.rewrite(f"pullback: {number}/{total} {rule}", erase=True)

    return tell
