"""What the system counts of a process, and what holds it back."""

import os
import signal
import subprocess
import sys
import time

import pytest

from pullback.candidates.system import busiest, computed, held_back

BUSY = "sum(range(3_000_000))"
THREAD = f"import threading; t = threading.Thread(target=lambda: {BUSY}); t.start(); t.join()"


@pytest.fixture
def process():
    """A process that runs a line of Python for each line that it gets."""
    loop = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print(flush=True)"
    command = [sys.executable, "-c", loop]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        one.stdin.write("pass\n")
        one.stdin.flush()
        one.stdout.readline()
        yield one
        one.kill()


def spent(process, line):
    """What the busiest thread computes in a line."""
    before = computed(process.pid)
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    process.stdout.readline()
    return busiest(before, computed(process.pid))


def test_sleep_is_not_counted(process):
    assert spent(process, "import time; time.sleep(0.2)") < 0.1


@pytest.mark.parametrize(
    "line",
    [
        BUSY,
        f"{THREAD}; {THREAD}",
        f"import subprocess; subprocess.run([sys.executable, '-c', '{BUSY}'])",
    ],
    ids=["own", "threads that are gone", "a child that is gone"],
)
def test_work_counts_wherever_it_is_done(process, line):
    assert spent(process, line) > 0.01


def test_a_stopped_process_is_held_back(process):
    usual = held_back(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    latest = time.monotonic() + 10
    while held_back(process.pid) == usual and time.monotonic() < latest:
        time.sleep(0.01)

    assert held_back(process.pid) != usual


def test_a_process_that_is_gone_is_none():
    assert held_back(2**22 + 1) is None
    assert busiest(computed(2**22 + 1), {}) is None
