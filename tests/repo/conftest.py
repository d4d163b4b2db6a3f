"""A fresh Python that sees the package of this tree, installed or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture(scope="session")
def run_python():
    """Run Python with some arguments in a new process; its output is text."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path}

    def run(*arguments, folder=None):
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=settings)

    return run
