"""A repro tried before it is shown: only one that fails is a repro."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pullback.check.repro.context import Repro, ReproContext
from pullback.function.isolation import keeping_random_state, seeded

if TYPE_CHECKING:
    from pullback.check.target.target import Target


def fails(body: str, context: ReproContext) -> bool:
    """Whether the program fails, by its assertion or as the finding says."""
    return is_failure(executed(body, context)[0], context, Repro(body))


def is_failure(error: Exception | None, context: ReproContext, program: Repro) -> bool:
    """Whether what a program raised is the failure that the finding reports."""
    if error is None or isinstance(error, AssertionError) or program.is_loud:
        return error is not None
    raised = context.about.raised
    return raised is not None and type(error).__name__ == raised.type


def executed(body: str, context: ReproContext) -> tuple[Exception | None, dict[str, Any]]:
    """What the body of a repro raises here, and the names that it made."""
    with seeded():
        return ran(body, context.subject.target, context.call)


def ran(body: str, target: Target, call: str) -> tuple[Exception | None, dict[str, Any]]:
    """What a program raises that has `target` at hand, and the names that it made."""
    head = call.removesuffix(".apply")
    space: dict[str, Any] = {"torch": torch}
    if not head.startswith("torch."):
        space[head] = target.function if target.is_function else target.thing
    try:
        with _kept():
            exec(compile(body, "<repro>", "exec"), space)
    except Exception as error:
        return error, space
    return None, space


@contextmanager
def _kept() -> Iterator[None]:
    """The settings that a repro may change, as they were."""
    is_collecting, is_strict = gc.isenabled(), torch.are_deterministic_algorithms_enabled()
    interval, hook = sys.getswitchinterval(), threading.excepthook
    threading.excepthook = lambda args: None  # what a thread of a repro raises is not printed
    try:
        with keeping_random_state():
            yield
    finally:
        if is_collecting:
            gc.enable()
        torch.use_deterministic_algorithms(is_strict)
        sys.setswitchinterval(interval)
        threading.excepthook = hook
