"""Folders that code is loaded from: one that others can write to is refused."""

import os

import pytest

from pullback.run.disk import private
from pullback.run.disk.private import OpenFolderError, intrusion_of, require_private

pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes are those of Unix")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "above" / "cache"
    made.mkdir(parents=True)
    tmp_path.chmod(0o755)
    made.parent.chmod(0o755)
    made.chmod(0o755)
    return made


def test_own_folder_is_private(folder):
    require_private(folder)

    assert intrusion_of(folder / "yet" / "to be made") == ""


def test_folder_of_everybody_is_refused(folder):
    folder.chmod(0o777)

    with pytest.raises(OpenFolderError, match=r"everybody may write to `.*cache` \(mode 0777\)"):
        require_private(folder)


def test_folder_of_a_group_is_refused(folder, monkeypatch):
    folder.chmod(0o775)
    monkeypatch.setattr(private, "_is_alone_in", lambda group: False)

    with pytest.raises(OpenFolderError, match=r"the group \d+ may write"):
        require_private(folder)


def test_group_of_one_user_is_nobody_else(folder, monkeypatch):
    folder.chmod(0o775)
    monkeypatch.setattr(private, "_is_alone_in", lambda group: True)

    assert intrusion_of(folder) == ""


def test_folder_above_may_be_sticky_and_not_open(folder):
    folder.parent.chmod(0o777)
    open_above = intrusion_of(folder)
    folder.parent.chmod(0o1777)

    assert f"everybody may write to `{folder.parent}`" in open_above
    assert intrusion_of(folder) == ""


@pytest.mark.parametrize("which", ["itself", "above"])
def test_folder_of_another_user_is_refused(folder, which, monkeypatch):
    whose = folder if which == "itself" else folder.parent
    real = os.stat_result

    def stat(path, **options):
        facts = list(real(os.stat(path)))
        facts[4] = facts[4] + 4711 if path == whose else facts[4]
        return real(facts)

    monkeypatch.setattr(type(folder), "stat", stat)

    assert "belongs to another user" in intrusion_of(folder)
