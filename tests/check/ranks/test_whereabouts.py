"""Where a rank stands: its user's code, or what compiles for it."""

import os
import subprocess
import threading
import time

import pytest
import torch

from pullback.check.ranks import whereabouts as module
from pullback.check.ranks.whereabouts import AskedRank, RankStack, answer_from, stack_at
from pullback.check.target.registration import near

TORCH = os.path.dirname(torch.__file__)
SITE = os.path.dirname(TORCH)
MINE = os.path.abspath("mine.py")
WORKER = "pullback.check.ranks.worker"


class Code:
    def __init__(self, path, name):
        self.co_filename, self.co_name = path, name


class Frame:
    """A frame of a stack that never ran."""

    def __init__(self, path, line, back, name="f", module="of_somebody"):
        self.f_code, self.f_lineno, self.f_back = Code(path, name), line, back
        self.f_globals = {"__name__": module}


def stack(*lines):
    """The deepest frame of a stack, given from there upwards, within the life of a rank."""
    frame = Frame(os.path.abspath("train.py"), 3, None)
    frame = Frame("worker.py", 120, frame, module=WORKER)
    for path, line in reversed(lines):
        frame = Frame(path, line, frame)
    return frame


FORWARD = (MINE, 12)
STACKS = {
    "own line": ([FORWARD], "mine.py:12", True),
    "what it calls in PyTorch": ([(f"{TORCH}/nn/functional.py", 5), FORWARD], "mine.py:12", True),
    "a compiler": (
        [(f"{TORCH}/_inductor/scheduler.py", 9), (f"{TORCH}/_dynamo/eval_frame.py", 8), FORWARD],
        "mine.py:12",
        False,
    ),
    "own code that is traced": ([FORWARD, (f"{TORCH}/fx/a.py", 1), FORWARD], "mine.py:12", False),
    "an extension that is built": (
        [(subprocess.__file__, 7), (f"{TORCH}/utils/cpp_extension.py", 2), FORWARD],
        "mine.py:12",
        False,
    ),
    "a library of PyTorch's": ([(f"{SITE}/triton/compiler.py", 9), FORWARD], "mine.py:12", False),
    "another package": (
        [(f"{SITE}/fastjit/run.py", 4), FORWARD],
        f"{near(f'{SITE}/fastjit/run.py')}:4",
        False,
    ),
    "the check itself": ([(f"{TORCH}/_tensor.py", 3)], "", False),
}


@pytest.mark.parametrize("name", STACKS)
def test_stack_tells_what_works(name):
    lines, place, is_own = STACKS[name]

    found = stack_at(stack(*lines))

    assert (found.place, found.is_own) == (place, is_own)


def test_line_of_a_loop_is_that_above_what_changes():
    """A loop calls one function in its condition and another in its body."""
    forward = (MINE, "forward", 12)
    asks = RankStack((forward, (MINE, "loop", 30), (MINE, "is_over", 3)), is_own=True)
    steps = RankStack((forward, (MINE, "loop", 31), (MINE, "step", 9)), is_own=True)

    assert asks.common(steps) == RankStack((forward, (MINE, "loop", 31)), is_own=True)
    assert asks.common(asks) == asks


def answer(asked):
    """What is told within some seconds."""
    latest = time.monotonic() + 30
    while (told := asked.told()) is None:
        assert time.monotonic() < latest
        time.sleep(0.01)
    return told


def test_rank_answers_while_it_computes():
    asked = AskedRank()
    answer_from(os.dup(asked.fileno()))
    heard = []

    def listen():
        asked.ask()
        heard.append(answer(asked))

    listener = threading.Thread(target=listen)
    listener.start()
    while not heard:
        sum(range(1000))
    listener.join()
    asked.close()

    assert (__file__, "test_rank_answers_while_it_computes") in [one[:2] for one in heard[0].lines]


def test_answer_to_an_earlier_question_is_none_to_the_last(monkeypatch):
    stands = iter([RankStack(((MINE, "f", line),)) for line in (1, 2)])
    monkeypatch.setattr(module, "_here", lambda: next(stands))
    asked = AskedRank()
    asked.ask()
    asked.ask()
    answer_from(os.dup(asked.fileno()))
    told = answer(asked)
    asked.close()

    assert told.place == "mine.py:2"
