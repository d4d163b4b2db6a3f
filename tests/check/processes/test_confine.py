"""Workers end with their parent, with all that they started; what they print is bounded."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from pullback.check.processes import confine
from pullback.check.processes.confine import tie
from pullback.check.processes.endings import GARBLED, Died
from pullback.check.processes.fork import Fork
from pullback.check.processes.isolate import answer_of, next_message
from pullback.check.processes.watch import Watch
from pullback.check.processes.wire import MOST, PrintedOutput

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are those of Unix")


def lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid, seconds=20):
    end = time.monotonic() + seconds
    while lives(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not lives(pid)


def spin(outbox):
    sleeper = subprocess.Popen(["sleep", "600"])
    outbox.send((os.getpid(), sleeper.pid))
    while True:
        pass


def next_of(fork):
    return next_message(fork, Watch(fork.pid, 60.0, 60.0))


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGHUP"])
def test_worker_ends_with_its_parent(name):
    read, write = os.pipe()
    parent = os.fork()
    if not parent:
        with contextlib.suppress(BaseException):
            signal.signal(getattr(signal, name), signal.SIG_DFL) if name != "SIGKILL" else None
            fork = Fork(spin, PrintedOutput(0))
            os.write(write, " ".join(map(str, next_of(fork))).encode())
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(60)
        os._exit(1)
    worker, sleeper = map(int, os.read(read, 100).split())
    os.waitpid(parent, 0)
    for end in (read, write):
        os.close(end)

    assert wait_for_end(worker)
    assert wait_for_end(sleeper)


def test_what_a_worker_started_ends_with_it():
    fork = Fork(spin, PrintedOutput(0))
    pid, sleeper = next_of(fork)
    before = lives(pid), lives(sleeper)
    fork.stop()

    assert before == (True, True)
    assert (lives(pid), wait_for_end(sleeper)) == (False, True)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="Linux says who started whom")
@pytest.mark.parametrize("is_orphan", [False, True])
def test_what_left_the_group_ends_with_the_worker(is_orphan):
    sleep = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"

    def start_daemon(outbox):
        command = [sys.executable, "-c", *([start] if is_orphan else []), sleep]
        pipe = subprocess.PIPE
        daemon = subprocess.Popen(command, stdout=pipe, start_new_session=True, text=True)
        outbox.send(int(daemon.stdout.readline()))
        time.sleep(600)

    fork = Fork(start_daemon, PrintedOutput(0))
    daemon = next_of(fork)
    before = lives(daemon)
    fork.stop()

    assert before
    assert wait_for_end(daemon)


def test_end_of_a_worker_is_seen_while_its_children_live():
    def leave(outbox):
        if os.fork() == 0:
            time.sleep(600)  # it has all ends of the pipes
        os._exit(3)

    fork = Fork(leave, PrintedOutput(0))
    start = time.monotonic()

    with pytest.raises(Died, match="it exited with code 3"):
        next_of(fork)
    assert time.monotonic() - start < 20


def test_what_is_printed_goes_to_stderr_up_to_a_limit(capsys):
    def prints(outbox):
        print("by Python")
        os.write(1, b"by C\n")
        os.write(2, b"as an error\n")
        for _ in range(100):
            print("x" * 1000)
        outbox.send(sys.stdin.read())

    fork = Fork(prints, PrintedOutput())
    read = next_of(fork)
    fork.stop()
    out, err = capsys.readouterr()

    assert (read, out) == ("", "")
    assert err.startswith("by Python\nby C\nas an error\nxxx")
    assert err.endswith(f"\n[what the function printed after {MOST} bytes is left out]\n")
    assert len(err) < MOST + 100


def test_garbage_in_the_pipe_is_told():
    def writes(outbox):
        os.write(outbox._end, b"hello, world: no message")
        time.sleep(600)

    fork = Fork(writes, PrintedOutput(0))
    with pytest.raises(Died, match=GARBLED):
        next_of(fork)
    fork.stop()


def test_error_of_a_task_keeps_type_and_text():
    def fails():
        raise LookupError("not here")

    with pytest.raises(Died, match="LookupError: not here"):
        answer_of(fails)


def test_pipes_that_cannot_be_had_leave_none_open(monkeypatch):
    made, real = [], os.pipe

    def pipe():
        if made:
            raise OSError(24, "Too many open files")
        made.append(real())
        return made[-1]

    monkeypatch.setattr(confine.os, "pipe", pipe)
    with pytest.raises(OSError, match="Too many open files"):
        tie()

    for end in made[0]:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
