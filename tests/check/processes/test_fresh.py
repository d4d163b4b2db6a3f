"""Workers that are started afresh, where a fork cannot serve."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from multiprocessing.connection import Pipe

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check import driving
from pullback.check.job import Message
from pullback.check.processes import fresh, isolate
from pullback.check.processes.confine import tie
from pullback.check.processes.wire import PrintedOutput
from pullback.errors import TargetError
from pullback.judge.progress import Progress
from tests.check import functions as f

X = torch.tensor([0.5, -1.25, 2.0])


@pytest.fixture(autouse=True, scope="module")
def stopped():
    """What waits for a job serves the next test, too: to start one takes seconds."""
    yield
    fresh._stop_idle()


@pytest.fixture
def no_fork(monkeypatch):
    monkeypatch.setattr(driving, "why_no_fork", lambda: "this process uses a GPU")


def names(report):
    return [finding.rule.name for finding in report.findings]


def test_class_of_a_function_is_sent_and_checked(no_fork):
    factor = 0.5

    class Local(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return factor * 2 * g * x

    report = pb.check(Local, (X,), select=["gradient"])

    assert names(report) == ["wrong-factor"]
    assert not any(driving.HERE in note for note in report.notes)


def test_worker_serves_the_next_job(no_fork):
    pids = []
    for target in (f.HalfSquare, f.Square):
        pb.check(target, (X,), select=["wrong-factor"])
        pids += [worker.process.pid for worker in fresh._idle]

    assert len(pids) == 2
    assert pids[0] == pids[1]


def test_crash_is_a_finding_and_the_rest_goes_on(no_fork):
    report = pb.check(f.Killed, (X,), select=["wrong-gradient", "unread-saved"])

    assert names(report)[0] == "crash"
    assert len(fresh._idle) <= 1


def test_what_cannot_be_sent_runs_here_and_says_why(no_fork):
    held = threading.Lock()

    class Holding(Function):
        @staticmethod
        def forward(ctx, x):
            with held:
                return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    report = pb.check(Holding, (X,), select=["wrong-factor"])

    assert report.ok
    assert any("cannot be sent to another one: TypeError" in note for note in report.notes)


def test_what_cannot_be_sent_is_an_error_on_a_gpu(no_fork, monkeypatch):
    monkeypatch.setattr(fresh, "is_on_gpu", lambda job: True)
    held = threading.Lock()

    def holding(x):
        with held:
            return x * 2

    with pytest.raises(TargetError) as raised:
        pb.check(holding, (X,), select=["wrong-factor"])

    assert str(raised.value).splitlines()[1:] == [
        "  expected: nothing that belongs to this process: a lock, an open file, a stream",
        "  got:      TypeError: cannot pickle '_thread.lock' object",
        "  fix:      define it in a module and name it 'module:Name'; with isolate=False the rules "
        "run here, and a kernel that strays takes the GPU from this process",
    ]


def test_frozen_fork_is_no_finding(monkeypatch):
    """A fork in which threads of this process are missing does nothing: a fresh worker goes on."""

    def frozen(job, first, seconds):
        raise isolate.Died("it did not end, and did nothing", is_hang=True, is_idle=True)
        yield

    monkeypatch.setattr(driving, "messages", frozen)
    report = pb.check(f.HalfSquare, (X,), select=["wrong-factor"])

    assert names(report) == ["wrong-factor"]


def test_worker_ends_with_who_started_it():
    program = textwrap.dedent(
        """
        import os, signal, torch, pullback as pb
        from pullback.check.processes import fresh
        from pullback.check import driving
        from tests.check import functions as f
        driving.why_no_fork = lambda: "no"
        pb.check(f.Square, (torch.ones(3),), select=["wrong-factor"])
        print(fresh._idle[0].process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(done.stdout.split()[-1])

    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while _lives(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _lives(pid)


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "message", [Message("found", 1), isolate.LastMessage("an error of ours", True)]
)
def test_lost_gpu_is_nobodys_error(message, monkeypatch):
    sent = []

    class Outbox:
        send = sent.append

    def lost():
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(os, "_exit", lambda code: sys.exit(code))
    with pytest.raises(SystemExit):
        fresh._tell(Outbox, message)

    assert [m.is_ours for m in sent] == [False]
    assert "the GPU was lost" in sent[0].reason


def test_worker_of_another_process_is_left_alone(monkeypatch):
    """A fork has the list of its parent's workers, which are not its own to use or to end."""
    ties = tie()
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    ours, theirs = Pipe()
    inbox = ties.inbox(process.pid, PrintedOutput())
    worker = fresh.Worker(process, ours, ties, inbox, Progress(), owner=os.getpid() + 1)
    monkeypatch.setattr(fresh, "_idle", [worker, worker])

    assert fresh._waiting() is None
    fresh._idle.append(worker)
    fresh._stop_idle()
    assert _lives(process.pid)

    worker.owner = os.getpid()
    worker.stop()
    theirs.close()
    assert not _lives(process.pid)


class AssertsWhenLong(Function):
    """Right for few numbers; for many, its backward ends all use of the GPU by its process."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.numel() > 16:
            g = g.flatten()[torch.tensor([x.numel() + 1], device=x.device)]
        return g * x.cos()


@pytest.mark.needs_cuda
def test_lost_gpu_is_a_finding_and_not_the_callers():
    x = torch.randn(3, 4, device="cuda")
    report = pb.check(AssertsWhenLong, (x,))
    crashes = [finding for finding in report.findings if finding.rule.name == "crash"]

    assert "the GPU was lost to it" in str(crashes[0].got)
    assert not any(driving.HERE in note for note in report.notes)
    assert torch.equal((x + 1).cpu(), x.cpu() + 1)
    assert len(report.rules) - len([s for s in report.skips if s.is_refusal]) > 80


@pytest.mark.needs_cuda
def test_sound_function_on_a_gpu_has_no_finding():
    x = torch.randn(3, 4, device="cuda")
    report = pb.check(f.Square, (x,))

    assert report.findings == ()
    assert not any(driving.HERE in note for note in report.notes)
