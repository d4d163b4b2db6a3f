"""The first that `pullback` and `python -m pullback` load: Ctrl-C while they start is one line.

To load PyTorch takes seconds, and a KeyboardInterrupt in the middle of it is a traceback. Until
a command runs nothing is open that could be lost, so the process ends there and then.

`pullback/__init__.py` imports this module first, since `python -m pullback` loads the
package first. In every other program the import does nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings

INTERRUPTED = 130  # as shells count it


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def is_command(argv: list[str], original: list[str]) -> bool:
    """Whether Python was started with `-m pullback`, and is now about to load it."""
    if argv[:1] != ["-m"]:  # what stands there until the module is found
        return False
    return original[-len(argv)].removeprefix("-m") in ("pullback", "pullback.__main__")


def start() -> None:
    """What comes before PyTorch: it tells every command that NumPy is missing, which none needs."""
    end_at_once()
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")


def end_at_once() -> None:
    """From here on Ctrl-C ends the process, unless it is ignored or somebody else's."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def interrupt() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again: the command cleans up after itself."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the command line."""
    start()
    from _pullback_cli import main as run  # after the line above: it loads click

    run()


if is_command(getattr(sys, "argv", []), sys.orig_argv):
    start()
