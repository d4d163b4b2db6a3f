"""`pytest --pullback` audits what the tests ran, also under xdist, and `sound` is a fixture."""

from importlib.metadata import entry_points

import pytest

OPS = """
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {factor} * x * g
"""
TESTS = """
import pytest
import torch

from user_ops import Square


def test_value():
    assert Square.apply(torch.full((3,), 2.0, requires_grad=True)).sum() == 12


def test_nothing():
    assert True
"""
SKIPPED = TESTS.replace("def test_value", "@pytest.mark.no_pullback\ndef test_value")
FIXTURE = """
import sys

import pytest

from pullback.errors import UnsoundError


def test_sound(sound):
    import torch
    from user_ops import Square

    with pytest.raises(UnsoundError):
        sound(Square, (torch.ones(2),), profile="quick")
    sound(Square, (torch.ones(2),), profile="quick", allow=["wrong-factor"])
"""
LIGHT = """
import sys


def test_light(pytestconfig):
    names = {getattr(plugin, "__name__", "") for plugin in pytestconfig.pluginmanager.get_plugins()}
    assert "_pullback_pytest" in names
    assert "torch" not in sys.modules
    assert "pullback" not in sys.modules
"""


# Where the package is installed, its entry point loads the plugin.
INSTALLED = any(point.value == "_pullback_pytest" for point in entry_points(group="pytest11"))
PLUGIN = () if INSTALLED else ("-p", "_pullback_pytest")


def run_in(folder, python, tests, options, factor):
    """Run the tests of a user in a folder of their own; the exit code and the output."""
    (folder / "user_ops.py").write_text(OPS.format(factor=factor), encoding="utf-8")
    (folder / "test_user.py").write_text(tests, encoding="utf-8")
    own = (*PLUGIN, "-p", "no:cacheprovider", "--rootdir", ".", "--pullback-profile", "quick")
    done = python("-m", "pytest", *own, *options, folder=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run_pytest(tmp_path, warm_python):
    """Runs of pytest in which PyTorch is loaded from the start."""

    def run(tests, *options, factor=3):
        return run_in(tmp_path, warm_python, tests, options, factor)

    return run


@pytest.fixture
def run_fresh_pytest(tmp_path, run_python):
    """Runs of pytest as a user starts it."""

    def run(tests, *options, factor=3):
        return run_in(tmp_path, run_python, tests, options, factor)

    return run


def test_finding_fails_the_run(run_fresh_pytest):
    code, text = run_fresh_pytest(TESTS, "--pullback")

    assert code == 1
    assert "2 passed" in text
    assert "G103 wrong-factor (wrong): " in text
    assert "inputs:   x: float64[3]" in text
    assert "1 Function audited, 1 with findings: Square" in text
    assert text.index("G103") < text.index("= pullback =")  # as it is found, not in the summary


def test_time_bounds_the_audit(run_pytest):
    code, text = run_pytest(TESTS, "--pullback", "--pullback-time", "0")

    assert code == 0, text
    assert "1 not checked, the time of 0 s was over: user_ops:Square" in text
    assert "0 Functions audited, 0 with findings; not all could be audited" in text


@pytest.mark.slow
def test_workers_of_xdist_are_audited(run_fresh_pytest):
    code, text = run_fresh_pytest(TESTS, "--pullback", "-n", "1")

    assert code == 1
    assert text.count("G103 wrong-factor (wrong): ") == 1
    assert "1 Function audited, 1 with findings" in text


@pytest.mark.parametrize(
    ("options", "tests", "told"),
    [
        (["--pullback", "--pullback-allow", "gradient"], TESTS, "1 Function audited, 0 with"),
        pytest.param(
            ["--pullback"],
            SKIPPED,
            "0 Functions audited, 0 with findings",
            marks=pytest.mark.slow,
        ),
        ([], FIXTURE, "1 passed"),
    ],
    ids=["allowed", "marked", "fixture"],
)
def test_run_passes(run_pytest, options, tests, told):
    code, text = run_pytest(tests, *options)

    assert code == 0, text
    assert told in text


def test_plugin_loads_nothing_before_a_test_does(run_fresh_pytest):
    code, text = run_fresh_pytest(LIGHT)

    assert code == 0, text
    assert "1 passed" in text


@pytest.mark.slow
def test_unknown_rule_fails_the_run(run_pytest):
    code, text = run_pytest(TESTS, "--pullback", "--pullback-allow", "wrong-gradien")

    assert code == 4, text
    assert text.count("E404 rule-name: `wrong-gradien` must be the name, code or group") == 1
    assert "  expected: wrong-gradient or " in text
    assert "0 Functions audited, 0 with findings; not all could be audited" in text


@pytest.mark.slow
def test_sound_function_passes_the_audit(run_pytest):
    code, text = run_pytest(TESTS, "--pullback", factor=2)

    assert code == 0, text
    assert "1 Function audited, 0 with findings" in text


# ---- settings ----

DECLARED = """
[tool.pullback.declare."user_ops:Square"]
surrogate = ["x"]
"""
ALLOWED = """
[tool.pullback.per-file."user_ops.py"]
allow = ["gradient", "second", "linearity"]
"""
MISTAKEN = """
[tool.pullback]
profil = "quick"
"""


@pytest.mark.parametrize("settings", [DECLARED, ALLOWED])
def test_settings_hold_for_the_audit(run_pytest, tmp_path, settings):
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{settings}")

    code, output = run_pytest(TESTS, "--pullback", "--pullback-profile", "quick")

    assert code == 0, output
    assert "1 Function audited, 0 with findings" in output


def test_options_win_over_settings(run_pytest, tmp_path):
    settings = '[tool.pullback]\nprofile = "deep"\nselect = ["memory"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{settings}")
    options = ("--pullback-profile", "quick", "--pullback-select", "gradient")

    code, output = run_pytest(TESTS, "--pullback", *options)

    assert code == 1
    assert "wrong-factor" in output
    assert "profile quick" in output


def test_mistake_in_settings_is_a_usage_error(run_pytest, tmp_path):
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{MISTAKEN}")

    code, output = run_pytest(TESTS, "--pullback")

    assert code == pytest.ExitCode.USAGE_ERROR
    assert "profile" in output


def test_severity_that_fails_is_that_of_the_settings(run_pytest, tmp_path):
    settings = '[tool.pullback]\nfail-on = "wrong"\nselect = ["unread-saved"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{settings}")

    code, output = run_pytest(TESTS, "--pullback", factor="0 * g if True else x")

    assert code == 0, output
