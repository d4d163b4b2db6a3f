"""Every shell command in the documents runs as printed, from the root of a fresh clone.

A command may find something (exit code 1), but not fail to run. Those that take long are slow
tests; those that cannot run here are exempt, each for a reason; of both, the command line is read.
A command runs once, whichever documents have it.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from _pullback_cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

EXEMPT = {
    r"^make |^\.venv/|^pip |^python -m pytest$": "installs, or runs what CI runs anyway",
    r"^\. \.venv/": "lets the shell find `pullback`: here it is the environment of the tests",
    r"^pytest": "runs the whole suite; tests/test_pytest_plugin.py runs it on small ones",
    r"my_ops\.so": "needs the library that docs/check-cpp.md builds, and test_native.py checks",
    r"--device cuda": "needs a GPU, and an hour",
    r"torchrun|--inputs pullback-recording.pt --ranks": "tests/check/ranks records under torchrun",
    r"^python -m benchmarks": "measures for minutes; test_benchmarks.py runs each shortly",
    r"^python -m tests\.upstream": "runs for minutes; tests/upstream runs a part of it",
    r"gradient-not-finite|--select acme": "needs the package of the example in docs/extend.md",
    r"^pullback new check NAME|^pullback COMMAND|^pullback needs": "a form, not a command",
    r"^python -m pullback$": "prints its help, which is a usage error without a command",
    r"^python -m docs\.generate$": "test_generated_docs.py compares what it writes",
}
SLOW = (
    r"^pullback (plan|judge)|--build|--ranks|--profile deep|^pullback check examples/my_ops.py($| )"
)
QUICK = r"--write-baseline|--show-settings"  # of the slow ones, those that are run all the same

FENCE = re.compile(r"^```(bash|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:pullback|python -m|make|pytest|pip) [^`]+)`")


def commands_of(text):
    """The shell commands of a document: blocks of bash, lines after `$`, and those in sentences."""
    for block in FENCE.finditer(text):
        lines = block[2].splitlines()
        told = [line[2:] for line in lines if line.startswith("$ ")]
        yield from told if block[1] == "text" else [line for line in lines if line.strip()]
    for command in INLINE.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)):
        if len(command.split()) > 2 or command.startswith("python"):
            yield command.replace("\\|", "|")


def bare(command):
    """A command without the comment behind it."""
    return re.sub(r"\s+#.*$", "", command).strip()


def reason_for(command):
    return next((why for pattern, why in EXEMPT.items() if re.search(pattern, command)), "")


def is_slow(command):
    return bool(re.search(SLOW, command)) and not re.search(QUICK, command)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files that git knows, and those that it would take, in a folder of their own."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("needs git and a repository")
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A folder with `pullback` as it is installed, and this Python."""
    folder = tmp_path_factory.mktemp("programs")
    call = "from _pullback_cli import main; main()"
    for name, rest in {"python": "", "pullback": f" -c '{call}'"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{rest} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / "warm").write_text(call)
    return folder


@pytest.fixture(scope="module")
def settings(programs, tmp_path_factory):
    return {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PULLBACK_CACHE_DIR": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="module")
def warm(clone, warm_python, programs, settings):
    """Run a command in the clone, once, by a process that has PyTorch loaded."""
    begin = {"python": [], "pullback": [str(programs / "warm")]}

    @functools.cache
    def run(command):
        name, *rest = shlex.split(command)
        return warm_python(*begin[name], *rest, folder=clone, **settings)

    return run


@pytest.fixture(scope="module")
def shell(clone, settings):
    """Run a command in the clone, once, by the shell."""
    if not shutil.which("bash"):
        pytest.skip("needs bash")
    fresh = {**os.environ, **settings, "PYTHONPATH": str(clone / "src")}

    @functools.cache
    def run(command):
        return subprocess.run(
            ["bash", "-c", command], cwd=clone, env=fresh, capture_output=True, text=True
        )

    return run


def run_all(run, path, *, slow):
    """Run the commands of a document in their order: one may use what another wrote."""
    for command in dict.fromkeys(map(bare, commands_of(path.read_text("utf-8")))):
        if reason_for(command) or (is_slow(command) and not slow):
            continue
        done = run(command)
        told = f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr}"
        assert done.returncode in (0, 1), told
        assert "Traceback" not in done.stderr, told


def with_commands(*, slow):
    """The documents with commands that are slow, that are not, or (`None`) with any."""
    for path in DOCUMENTS:
        commands = [bare(command) for command in commands_of(path.read_text("utf-8"))]
        if any(not reason_for(c) and slow in (None, is_slow(c)) for c in commands):
            yield pytest.param(path, id=path.name)


@pytest.mark.parametrize("path", list(with_commands(slow=False)))
def test_commands_of_document_run(warm, path):
    run_all(warm, path, slow=False)


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("path", list(with_commands(slow=None)))
def test_commands_of_document_run_by_a_shell(shell, path):
    run_all(shell, path, slow=True)


def parse(command):
    """Let the program read a command line, and do nothing: what it says against it."""
    _, name, *rest = shlex.split(command)
    context = click.Context(app, info_name="pullback")
    found = app.get_command(context, name)
    if found is None:
        return f"no command `{name}`"
    try:
        found.make_context(name, rest, parent=context)
    except click.ClickException as error:
        return error.format_message()
    return ""


def slow_commands():
    every = [bare(c) for path in DOCUMENTS for c in commands_of(path.read_text("utf-8"))]
    forms = r"NAME|COMMAND|^pullback needs"
    return [
        command
        for command in dict.fromkeys(every)
        if command.startswith("pullback ") and (is_slow(command) or reason_for(command))
        if not re.search(forms, command)
    ]


@pytest.mark.parametrize("command", slow_commands())
def test_command_that_is_not_run_is_read(clone, command, monkeypatch):
    monkeypatch.chdir(clone)
    (clone / "my_ops.so").touch()  # as if it were built

    assert parse(command) == ""


@pytest.mark.parametrize("command", ["pullback check --no-such a.py", "pullback chek a.py"])
def test_wrong_command_is_not_read(command):
    assert parse(command) != ""


def test_every_exemption_is_used():
    every = [bare(c) for path in DOCUMENTS for c in commands_of(path.read_text("utf-8"))]

    assert [p for p in EXEMPT if not any(re.search(p, command) for command in every)] == []


def test_commands_of_readme_are_found():
    readme = [bare(c) for c in commands_of((ROOT / "README.md").read_text("utf-8"))]
    left = [command for command in readme if not reason_for(command)]

    assert "pullback check examples/my_ops.py" in left


# ---- the extraction itself ----

PLANTED = """
```bash
make it   # why
```
Say `pullback check a.py`, or `pullback check`; `python -m a.b`.
```text
$ pullback explain G101
no command
```
```python
`pullback check b.py`
```
"""


def test_planted_commands_are_found():
    assert [bare(command) for command in commands_of(PLANTED)] == [
        "make it",
        "pullback explain G101",
        "pullback check a.py",
        "python -m a.b",
    ]
