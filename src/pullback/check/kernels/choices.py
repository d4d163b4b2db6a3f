"""Kernels launched in another way than usual: another entry of their tuning, other warps.

What a kernel computes must not depend on either. Triton's own objects are asked for each launch, so
they are patched for the time of one call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch


class Choices:
    """What was launched inside `seen`: entries that the tuning has, and numbers of warps."""

    def __init__(self) -> None:
        self.entries = 0
        self.warps: set[int] = set()


@contextmanager
def seen() -> Iterator[Choices]:
    """Look at what is launched inside."""
    found = Choices()
    if find_spec("triton") is None:
        yield found
        return
    from triton.runtime import autotuner, jit  # optional, and slow to import

    def tuned(kernel: Any, *args: Any, **options: Any) -> Any:
        found.entries = max(found.entries, len(kernel.configs))
        return tune(kernel, *args, **options)

    def launched(kernel: Any, *args: Any, **options: Any) -> Any:
        found.warps.add(int(options.get("num_warps", 4)))
        return launch(kernel, *args, **options)

    tune, launch = autotuner.Autotuner.run, jit.JITFunction.run
    autotuner.Autotuner.run, jit.JITFunction.run = tuned, launched
    try:
        yield found
    finally:
        autotuner.Autotuner.run, jit.JITFunction.run = tune, launch


@contextmanager
def tuner_entry(number: int) -> Iterator[None]:
    """Inside, tuned kernels run with entry `number` of those that suit the arguments."""
    from triton.runtime import autotuner

    def chosen(kernel: Any, *args: Any, **options: Any) -> Any:
        kernel.nargs = dict(zip(kernel.arg_names, args, strict=False))
        suited = kernel.prune_configs(options)
        config = suited[number % len(suited)]
        given = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**kernel.nargs, **options, **given})
        kernel.nargs = None
        return kernel.fn.run(*args, **options, **given)

    old = autotuner.Autotuner.run
    autotuner.Autotuner.run = chosen
    try:
        yield
    finally:
        autotuner.Autotuner.run = old


@contextmanager
def with_warps(count: int) -> Iterator[None]:
    """Inside, kernels are launched with so many warps."""
    from triton.runtime import jit

    def chosen(kernel: Any, *args: Any, **options: Any) -> Any:
        return old(kernel, *args, **{**options, "num_warps": count})

    old = jit.JITFunction.run
    jit.JITFunction.run = chosen
    try:
        yield
    finally:
        jit.JITFunction.run = old


@contextmanager
def on_side_stream(cycles: int) -> Iterator[Any]:
    """Inside, work goes to another stream; call what is given to keep that busy for a while."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield lambda: torch.cuda._sleep(cycles)
    side.synchronize()
