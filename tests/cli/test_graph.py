"""`pullback graph` prints a table, or writes a page."""

import pytest
from click.testing import CliRunner

from pullback.cli.main import app
from pullback.errors import PullbackError

PROGRAM = """
import torch

def wave(x):
    return x.sin() ** 2

wave.examples = lambda: (torch.ones(3, requires_grad=True),)

def twice(x):
    return 2 * x

def make_model():
    return torch.nn.Linear(3, 2)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "waves.py").write_text(PROGRAM)
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, ["graph", *args])


def test_table_is_printed(file):
    result = run("waves.py:wave", "--no-time")

    assert result.exit_code == 0, result.output
    assert "gradient of x" in result.stdout
    assert "save: auto" in result.stdout


def test_page_is_written(file):
    result = run("waves.py:make_model", "--example", "torch.ones(2, 3)", "--html", "page.html")

    assert result.stdout == "graph: page.html\n"
    assert "gradient of weight" in (file / "page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["waves.py:wave", "--html", "no/page.html"], "no"),
        (["waves.py:wave", "--save", "nothing"], "save"),
        (["waves.py:wav"], "names such as wave"),
        (["waves.py:twice", "--example", "3"], "must be given a tensor"),
        (["waves.py:make_model"], "must come with examples"),
    ],
)
def test_mistakes_are_told(file, args, said):
    result = run(*args)

    assert isinstance(result.exception, PullbackError)  # which the program prints
    assert said in str(result.exception)
