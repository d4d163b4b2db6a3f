"""Tasks in several processes come back in order, also where one is lost; shards share them out."""

import os
import signal
import subprocess
import sys
import time

import click
import pytest

from pullback.cli.spread import Lost, Shard, in_processes, share_of


def test_results_are_in_order():
    assert list(in_processes(lambda n: n * n, 7, 3)) == [0, 1, 4, 9, 16, 25, 36]


def test_work_is_done_elsewhere():
    assert os.getpid() not in list(in_processes(lambda n: os.getpid(), 4, 2))


def test_lost_process_costs_its_own_task_only():
    def task(number):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    assert list(in_processes(task, 5, 2)) == [0, Lost("it was ended by SIGKILL"), 2, 3, 4]


def test_task_that_raises_is_lost():
    def task(number):
        raise ValueError(number)

    assert list(in_processes(task, 2, 2)) == [
        Lost("it raised ValueError: 0"),
        Lost("it raised ValueError: 1"),
    ]


def test_every_item_is_in_one_shard():
    shards = [share_of("abcdefg", (part, 3)) for part in (1, 2, 3)]

    assert sorted("".join(map("".join, shards))) == list("abcdefg")
    assert share_of("ab", (3, 3)) == []
    assert share_of("ab", None) == ["a", "b"]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_impossible_shard_is_refused(text):
    with pytest.raises(click.BadParameter, match="such as 1/4"):
        Shard().convert(text, None, None)


def test_shard_is_read():
    assert Shard().convert("2/5", None, None) == (2, 5)


KILLED = """
import os, signal, sys, time
from pullback.cli.spread import in_processes

def task(number):
    print(os.getpid(), flush=True)
    while True:
        time.sleep(1)

for _ in in_processes(task, 2, 2):
    pass
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_a_parent_that_is_killed(how):
    parent = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    workers = [int(parent.stdout.readline()) for _ in range(2)]

    parent.send_signal(how)
    parent.wait(30)

    latest = time.monotonic() + 20
    while any(map(is_running, workers)) and time.monotonic() < latest:
        time.sleep(0.05)
    assert not any(map(is_running, workers))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False
