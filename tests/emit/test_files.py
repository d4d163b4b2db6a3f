"""Files are written whole or not at all, and nothing of the user's is lost."""

import os
import stat

import pytest

import pullback as pb
from pullback.emit.files import write_files
from pullback.errors import EmitPathError
from tests.emit.python.cases import row, swish

FILES = {"op.cpp": "op\n", "CMakeLists.txt": "cmake\n"}


def test_module_is_written_to_path(tmp_path):
    path = tmp_path / "mine.py"
    text = pb.emit(swish, examples=(row(),), path=path)

    assert path.read_text() == text
    assert [*tmp_path.iterdir()] == [path]


def test_module_in_folder_has_its_name(tmp_path):
    text = pb.emit(swish, examples=(row(),), path=tmp_path)

    assert (tmp_path / "swish.py").read_text() == text


def test_several_files_make_a_folder(tmp_path):
    made = write_files(FILES, "op.cpp", tmp_path / "op")

    assert made == [tmp_path / "op" / "op.cpp", tmp_path / "op" / "CMakeLists.txt"]
    assert [path.read_text() for path in made] == ["op\n", "cmake\n"]


def test_path_of_a_file_gets_the_main_one(tmp_path):
    assert write_files(FILES, "op.cpp", tmp_path / "mine.cpp") == [tmp_path / "mine.cpp"]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.cpp"]


def test_missing_folder_is_named(tmp_path):
    path = tmp_path / "no" / "swish.py"
    with pytest.raises(EmitPathError) as raised:
        pb.emit(swish, examples=(row(),), path=path)

    assert str(raised.value) == (
        f"E602 emit-path: `{path}` must stand in a folder that exists\n"
        f"  got:      no folder `{path.parent}`\n"
        f"  fix:      mkdir -p {path.parent}"
    )


def test_foreign_file_is_not_replaced(tmp_path):
    path = tmp_path / "op.cpp"
    path.write_text("mine\n")
    with pytest.raises(EmitPathError) as raised:
        write_files(FILES, "op.cpp", tmp_path)

    assert str(raised.value) == (
        f"E602 emit-path: `{path}` must not hold another text that would be lost\n"
        "  got:      a file that is there already, and differs\n"
        "  fix:      name another file, or replace it: force=True, on the command line --force"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["op.cpp"]
    assert path.read_text() == "mine\n"


def test_force_replaces_and_keeps_rights(tmp_path):
    path = tmp_path / "op.cpp"
    path.write_text("mine\n")
    path.chmod(0o640)
    write_files(FILES, "op.cpp", path, force=True)

    assert path.read_text() == "op\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_same_text_is_left_alone(tmp_path):
    path = tmp_path / "op.cpp"
    path.write_text("op\n")
    os.utime(path, (1, 1))
    write_files(FILES, "op.cpp", path)

    assert path.stat().st_mtime == 1


def test_folder_in_place_of_file_is_refused(tmp_path):
    (tmp_path / "op.cpp").mkdir()
    with pytest.raises(EmitPathError, match="must be a file to be written"):
        write_files(FILES, "op.cpp", tmp_path)


def test_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(EmitPathError, match="No space left on device"):
        write_files(FILES, "op.cpp", tmp_path)

    assert [*tmp_path.iterdir()] == []
