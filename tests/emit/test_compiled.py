"""`build`: libraries are kept, processes wait for each other, and compilers are quoted readably."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pullback as pb
from examples import my_relu
from pullback.emit.compiled import build_file, library_of
from pullback.errors import BuildError
from pullback.run.disk import cache

FILE = """\
#include <torch/library.h>
TORCH_LIBRARY(built_test, m) { m.def("one(Tensor x) -> Tensor"); }
"""


@pytest.fixture
def source(tmp_path):
    """A C++ file that registers an op."""
    file = tmp_path / "one.cpp"
    file.write_text(FILE, encoding="utf-8")
    return file


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A program in the place of the compiler: it notes each call, and writes what it is to."""

    def make(body='echo library > "$out"'):
        script = tmp_path / "compiler.sh"
        log = tmp_path / "calls.log"
        script.write_text(
            "#!/bin/sh\n"
            'if [ "$1" = "--version" ]; then echo "compiler 1"; exit 0; fi\n'
            f'echo call >> "{log}"\n'
            'while [ $# -gt 0 ]; do if [ "$1" = "-o" ]; then out="$2"; fi; shift; done\n'
            f"{body}\n",
            encoding="utf-8",
        )
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("CXX", str(script))
        return lambda: len(log.read_text(encoding="utf-8").split()) if log.exists() else 0

    return make


def test_library_is_kept_by_its_content(source, compiler, tmp_path):
    calls = compiler()
    first = library_of(source, cache=tmp_path / "cache")
    again = library_of(source, cache=tmp_path / "cache")

    assert (first, calls()) == (again, 1)
    assert first.read_text(encoding="utf-8") == "library\n"


@pytest.mark.parametrize("what", ["text", "header", "flags", "torch"])
def test_other_content_is_compiled_anew(what, source, compiler, tmp_path, monkeypatch):
    calls = compiler()
    source.write_text(f'#include "own.h"\n{FILE}', encoding="utf-8")
    (tmp_path / "own.h").write_text("// one\n", encoding="utf-8")
    first = library_of(source, cache=tmp_path / "cache")
    if what == "torch":
        monkeypatch.setattr(cache, "environment", lambda: "torch 9.9.9")
    if what in ("text", "header"):
        changed = source if what == "text" else tmp_path / "own.h"
        changed.write_text(changed.read_text("utf-8") + "// more\n", encoding="utf-8")
    flags = ["-g"] if what == "flags" else ()
    other = library_of(source, cache=tmp_path / "cache", flags=flags)

    assert first != other
    assert calls() == 2


@pytest.mark.slow
def test_two_processes_compile_once(source, compiler, tmp_path):
    calls = compiler('sleep 2; echo library > "$out"')
    code = (
        "import sys; from pathlib import Path; from pullback.emit.compiled import library_of;"
        "print(library_of(Path(sys.argv[1]), cache=sys.argv[2]))"
    )
    root = Path(__file__).resolve().parents[2]
    settings = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "cache")]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) for _ in range(2)
    ]
    said = {process.communicate()[0].strip() for process in running}

    assert len(said) == 1
    assert Path(said.pop()).is_file()
    assert calls() == 1


def test_folder_for_libraries_can_be_named(source, compiler, tmp_path, monkeypatch):
    compiler()
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "kept"))

    assert (tmp_path / "kept") in library_of(source).parents


def test_failed_build_leaves_no_library(source, compiler, tmp_path):
    compiler('echo library > "$out"; exit 1')
    with pytest.raises(BuildError):
        library_of(source, cache=tmp_path / "cache")

    assert list((tmp_path / "cache").rglob("*.so")) == []


def test_unusable_folder_for_libraries_is_named(source, compiler, tmp_path):
    compiler()
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    with pytest.raises(BuildError) as caught:
        build_file(source, cache=tmp_path / "file")

    assert (
        caught.value.rule == f"`{tmp_path / 'file'}` must be a folder that libraries can be kept in"
    )


# ---- what goes wrong ----


def test_errors_of_compiler_are_shown_with_lines(source, compiler, tmp_path):
    compiler(
        f'echo "{source}:2:5: error: expected a semicolon" >&2\n'
        f'echo "{source}:1:1: fatal error: no such header" >&2\nexit 1'
    )
    with pytest.raises(BuildError) as caught:
        build_file(source, cache=tmp_path / "cache")
    (log,) = (tmp_path / "cache").rglob("compiler.log")

    assert str(caught.value) == (
        f"E603 build: `{source}` must compile\n"
        f"  at:       {source}:2\n"
        "  got:      line 2: expected a semicolon\n"
        '              TORCH_LIBRARY(built_test, m) { m.def("one(Tensor x) -> Tensor"); }\n'
        "            line 1: no such header\n"
        "              #include <torch/library.h>\n"
        f"  fix:      all that the compiler said is in {log}"
    )
    assert "expected a semicolon" in log.read_text(encoding="utf-8")


def test_missing_compiler_is_named(source, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError) as caught:
        build_file(source)

    assert str(caught.value) == (
        "E603 build: a C++ compiler must be there to build\n"
        "  got:      no C++ compiler is installed as `no-such-compiler`, which CXX names\n"
        "  fix:      install g++ or clang++, or set CXX to a compiler"
    )


BAD_FILES = {
    "no op": ("int main() {}\n", "must register an op to be built", "no registration"),
    "empty": (
        "TORCH_LIBRARY(space, m) {}\n",
        "must register an op to be built",
        "a registration without an op",
    ),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_file_without_ops_is_refused(kind, tmp_path):
    text, rule, got = BAD_FILES[kind]
    file = tmp_path / "bad.cpp"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BuildError) as caught:
        build_file(file)

    assert (caught.value.rule, caught.value.facts["got"]) == (f"`{file}` {rule}", got)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(BuildError, match="must be a C\\+\\+ file, or a folder with one"):
        build_file(tmp_path / "nothing.cpp")


def test_folder_with_two_files_is_refused(tmp_path):
    for name in ("one.cpp", "two.cpp"):
        (tmp_path / name).write_text(FILE, encoding="utf-8")

    with pytest.raises(BuildError, match="must hold one C\\+\\+ file that registers ops"):
        build_file(tmp_path)


def test_op_is_not_registered_twice(tmp_path, compiler):
    compiler()
    file = tmp_path / "taken.cpp"
    file.write_text('TORCH_LIBRARY_FRAGMENT(aten, m) { m.def("mul(Tensor x) -> Tensor"); }')

    with pytest.raises(BuildError, match="`aten::mul` must not be registered twice in one process"):
        build_file(file, cache=tmp_path / "cache")


def test_unusable_library_is_an_error(source, compiler, tmp_path):
    compiler()

    with pytest.raises(BuildError, match=r"the library of .* must load"):
        build_file(source, cache=tmp_path / "cache")


# ---- the real thing ----


class BuiltRelu(my_relu.MyReLU):
    """A class of its own name, since ops cannot be registered twice."""


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_emitted_folder_is_built_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    x = torch.tensor([-1.0, 2.0, 3.0], requires_grad=True)
    pb.emit(BuiltRelu, "cpp", examples=(x,), path=tmp_path / "relu")
    op = pb.build(tmp_path / "relu")
    op(x).sum().backward()
    libraries = list((tmp_path / "cache").rglob("*.so"))
    monkeypatch.setattr("subprocess.run", None)
    again = pb.build(tmp_path / "relu" / "built_relu.cpp")

    assert op is again is torch.ops.emitted.built_relu
    assert x.grad.tolist() == [0, 1, 1]
    assert len(libraries) == 1
