"""Building C++ once: the cache, files that are included, damage, and a compiler that refuses."""

import ctypes

import pytest

from pullback.errors import BuildError
from pullback.run.disk import building, toolchain
from pullback.run.disk.building import Library, build_library, is_built

pytestmark = pytest.mark.needs_compiler

SOURCE = '#include "number.h"\nextern "C" int answer() { return NUMBER; }\n'


@pytest.fixture
def library(monkeypatch, tmp_path):
    """Two files in a folder, to be built into a cache of their own."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    # Nothing of torch is needed here, and linking with it takes a while.
    monkeypatch.setattr(toolchain, "libraries", lambda *, python: [])
    (tmp_path / "answer.cpp").write_text(SOURCE)
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    return Library("answer", tmp_path / "answer.cpp")


@pytest.fixture
def builds(monkeypatch):
    """The commands that were run to build something."""
    commands, run = [], building._run

    def noted(command):
        commands.append(command)
        return run(command)

    monkeypatch.setattr(building, "_run", noted)
    return commands


def answer(path):
    return ctypes.CDLL(str(path)).answer()


def test_library_is_built_once(library, builds):
    assert not is_built(library)

    assert build_library(library, answer) == 42
    assert build_library(library, answer) == 42
    assert len(builds) == 1
    assert is_built(library)


def test_changed_header_is_built_apart(library, builds):
    build_library(library, answer)
    library.file.with_name("number.h").write_text("#define NUMBER 43\n")

    assert build_library(library, answer) == 43
    assert len(builds) == 2


def test_other_flags_are_built_apart(library, builds):
    build_library(library, answer)

    assert build_library(Library("answer", library.file, flags=("-O0",)), answer) == 42
    assert len(builds) == 2


def test_files_that_include_each_other_are_read_once(tmp_path):
    (tmp_path / "one.h").write_text('#include "two.h"\n#include <vector>\n')
    (tmp_path / "two.h").write_text('#  include "one.h"\n#include "absent.h"\n')
    found = building.sources(tmp_path / "one.h")

    assert [path.name for path in found] == ["one.h", "two.h"]


def test_damaged_library_is_built_again(library, builds):
    path = build_library(library, lambda path: path)
    path.write_bytes(path.read_bytes()[:-100])

    assert not is_built(library)
    assert build_library(library, answer) == 42
    assert len(builds) == 2


def test_library_that_does_not_load_is_built_again(library, builds):
    build_library(library, lambda path: path)
    tries = []

    def load(path):
        tries.append(path)
        if len(tries) == 1:
            raise OSError("made for another system")
        return answer(path)

    assert build_library(library, load) == 42
    assert len(builds) == 2


def test_refused_source_is_an_error(library, tmp_path):
    library.file.write_text("int answer( {\n")
    with pytest.raises(BuildError) as raised:
        build_library(library, answer)
    (log,) = (tmp_path / "cache").rglob("compiler.log")

    rule, at, got, code, *_, fix = str(raised.value).splitlines()
    assert rule == f"E603 build: `{library.file}` must compile"
    assert at == f"  at:       {library.file}:1"
    assert got.startswith("  got:      line 1: expected")
    assert code == "              int answer( {"
    assert fix == f"  fix:      all that the compiler said is in {log}"
    assert not is_built(library)


def test_full_disk_is_said(library, monkeypatch):
    said = (
        "answer.cpp:1: error: x\nfatal error: error writing to answer.o: No space left on device\n"
    )
    monkeypatch.setattr(building, "_run", lambda command: (1, said))
    with pytest.raises(BuildError) as raised:
        build_library(library, answer)

    assert str(raised.value) == (
        f"E603 build: `{library.file}` must be built where a disk has space left\n"
        "  got:      fatal error: error writing to answer.o: No space left on device\n"
        "  fix:      free some space, or set PULLBACK_CACHE_DIR and TMPDIR to folders on another "
        "disk"
    )


def test_error_in_another_file_names_it(library, tmp_path):
    library.file.with_name("number.h").write_text("#define NUMBER 1\n#error no number\n")
    with pytest.raises(BuildError) as raised:
        build_library(library, answer)

    assert raised.value.facts["at"] == str(library.file)
    assert raised.value.facts["got"].endswith("number.h:2: #error no number")


def test_absent_compiler_is_an_error(library, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError) as raised:
        build_library(library, answer)

    assert str(raised.value) == (
        "E603 build: a C++ compiler must be there to build\n"
        "  got:      no C++ compiler is installed as `no-such-compiler`, which CXX names\n"
        "  fix:      install g++ or clang++, or set CXX to a compiler"
    )


def test_unusable_compiler_is_an_error(library, monkeypatch, tmp_path):
    program = tmp_path / "compiler"
    program.write_text("no program")
    program.chmod(0o700)
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(BuildError) as raised:
        build_library(library, answer)

    assert raised.value.rule == f"`{library.file}` must be built with `{program}`"
