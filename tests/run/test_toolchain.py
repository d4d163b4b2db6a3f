"""Building C++ once: the cache, two at a time, damage, and a compiler that refuses or is absent."""

import ctypes
import subprocess

import pytest

from pullback.errors import ToolchainError
from pullback.run import toolchain

pytestmark = pytest.mark.needs_compiler

SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    # Nothing of torch is needed here, and linking with it takes a while.
    monkeypatch.setattr(toolchain, "libraries", list)


@pytest.fixture
def builds(monkeypatch):
    """The commands that were run."""
    commands, run = [], subprocess.run

    def noted(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noted)
    return commands


def answer(path):
    return ctypes.CDLL(str(path)).answer()


def test_library_is_built_once(builds):
    assert not toolchain.is_built("answer", SOURCE)

    assert toolchain.build("answer", SOURCE, answer) == 42
    assert toolchain.build("answer", SOURCE, answer) == 42
    assert len(builds) == 1
    assert toolchain.is_built("answer", SOURCE)


def test_other_source_or_flags_are_built_apart(builds):
    toolchain.build("answer", SOURCE, answer)
    other = SOURCE.replace("42", "43")

    assert toolchain.build("answer", other, answer) == 43
    assert toolchain.build("answer", SOURCE, answer, extra=["-O0"]) == 42
    assert len(builds) == 3


def test_damaged_library_is_built_again(builds):
    path = toolchain.build("answer", SOURCE, lambda path: path)
    path.write_bytes(path.read_bytes()[:-100])

    assert not toolchain.is_built("answer", SOURCE)
    assert toolchain.build("answer", SOURCE, answer) == 42
    assert len(builds) == 2


def test_library_that_does_not_load_is_built_again(builds):
    toolchain.build("answer", SOURCE, lambda path: path)
    tries = []

    def load(path):
        tries.append(path)
        if len(tries) == 1:
            raise OSError("made for another system")
        return answer(path)

    assert toolchain.build("answer", SOURCE, load) == 42
    assert len(builds) == 2


def test_refused_source_is_an_error():
    with pytest.raises(ToolchainError) as raised:
        toolchain.build("answer", "int answer( {\n", answer)

    rule, got = str(raised.value).splitlines()
    compiler = toolchain.compiler().rsplit("/", 1)[-1]
    assert rule == f"E503 toolchain: `answer` must be C++ that `{compiler}` compiles"
    assert got.startswith("  got:      ")
    assert "error" in got
    assert not toolchain.is_built("answer", "int answer( {\n")


def test_absent_compiler_is_an_error(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError) as raised:
        toolchain.build("answer", SOURCE, answer)

    assert str(raised.value) == (
        "E503 toolchain: `answer` must be built with a C++ compiler\n"
        "  got:      no C++ compiler is installed (g++, clang++, or what CXX names)"
    )


def test_compiler_of_the_environment_is_used(monkeypatch):
    found = toolchain.compiler()
    monkeypatch.setenv("CXX", found)

    assert toolchain.compiler() == found
    assert toolchain.absence() is None
