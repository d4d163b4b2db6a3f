"""`pullback new check` writes a check and its test, which run as they are."""

import importlib.util
import sys

import pytest
from click.testing import CliRunner

from pullback.cli.main import app
from pullback.cli.new import RULES, TESTS
from pullback.errors import TargetError


def new(*args):
    return CliRunner().invoke(app, ["new", "check", *args], catch_exceptions=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def repository(folder):
    for path in (RULES, TESTS):
        (folder / path / "gradient").mkdir(parents=True)
    return folder


def test_check_of_another_package_passes_its_test(folder, warm_python):
    result = new("gradient-not-finite", "--group", "acme")
    done = warm_python("-m", "pytest", "-q", "-p", "no:cacheprovider", ".", folder=folder)

    assert result.exit_code == 0
    assert 'gradient-not-finite = "YOUR_PACKAGE.gradient_not_finite"' in result.output
    assert 'code="ACME1"' in (folder / "gradient_not_finite.py").read_text("utf-8")
    assert "2 passed" in done.stdout, done.stdout


def test_check_of_ours_gets_the_next_code_of_its_group(repository):
    result = new("not-finite", "--group", "gradient")
    path = repository / RULES / "gradient" / "not_finite.py"
    spec = importlib.util.spec_from_file_location("not_finite", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert result.exit_code == 0
    test = (repository / TESTS / "gradient" / "test_not_finite.py").read_text("utf-8")
    assert "from pullback.check.rules.gradient.not_finite import check" in test
    space = {"__name__": "test_not_finite"}
    sys.modules["pullback.check.rules.gradient.not_finite"] = sys.modules["not_finite"] = module
    try:
        exec(test, space)
        space["test_sound_function_has_no_finding"]("stable")
        space["test_planted_fault_is_caught"]("overflow")
    finally:
        del sys.modules["pullback.check.rules.gradient.not_finite"], sys.modules["not_finite"]
    assert module.RULE.group == "gradient"
    assert module.RULE.code not in {f"G10{i}" for i in range(9)}
    assert module.RULE.code.startswith("G1")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("NotFinite",), "small letters in words-with-hyphens"),
        (("wrong-gradient",), "the name of another rule"),
    ],
)
def test_name_that_will_not_do_is_refused(folder, args, said):
    error = new(*args).exception

    assert isinstance(error, TargetError)
    assert said in str(error)
    assert list(folder.iterdir()) == []


def test_group_must_be_one_of_ours(repository):
    error = new("not-finite", "--group", "acme").exception

    assert isinstance(error, TargetError)
    assert "expected: gradient" in str(error)


def test_nothing_is_written_over(folder):
    (folder / "test_not_finite.py").write_text("mine", encoding="utf-8")
    error = new("not-finite").exception

    assert isinstance(error, TargetError)
    assert (folder / "test_not_finite.py").read_text("utf-8") == "mine"
    assert not (folder / "not_finite.py").exists()
