"""Targets are found by name, in modules, in files and among the ops."""

import sys

import pytest
import torch

import pullback as pb
from pullback.check.target.naming import REGISTERS, already_loaded, load, path_of
from pullback.check.target.target import target_of
from pullback.errors import TargetError
from tests.check import functions as f
from tests.check.subjects import normal


def test_name_in_module_is_found():
    assert load("tests.check.functions:HalfSquare") is f.HalfSquare


def test_op_is_found_with_overload():
    assert load("torch.ops.aten.add") is torch.ops.aten.add
    assert load("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor


@pytest.mark.parametrize("name", ["torch.ops.aten.no_such_op", "torch.ops.aten.add.NoSuch"])
def test_missing_op_is_refused(name):
    with pytest.raises(TargetError, match=r"E401 target: `torch\.ops") as caught:
        load(name)

    assert f"fix:      {REGISTERS}" in str(caught.value)


def test_check_takes_a_name():
    report = pb.check("tests.check.functions:HalfSquare", (normal(3),), select=["wrong-factor"])

    assert report.subject == "HalfSquare"
    assert len(report.findings) == 1


def test_file_is_found_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "ops_by_file.py").write_text("value = 3\n", encoding="utf-8")

    assert load(f"{tmp_path}/ops_by_file.py:value") == 3
    sys.modules.pop("ops_by_file")


def test_file_that_imports_relatively_is_a_part_of_its_package(folder, monkeypatch):
    inner = folder / "acme_ops" / "inner"
    inner.mkdir(parents=True)
    for package in (inner.parent, inner):
        (package / "__init__.py").touch()
    (inner.parent / "base.py").write_text("value = 4\n", encoding="utf-8")
    (inner / "three.py").write_text("from ..base import value\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))

    assert load("acme_ops/inner/three.py:value") == 4


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("three", "from acme_parts.base import value\n"),
        ("three", "import acme_parts.base\nvalue = acme_parts.base.value\n"),
        ("queue", "value = 4\n"),  # alone, it would stand in the place of Python's
    ],
)
def test_file_that_needs_its_package_is_a_part_of_it(folder, monkeypatch, name, text):
    package = folder / "acme_parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text("value = 4\n", encoding="utf-8")
    (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    pythons = sys.modules.get("queue")

    assert load(f"acme_parts/{name}.py:value") == 4
    assert f"acme_parts.{name}" in sys.modules
    assert sys.modules.get("queue") is pythons
    for module in [one for one in sys.modules if one.startswith("acme_parts")]:
        del sys.modules[module]


def test_op_is_named_that_was_meant():
    with pytest.raises(TargetError, match=r"`torch\.ops\.aten\.sigmoi` must be an op") as caught:
        load("torch.ops.aten.sigmoi")

    assert caught.value.facts["expected"].startswith("torch.ops.aten.sigmoid")


BROKEN = {
    "import no_such_module_of_mine\n": (
        "ModuleNotFoundError: No module named 'no_such_module_of_mine'",
        "install it, or run pullback in the environment of your project",
    ),
    "def f(:\n": ("SyntaxError: invalid syntax: def f(:", ""),
    "raise SystemExit(3)\n": (
        "SystemExit: 3",
        'put what is to run only as a program under `if __name__ == "__main__":`',
    ),
    "1 / 0\n": ("ZeroDivisionError: division by zero", ""),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that a user runs in."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("where", ["broken_ops.py", "broken_ops"])
@pytest.mark.parametrize("text", BROKEN, ids=["import", "syntax", "exit", "raise"])
def test_module_that_raises_is_told(folder, where, text):
    (folder / "broken_ops.py").write_text(text, encoding="utf-8")
    with pytest.raises(TargetError, match="must be something that Python can import") as caught:
        load(f"{where}:f")
    sys.modules.pop("broken_ops", None)
    facts = caught.value.facts

    assert facts["at"] == "broken_ops.py:1"
    assert (facts["got"], facts["fix"]) == BROKEN[text]


IMPORTING = "from kit_of_mine.parts import value\n"


@pytest.fixture
def project(folder):
    """A folder with the package `kit_of_mine`, a file of which imports another."""
    (folder / "kit_of_mine").mkdir()
    (folder / "kit_of_mine" / "parts.py").write_text("value = 3\n", encoding="utf-8")
    (folder / "kit_of_mine" / "ops_of_kit.py").write_text(IMPORTING, encoding="utf-8")
    yield folder
    for name in [name for name in sys.modules if "kit_of_mine" in name or name == "ops_of_kit"]:
        del sys.modules[name]


def test_file_imports_from_current_folder(project):
    assert load("kit_of_mine/ops_of_kit.py:value") == 3


def test_folders_are_looked_in_once(project):
    for _ in range(2):
        load("kit_of_mine/ops_of_kit.py:value")

    assert sys.path.count(str(project)) == sys.path.count(str(project / "kit_of_mine")) == 1


def test_folder_to_run_from_is_told(project, monkeypatch):
    monkeypatch.chdir(project / "kit_of_mine")
    with pytest.raises(TargetError, match="No module named 'kit_of_mine'") as caught:
        load("ops_of_kit.py:value")

    assert caught.value.facts["at"] == "ops_of_kit.py:1"
    assert caught.value.facts["fix"] == "run from .., which holds `kit_of_mine`"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("my_opps.py:f", "fix:      did you mean my_ops.py?"),
        ("my_ops.py:swich", "got:      names such as swish"),
        ("./kernels:f", "fix:      name its files: kernels/*.py"),
        ("kernels:f", "fix:      name its files: kernels/*.py"),
        ("my_ops.so:f", "fix:      name the ops that it registers: torch.ops.NAMESPACE"),
        ("no_module_of_mine:f", "got:      No module named 'no_module_of_mine'"),
    ],
)
def test_mistyped_target_says_what_may_be_meant(folder, target, said):
    (folder / "my_ops.py").write_text("import torch\nswish = 1\n", encoding="utf-8")
    (folder / "my_ops.so").write_bytes(b"")
    (folder / "kernels").mkdir()
    with pytest.raises(TargetError) as caught:
        load(target)
    sys.modules.pop("my_ops", None)

    assert said in str(caught.value)


