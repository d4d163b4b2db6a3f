"""Which compiler is found, why one is missing, and what it is told."""

import sys

import pytest

from pullback.run.disk import toolchain


@pytest.fixture
def installed(monkeypatch):
    """Programs that are there: no others are found."""

    def install(*names):
        monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in names else None)

    monkeypatch.delenv("CXX", raising=False)
    return install


def test_compiler_is_looked_for_by_name(installed):
    installed("clang++")

    assert toolchain.compiler() == ("/bin/clang++",)


def test_command_of_the_environment_is_used(installed, monkeypatch):
    installed("ccache", "g++")
    monkeypatch.setenv("CXX", "ccache clang++ -m64")

    assert toolchain.compiler() == ("/bin/ccache", "clang++", "-m64")


@pytest.mark.parametrize("wish", ["", "  "])
def test_empty_wish_is_none(installed, monkeypatch, wish):
    installed("g++")
    monkeypatch.setenv("CXX", wish)

    assert toolchain.compiler() == ("/bin/g++",)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("", "no C++ compiler is installed (g++, clang++, c++, or what CXX names)"),
        ("cxx'", "no C++ compiler is installed as `cxx'`, which CXX names"),
    ],
)
def test_missing_compiler_is_one_line(installed, monkeypatch, wish, said):
    installed()
    monkeypatch.setenv("CXX", wish)

    assert toolchain.absence() == said


def test_missing_headers_are_one_line(installed, monkeypatch, tmp_path):
    installed("g++")
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))

    assert toolchain.absence() is None
    assert toolchain.absence(python=True) == "the headers of Python are not installed (Python.h)"
    monkeypatch.setattr(toolchain, "include_folder", lambda: tmp_path)
    assert toolchain.absence() == "this torch came without its headers"


def test_language_is_that_of_the_headers(monkeypatch, tmp_path):
    assert f"-std=c++{toolchain.language_standard()}" in toolchain.options()
    monkeypatch.setattr(toolchain, "include_folder", lambda: tmp_path)
    (tmp_path / "ATen").mkdir()

    assert toolchain.language_standard() == 17
    (tmp_path / "ATen" / "ATen.h").write_text("#error C++20 or later compatible compiler")
    assert toolchain.language_standard() == 20


@pytest.mark.skipif(sys.platform == "darwin", reason="its linker has other options")
def test_what_is_missing_is_known_when_linking():
    assert "-Wl,--no-undefined" in toolchain.libraries()
    assert "-Wl,--no-undefined" not in toolchain.libraries(python=True)
    assert "-ltorch_python" in toolchain.libraries(python=True)
