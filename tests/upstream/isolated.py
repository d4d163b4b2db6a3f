"""Work in processes of their own: a crash, a hang or an abort of one op is a failure of it alone.

A server is a Python with torch, the database and pullback loaded, which forks one child for each
piece of work. A child has a limit of processor time, which the system enforces; the server waits a
few times as long by the clock, for a child that waits for nothing. What a child has said until
then counts, and what it was doing is what it died of.
"""

import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CLOCK = 8
"""How many times its processor time a child may take by the clock: machines are busy."""


# ---- the caller ----


def _paths() -> list[str]:
    """What the caller's environment adds to where modules are found."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


class Server:
    """A process that runs pieces of work in children: see `WORK` for what there is."""

    def __init__(self, **environment: str) -> None:
        self._settings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *_paths()]),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "PULLBACK_BACKENDS": "eager,inductor,native",
            **environment,
        }
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.upstream.isolated"],
            cwd=ROOT,
            env=self._settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def rows(self, work: str, *args: Any, seconds: int) -> list[dict[str, Any]]:
        """The rows of a piece of work; the last has the status "died" if the child did.

        A server that somebody ended is started anew.
        """
        for _ in range(2):
            answer = self._asked(json.dumps([work, args, seconds]) + "\n")
            if answer:
                return list(json.loads(answer))
            self._process.wait()
            self._start()
        raise RuntimeError(f"the server ended twice at {work} {args}")

    def _asked(self, question: str) -> str:
        """The line that the server answers, or nothing if it is gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


# ---- the server ----


def serve() -> None:
    """Read pieces of work from the standard input, one a line, and answer each with a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints is not an answer
    warm()
    for line in sys.stdin:
        work, args, seconds = json.loads(line)
        answers.write(json.dumps(_in_child(work, args, seconds)) + "\n")
        answers.flush()


def warm() -> None:
    """Load what every child needs, and capture once: a child then starts where this ended.

    PyTorch for GPUs starts threads at the first backward, after which no child can run another.
    """
    import torch

    import pullback as pb
    from tests.upstream import features

    torch.set_num_threads(1)
    assert features.FEATURES
    if not torch.backends.cuda.is_built():
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        pb.derive(lambda x: x.sin() * x.sum(), x).source()
        pb.combine(lambda x: x.cos() * x.mean(), x, backend="eager").apply(x).sum().backward()
    gc.collect()
    gc.freeze()  # a collection in a child then leaves alone, and does not copy, what is here


def _in_child(work: str, args: list[Any], seconds: int) -> list[dict[str, Any]]:
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as noise:
        child = os.fork()
        if child == 0:
            os.close(reading)
            os.dup2(noise.fileno(), 1)
            os.dup2(noise.fileno(), 2)
            _run_child(work, args, seconds, writing)
        os.close(writing)
        rows = list(_read(reading, child, seconds))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        noise.seek(0)
        said = noise.read().decode(errors="replace").strip().splitlines()
    last = rows[-1] if rows else {}
    if code == 0 and not (last and last["status"] == ""):
        return [row for row in rows if row["status"]]
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    how = f"more than {seconds} s" if code in (-signal.SIGXCPU, -signal.SIGKILL) else how
    died = {
        "op": str(args[0] if args else work),
        "dtype": "",
        "feature": "",
        **last,
        "status": "died",
    }
    died["said"] = f"{how}: {said[-1][:200] if said else 'without a word'}"
    return [*(row for row in rows if row["status"]), died]


def _run_child(work: str, args: list[Any], seconds: int, writing: int) -> None:
    """Run a piece of work, write its rows, and be gone; nothing of the server is left behind."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with os.fdopen(writing, "w") as out:
            for row in WORK[work](*args):
                out.write(json.dumps(row) + "\n")
                out.flush()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _read(reading: int, child: int, seconds: int) -> Iterator[dict[str, Any]]:
    """The rows that a child writes, until it ends, or the clock says that it will not."""
    end = time.monotonic() + CLOCK * seconds
    rest = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(end - time.monotonic(), 0))
        piece = os.read(reading, 2**16) if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
        if not piece:
            break
        *lines, rest = (rest + piece).split(b"\n")
        yield from map(json.loads, lines)
    os.close(reading)


# ---- the work ----


def _op(name: str, dtype: str, limit: int, is_short: bool = False) -> Iterator[dict[str, Any]]:
    from tests.upstream.features import rows_of

    return (asdict(row) for row in rows_of(name, dtype, limit, is_short=is_short))


def _compiled_op(name: str, backend: str, turns: int) -> Iterator[dict[str, Any]]:
    from tests.upstream.compiled import rows_of_compiled_op

    return (asdict(row) for row in rows_of_compiled_op(name, backend, turns))


def _program(seed: int) -> Iterator[dict[str, Any]]:
    from tests.upstream.compiled import rows_of_program

    return (asdict(row) for row in rows_of_program(seed))


def _compiled_program(seed: int, backend: str, turns: int) -> Iterator[dict[str, Any]]:
    from tests.upstream.compiled import rows_of_compiled_program

    return (asdict(row) for row in rows_of_compiled_program(seed, backend, turns))


def _reported(name: str, is_short: bool = False) -> Iterator[dict[str, Any]]:
    from tests.upstream.compiled import rows_of_reported

    return (asdict(row) for row in rows_of_reported(name, is_short=is_short))


def _compiled_reported(name: str, backend: str, turns: int) -> Iterator[dict[str, Any]]:
    from tests.upstream.compiled import rows_of_compiled_reported

    return (asdict(row) for row in rows_of_compiled_reported(name, backend, turns))


def _crash() -> Iterator[dict[str, Any]]:
    """Two features, in the second of which the process is aborted; a test of this file."""
    row = {"op": "crash", "dtype": "", "said": ""}
    yield {**row, "feature": "a", "status": "right"}
    yield {**row, "feature": "b", "status": ""}
    os.abort()


def _hang() -> Iterator[dict[str, Any]]:
    """A feature that never ends; a test of this file."""
    yield {"op": "hang", "dtype": "", "said": "", "feature": "a", "status": ""}
    while True:
        pass


WORK: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "op": _op,
    "compiled op": _compiled_op,
    "program": _program,
    "compiled program": _compiled_program,
    "reported": _reported,
    "compiled reported": _compiled_reported,
    "crash": _crash,
    "hang": _hang,
}

if __name__ == "__main__":
    serve()
