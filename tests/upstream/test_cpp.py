"""Ops of PyTorch's own database as C++: emitted, built together, compared in a new process."""

import json
from pathlib import Path

import pytest

from pullback.emit.compiled import library_of
from pullback.emit.cpp.library import library_text
from pullback.emit.cpp.op import cpp_function
from pullback.emit.cpp.verify import require_same
from pullback.emit.subject import subject_of
from tests.upstream.cpp_programs import FEW, MANY, program

pytestmark = pytest.mark.needs_compiler

ROOT = Path(__file__).resolve().parents[2]


def built(names, folder, run_python, monkeypatch):
    """How each op of a library differs from its program, as a new process sees it."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(folder / "cache"))
    functions = [cpp_function(subject_of(program(name), program(name).tensors)) for name in names]
    file = folder / "upstream.cpp"
    file.write_text(library_text(["Ops of PyTorch."], functions), encoding="utf-8")
    # At other sizes, ties and zeros, and second derivatives: as when it is handed out.
    assert require_same(functions, file.read_text(encoding="utf-8"), file.name)
    done = run_python(
        "-m", "tests.upstream.cpp_programs", str(library_of(file)), *names, folder=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_few_ops_are_those_of_pytorch(tmp_path, run_python, monkeypatch):
    assert built(FEW, tmp_path, run_python, monkeypatch) == dict.fromkeys(FEW, "")


@pytest.mark.slow
def test_fifteen_ops_are_those_of_pytorch(tmp_path, run_python, monkeypatch):
    assert len(MANY) == 15
    assert built(MANY, tmp_path, run_python, monkeypatch) == dict.fromkeys(MANY, "")