# ---- targets that are none ----


def refusal(target):
    with pytest.raises(TargetError) as raised:
        target_of(target)
    return str(raised.value)


def test_empty_target_is_told_whole():
    assert refusal(" ") == (
        "E401 target: a target must have a name\n"
        "  expected: file.py, file.py:Name, module:Name, or torch.ops.namespace.op\n"
        "  got:      an empty text\n"
        "  fix:      if it came from a variable of the shell, that is not set"
    )


def test_missing_namespace_is_told():
    assert refusal("torch.ops.nope") == (
        "E401 target: `torch.ops.nope` must be a namespace in which ops are registered\n"
        "  got:      none\n"
        f"  fix:      {REGISTERS}"
    )
    assert "expected: torch.ops.aten" in refusal("torch.ops.atn")
    assert "`torch.ops.aten` must name an op in it" in refusal("torch.ops.aten")


def test_binary_file_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {"a.py": b"\x00\x01", "b.py": b"\xff\xfe\xff", "c.bin": b"\x00"}.items():
        (tmp_path / name).write_bytes(content)

    assert refusal("a.py:x") == (
        "E401 target: `a.py` must be a Python file\n  got:      a file that is not text"
    )
    assert "a file that is not text" in refusal("b.py:x")
    assert refusal("c.bin:x") == (
        "E401 target: `c.bin` must be a Python file or module\n"
        "  expected: a file whose name ends in .py\n"
        "  got:      a file that ends in .bin"
    )


def test_class_of_modules_is_told():
    with pytest.raises(TargetError) as raised:
        target_of(torch.nn.Linear)

    assert str(raised.value) == (
        "E401 target: `Linear` must be a module, not the class of one\n"
        "  expected: an object that can be called with tensors\n"
        "  got:      the class `Linear`, a torch.nn.Module\n"
        "  fix:      name a module that is made of it: model = Linear(...)"
    )


def test_path_leads_back_to_what_says_it():
    for thing in (torch.nn.Linear, target_of, torch.relu):
        assert already_loaded(path_of(thing)) is thing


def test_path_into_a_function_leads_nowhere():
    def inner():
        pass

    assert path_of(inner).endswith("test_path_into_a_function_leads_nowhere.<locals>.inner")
    assert already_loaded(path_of(inner)) is None


def test_what_has_no_name_has_no_path():
    assert path_of(None) == ""
    assert already_loaded("") is None
