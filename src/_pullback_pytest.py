"""The pytest plugin: `pytest --pullback` audits every custom Function that the tests ran.

While the tests run, the calls of Functions are recorded, a few of each with their real inputs.
After the tests each Function is checked with them; what is found stands in the summary and makes
the run fail. Under xdist every worker checks what it saw; under torchrun the first rank checks what
all ranks saw, across ranks. Neither pullback nor torch is imported
until a test needs them.
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
        default="standard",
        choices=("quick", "standard", "deep"),
        help="how much to try (default: standard)",
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
        self.options = {
            "profile": config.getoption("--pullback-profile"),
            "allow": tuple(config.getoption("--pullback-allow")),
        }
        self.recorded: Any = None
        # (name and place of a Function) -> (whether it is sound, the text of its report)
        self.reports: dict[tuple[str, str], tuple[bool, str]] = {}
        self.errors: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record while a test runs, its fixtures included."""
        if item.get_closest_marker("no_pullback") or "torch" not in sys.modules:
            return (yield)
        if self.recorded is None:
            from pullback.check.recorded import Recording

            self.recorded = Recording()
            _begin()
        with self.recorded.watching():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Check what was seen; a worker hands it on, a finding makes the run fail."""
        if self.recorded is not None:
            self.recorded = _of_all_ranks(self.recorded)
        if self.recorded is not None:
            checked = self.recorded.check(**self.options, progress=_progress(session.config))
            for report in checked:
                self.reports[(report.subject, report.place)] = (report.ok, str(report))
            self.errors += dict.fromkeys(checked.errors)
        worker = getattr(session.config, "workeroutput", None)
        if worker is not None:
            told = [[*key, *value] for key, value in self.reports.items()]
            worker[KEY] = {"reports": told, "errors": self.errors}
        elif session.exitstatus == 0:
            session.exitstatus = self._exit_code()

    def _exit_code(self) -> int:
        """The code of a run whose tests passed: a finding or an unknown rule makes it fail."""
        if any(not ok for ok, _ in self.reports.values()):
            return pytest.ExitCode.TESTS_FAILED
        misnamed = any(error.startswith("E404 ") for error in self.errors)
        return pytest.ExitCode.USAGE_ERROR if misnamed else pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what an xdist worker found; of two reports on one Function, the worse."""
        told = getattr(node, "workeroutput", {}).get(KEY, {})
        for subject, place, ok, text in told.get("reports", []):
            if self.reports.get((subject, place), (True, ""))[0]:
                self.reports[(subject, place)] = (ok, text)
        self.errors += [e for e in told.get("errors", []) if e not in self.errors]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show every finding, and how many Functions were audited."""
        wrong = [text for ok, text in self.reports.values() if not ok]
        terminalreporter.section("pullback", bold=True)
        for text in [*wrong, *self.errors]:
            terminalreporter.write_line(f"{text}\n")
        count = len(self.reports)
        colour = {"red": True} if wrong or self.errors else {"green": True}
        lost = "; not all could be audited" if self.errors else ""
        told = f"{count} Function{'s' * (count != 1)} audited, {len(wrong)} with findings{lost}"
        terminalreporter.write_line(told, **colour)


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
