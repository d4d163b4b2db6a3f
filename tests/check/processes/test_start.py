"""A Python that is started afresh finds what this one finds, and nothing in the folder it is in."""

import os
import subprocess
import sys

from pullback.check.processes.start import python_calling, started


def test_function_is_called_with_its_arguments():
    done = subprocess.run(
        python_calling("builtins.print", 3, "a b", b"c"), capture_output=True, text=True, check=True
    )

    assert done.stdout == "3 a b b'c'\n"


def test_modules_are_found_where_they_are_here(tmp_path, monkeypatch):
    (tmp_path / "there.py").write_text("def tell():\n    print('found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = subprocess.run(
        python_calling("there.tell"), capture_output=True, text=True, check=True, cwd="/"
    )

    assert done.stdout == "found\n"


def test_folder_that_it_starts_in_is_not_searched(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("def tell():\n    print('found')\n")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    done = subprocess.run(
        python_calling("planted.tell"), capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert "No module named 'planted'" in done.stderr


def test_descriptors_are_kept_and_it_leads_a_session():
    read, write = os.pipe()
    call = python_calling("os.write", write, b"here")
    process = started(call, [write], subprocess.DEVNULL, os.environ)
    session = os.getsid(process.pid)
    os.close(write)

    assert process.wait(60) == 0
    assert os.read(read, 10) == b"here"
    assert session == process.pid
    os.close(read)
