"""Which self-test an emitted module gets: inputs that suit the program, gradients that can be told.

The inputs are chosen by `reference` and by the program, never by the Function under test: a wrong
backward is to fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.names import identifier
from pullback.capture.patch import watching
from pullback.capture.trees import tensors_in
from pullback.emit.subject import Subject
from pullback.emit.trial import Trial
from pullback.function.unwritten import run_plainly

Write = Callable[[Trial], str]

SURROGATE = "they are declared to be surrogates"
ABSENT = "backward gives none"
CUT = "the program cuts them off by `no_grad` or `detach`"


def chosen(subject: Subject, call: str, held: frozenset[str], write: Write) -> Trial:
    """The self-test of a subject; `write` gives the module with a self-test.

    `held` are the inputs of the capture that the module has by itself.

    Random inputs in double precision come first, then the examples' own, then both in their own
    dtype: the first with which autograd's gradients of `reference` are those of finite differences.
    Where there is none, autograd does not see through `reference`, and the first that is passed.
    """
    first = _first(subject, call, held)
    few = any(like.values is not None for like in first.likes)
    trials = [
        replace(first, literal=literal, is_double=is_double)
        for is_double in (True, False)
        for literal in ((False, True) if few else (False,))
    ]
    for trial in trials:
        space = _loaded(write(trial))
        if space is not None and _suits(trial, space):
            return _without_cut(subject, trial, space)
    for trial in (replace(trial, is_compared=False) for trial in trials):
        space = _loaded(write(trial))
        if space is not None and _is_passed(space):
            return trial
    return trials[0]


def _first(subject: Subject, call: str, held: frozenset[str]) -> Trial:
    """The first self-test: of every gradient that there is and that forward implies."""
    captured, surrogates = subject.captured, subject.surrogates
    gradients = iter(captured.joint.gradients)
    names, needs, likes, silent = [], [], [], []
    for one, like in zip(captured.inputs, subject.likes, strict=True):
        is_absent = one.needs and next(gradients) is None
        why = ABSENT if is_absent else SURROGATE if one.name in surrogates else ""
        if one.name not in held:
            names.append(identifier(one.name))
            needs.append(one.needs and not why)
            likes.append(like)
            silent += [(one.name, why)] if one.needs and why else []
    return Trial(call, tuple(names), tuple(needs), tuple(likes), silent=tuple(silent))


# ---- running it here ----


def _loaded(text: str) -> dict[str, Any] | None:
    """The names of a module, or None if it does not load."""
    space: dict[str, Any] = {"__name__": "emitted"}
    try:
        exec(compile(text, "<emitted>", "exec", dont_inherit=True), space)
    except Exception:  # whatever it is: it does not do
        return None
    return space


@contextmanager
def _aside() -> Iterator[None]:
    """Gradients are recorded, random states stay as they are, and nobody is warned."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a dtype that is not double
            yield


def _is_passed(space: dict[str, Any]) -> bool:
    """Whether a module passes its self-test."""
    with _aside():
        try:
            space["self_test"]()
        except Exception:
            return False
    return True


def _suits(trial: Trial, space: dict[str, Any]) -> bool:
    """Whether `reference` is finite and smooth at the inputs of a module, as autograd sees it."""
    with _aside():
        try:
            given = space["inputs"]()
            outputs = space["called"](space["reference"], given)
            if trial.is_differentiated:
                _gradcheck(lambda *given: space["called"](space["reference"], given), given, trial)
        except Exception:
            return False
    return all(bool(y.isfinite().all()) for y in outputs)


def _gradcheck(function: Callable[..., Any], given: Sequence[Any], trial: Trial) -> None:
    torch.autograd.gradcheck(function, tuple(given), **trial.options)


# ---- gradients that are cut off ----


def _without_cut(subject: Subject, trial: Trial, space: dict[str, Any]) -> Trial:
    """The self-test without the gradients that a program cuts off on purpose.

    These are found by running the program with the forwards of its Functions as plain ops: if
    autograd's gradient is not that of finite differences even there, nobody's backward is wrong.
    """
    if subject.function is not None or not trial.is_differentiated or _is_passed(space):
        return trial
    cut = [
        place
        for place, need in enumerate(trial.needs)
        if need and _is_cut(subject, trial, space, place)
    ]
    return replace(
        trial,
        needs=tuple(need and place not in cut for place, need in enumerate(trial.needs)),
        silent=(*trial.silent, *((trial.names[place], CUT) for place in cut)),
    )


def _is_cut(subject: Subject, trial: Trial, space: dict[str, Any], place: int) -> bool:
    captured = subject.captured
    count = sum(one.kind == "argument" for one in captured.inputs)
    if place >= count:
        return False  # a tensor from around the program, which cannot be moved here

    def plain(moved: Tensor) -> Any:
        row = [moved if i == place else x for i, x in enumerate(given)]
        torch.manual_seed(0)
        with watching(lambda cls, call, args, kwargs: run_plainly(cls, args, kwargs)):
            return tuple(tensors_in(subject.run(row)))

    with _aside():
        made = list(space["inputs"]()[:count])
        own = [_leaf(x, like.dtype) for x, like in zip(made, trial.likes, strict=False)]
        for given, how in ((made, trial), (own, replace(trial, is_double=False))):
            try:
                plain(given[place])
            except Exception:  # a tensor from around it is in another dtype
                continue
            try:
                _gradcheck(plain, (given[place],), how)
            except Exception:
                return True
            return False
    return False  # it does not run by plain ops: nothing is known


def _leaf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in another dtype, still a leaf.

    All inputs require grad: an output that none of them reaches is not looked at by `gradcheck`.
    """
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)
