"""What the system says of processes."""

import os
import subprocess
import time

from pullback.check.processes import confine, system


def test_work_of_what_a_child_has_started_is_no_rest():
    """A build system waits for the compilers that it has started."""
    busy = ["sh", "-c", "sh -c 'while :; do :; done'; true"]
    with subprocess.Popen(busy) as child:
        try:
            latest = time.monotonic() + 60
            while system.work_below(os.getpid()) < 0.1 and time.monotonic() < latest:
                time.sleep(0.02)
            assert system.work_below(os.getpid()) >= 0.1
        finally:
            confine.end_below(child.pid)
