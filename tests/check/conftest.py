"""Tests whose patients crash need a worker, which a process cannot fork after deep reentrancy.

PyTorch's engine starts threads for backwards nested some sixty deep, which other tests do; a fork
then has no autograd, and the rules would run in the test process, which a patient may kill. Where
that is so, such a test is run again in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.check.isolate import _refusal

CRASHING = ("test_isolate.py", "test_matrix.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that needs a worker elsewhere, where no worker can be had here."""
    if pyfuncitem.path.name not in CRASHING or can_fork():
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, pyfuncitem.nodeid], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    return True


def can_fork():
    """Whether a forked process has autograd."""
    child = os.fork()
    if child == 0:
        os._exit(1 if _refusal() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
