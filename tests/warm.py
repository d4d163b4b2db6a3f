"""A Python that has loaded PyTorch once, and forks for each program that it is given.

What a fresh Python spends on imports, more than a second, is spent once. Each program still has a
process, a folder, streams, `sys.argv` and `sys.path` of its own, and ends as Python ends.

Each line of the standard input is a program: `argv` as after `python`, `folder`, `settings` of the
environment, and the files `out` and `err`; the answer is its exit code.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading

# What most programs load, beside PyTorch.
LOADED = (
    "pullback",
    "pullback.check.runner",
    "pullback.derive",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.fx.experimental.proxy_tensor",
    "sympy",
)


def forked() -> list[str] | None:
    """Answer requests for ever; in the process of a request its `argv`, at the end nothing."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            become(request)
            return list(request["argv"])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)
    return None


def become(request: dict) -> None:
    """Let this process have the folder, environment and streams of a request."""
    os.chdir(request["folder"])
    sys.dont_write_bytecode = True  # a file may be written twice within a second
    os.environ.update(request["settings"])
    for number, path in enumerate((os.devnull, request["out"], request["err"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)


def run(argv: list[str]) -> None:
    """Run a file, `-m` a module or `-c` a text, as Python does."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        sys.path[0] = ""
        exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = argv
        sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")


def end(code: object) -> None:
    """End as Python does, but for taking apart what was loaded, which takes a second."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if isinstance(code, str):
        os.write(2, f"{code}\n".encode())
    os._exit(1 if isinstance(code, str) else int(code or 0))


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is loaded is not looked at again, nor copied for that
    given = forked()
    if given:
        try:
            run(given)
        except SystemExit as exit:
            end(exit.code)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            end(1)
        end(0)
