"""Which call and which kernel a worker was at when it was lost: each is named before it is made.

A GPU reports an error long after the launch that made it, and then nothing on it can be used any
more. So the step is taken once more in a new worker, which waits for each launch to end
(`CUDA_LAUNCH_BLOCKING=1`) and says what comes next: what was said last is what did it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from typing import Any

from pullback.capture.places import frames_above
from pullback.check.job import Job, Message, Tell
from pullback.check.target.registration import near
from pullback.judge.example import describe_value

BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}


def narrated(job: Job, tell: Tell) -> Job:
    """The job, with each call and each launch of a Triton kernel named before it is made."""
    names = job.names

    def call(*args: Any) -> Any:
        pairs = zip(names, args, strict=False)
        words = ", ".join(f"{name}: {describe_value(arg)}" for name, arg in pairs)
        tell(Message("calling", where=words))
        return job.target.call(*args)

    _tell_launches(lambda kernel: tell(Message("launching", where=kernel)))
    return replace(job, target=replace(job.target, call=call))


def _tell_launches(tell: Callable[[str], Any]) -> None:
    if find_spec("triton") is None:
        return
    from triton.runtime import jit  # optional, and slow to import

    run = jit.JITFunction.run

    @wraps(run)
    def named(kernel: Any, *args: Any, **options: Any) -> Any:
        tell(_words(kernel))
        return run(kernel, *args, **options)

    jit.JITFunction.run = named


def _words(kernel: Any) -> str:
    """A kernel by name and place, and the line that launches it."""
    function = kernel.fn
    place = function.__code__.co_filename, function.__code__.co_firstlineno
    words = f"`{function.__name__}` ({near(place[0])}:{place[1]})"
    for frame in frames_above(sys._getframe(2)):
        return f"{words}, launched at {near(frame.f_code.co_filename)}:{frame.f_lineno}"
    return words
