"""What every test gets: marks that skip what cannot run here, a fresh torch, gold files, Python."""

import functools
import gc
import importlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# What is composed runs eagerly unless a test asks for more: compiling takes seconds.
os.environ.setdefault("PULLBACK_BACKENDS", "eager")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-gold`."""
    parser.addoption(
        "--update-gold",
        action="store_true",
        help="write what the tests got into their gold files, for review in the diff",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard, which a shell takes from what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# ---- marks ----


@functools.cache
def has_compiler() -> bool:
    """Whether inductor can build C++ here: a compiler where it looks, and Python's headers."""
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return bool(shutil.which(os.environ.get("CXX", "g++"))) and headers.exists()


@functools.cache
def has_cuda() -> bool:
    """Whether torch sees a GPU."""
    import torch  # here, so that tests about the repository do not wait for it

    return torch.cuda.is_available()


def has_triton() -> bool:
    """Whether Triton is installed here, or beside: `make test-triton`."""
    return importlib.util.find_spec("triton") is not None


NEEDS = {
    "needs_compiler": (has_compiler, "needs a C++ compiler (g++ or CXX) and Python's headers"),
    "needs_cuda": (has_cuda, "needs a GPU"),
    "needs_triton": (has_triton, "needs Triton (its interpreter)"),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose mark asks for what this machine does not have."""
    for mark, (is_met, reason) in NEEDS.items():
        if item.get_closest_marker(mark) and not is_met():
            pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test marked `quick(n)`, all cases but `n` of them, spread evenly, are slow ones."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        (count,) = found[0].get_closest_marker("quick").args
        kept = {place * len(found) // count for place in range(count)}
        for place, item in enumerate(found):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


# ---- a fresh torch ----


LOADING = ("torch", "numpy", "pullback", "tests", "examples", "benchmarks")
NEEDS_TORCH = re.compile(rf"^(?:import|from) (?:{'|'.join(LOADING)})\b", re.MULTILINE)


def seed_all() -> None:
    """Let the generators of Python, and of PyTorch and NumPy where they are loaded, begin anew."""
    random.seed(0)
    if "torch" in sys.modules:  # `manual_seed` keeps a stack trace for each device that is absent
        torch = sys.modules["torch"]
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a test module draws while it is imported is the same each time.

    A generator that was just imported has a seed by chance, so it is imported before the module.
    """
    if not isinstance(collector, pytest.Module):
        return
    if NEEDS_TORCH.search(collector.path.read_text("utf-8")):
        for name in ("torch", "numpy"):
            importlib.import_module(name)
    seed_all()


@pytest.fixture(autouse=True, scope="session")
def no_bytecode() -> None:
    """A module that a test writes twice is loaded as it is: bytecode goes by whole seconds."""
    sys.dont_write_bytecode = True


@pytest.fixture(autouse=True, scope="module")
def light_heap() -> None:
    """The collector, which tests often ask, looks only at what came after the module began."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """Each test starts from one seed, and leaves nothing compiled behind."""
    seed_all()
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


# ---- gold files ----


@pytest.fixture
def gold(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Require a text to equal the file `gold/<name>` beside the test.

    `gold("python/swish.py", text)` fails when they differ, and saves the text as
    `gold/python/swish.py.got`. `--update-gold` writes the gold file instead.
    """
    folder = request.path.parent / "gold"

    def compare(name: str, text: str) -> None:
        path = folder / name
        got = path.with_name(path.name + ".got")
        if request.config.getoption("--update-gold"):
            write(path, text)
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        if text == expected:
            got.unlink(missing_ok=True)
            return
        write(got, text)
        what = "has no gold file yet" if expected is None else "differs from its gold file"
        assert text == expected, (
            f"`{name}` {what}: look at {os.path.relpath(got)}, then run pytest --update-gold"
        )

    return compare


def write(path: Path, text: str) -> None:
    """Write `text` with Unix line ends, in a folder made for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


# ---- a fresh Python ----

SOURCE = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(scope="session")
def run_python() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a new Python that sees the package of this tree, installed or not; output is text."""
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path}

    def run(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=settings)

    return run


@pytest.fixture(scope="session")
def warm_python(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., "subprocess.CompletedProcess[str]"]]:
    """Like `run_python`, in a process forked from a Python that has PyTorch loaded: `warm.py`."""
    folder = tmp_path_factory.mktemp("warm")
    out, err = folder / "out", folder / "err"
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
    settings = {**os.environ, "PYTHONPATH": path}
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
    )
    assert server.stdin
    assert server.stdout

    def run(
        *arguments: str, folder: Path | None = None, **settings: str
    ) -> "subprocess.CompletedProcess[str]":
        request = {"argv": arguments, "folder": str(folder or Path.cwd()), "settings": settings}
        print(
            json.dumps({**request, "out": str(out), "err": str(err)}), file=server.stdin, flush=True
        )
        code = int(server.stdout.readline())
        texts = (file.read_text("utf-8") for file in (out, err))
        return subprocess.CompletedProcess(arguments, code, *texts)

    yield run
    server.stdin.close()
    server.wait()


# ---- tests that need a worker ----

# PyTorch's engine starts threads for backwards nested some sixty deep; a process forked after that
# has no autograd, and the checker then runs its rules in the process of the test, which a target
# may kill, and which the report says. Such a test is run in a process of its own instead.
NEED_A_FORK = (
    "check/processes/test_crash_diagnosis.py",
    "check/watching/test_dispatch.py",
    "check/processes/test_isolate.py",
    "check/test_matrix.py",
    "check/test_native.py",
    "check/test_nonsense.py",
    "check/test_proving.py",
    "check/subject/test_reasons.py",
    "check/test_retold.py",
    "check/test_runner.py",
    "cli/test_check.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that needs a worker elsewhere, where no worker can be had here."""
    if not pyfuncitem.path.as_posix().endswith(NEED_A_FORK) or can_fork():
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [*command, pyfuncitem.nodeid], cwd=root, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout
    return True


def can_fork() -> bool:
    """Whether a forked process has autograd."""
    from pullback.check.processes.isolate import why_no_autograd

    child = os.fork()
    if child == 0:
        os._exit(1 if why_no_autograd() else 0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
