"""Which self-test an emitted module gets: inputs and gradients that suit the program.

The inputs are chosen by `reference`, the forward in plain ops, and by the program, never by the
Function under test: a wrong backward is to fail. What is expected of them is recorded from the
program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.capture.trees import tensor_leaves
from pullback.derive.dtypes import casts_of
from pullback.derive.source import loaded
from pullback.emit.python.recorded import recorded_results
from pullback.emit.python.self_test import SelfTest
from pullback.emit.subject import EmitSubject
from pullback.function.isolation import seed_torch
from pullback.function.unwritten import run_plainly
from pullback.graph.cost import is_random
from pullback.graph.parts import calls
from pullback.judge.comparison import aside

Write = Callable[[SelfTest], str]

SURROGATE = "they are declared to be surrogates"
ABSENT = "backward gives none"
CUT = "the program cuts them off by `no_grad` or `detach`"


def chosen_self_test(
    subject: EmitSubject, call: str, held: frozenset[str], write: Write, reference: str
) -> SelfTest:
    """The self-test of a subject; `write` gives the module with a self-test.

    `held` are the inputs of the capture that the module has by itself, `reference` is the text of
    its forward in plain ops.

    Spread inputs in double precision come first, then the examples' own, then both in their own
    dtype: the first with which autograd's gradients of `reference` are those of finite differences.
    A program may read its inputs' dtype, or cast to single precision, through which differences do
    not see: double precision is for those that are as recorded in it, and make no such cast.
    Where there is none, autograd does not see through `reference`, and it is the first that is
    passed. Where none is passed either, a program of PyTorch's ops rounds or has kinks there:
    differences say nothing about its gradients, which are compared with the recorded ones alone. A
    hand-written backward fails, until what it gives on purpose is declared.
    """
    first = _first(subject, call, held)
    few = any(like.values is not None for like in first.specs)
    tests = [
        replace(first, literal=literal, is_double=is_double)
        for is_double in (True, False)
        for literal in ((False, True) if few else (False,))
    ]
    known = list[SelfTest]()
    for test in (_with_record(subject, one) for one in tests):
        if test is None:
            continue
        if _is_widened(test) and (_is_narrowing(subject) or not _is_as_recorded(test, write)):
            continue
        known.append(test)
        if _suits(test, _space(test, reference)):
            return _without_cut(subject, test, loaded(write(test)))
    for test in known:
        if _is_passed(loaded(write(test))):
            return test
    chosen = known[0] if known else tests[0]
    return replace(chosen, by_differences=subject.function is not None)


def _with_record(subject: EmitSubject, test: SelfTest) -> SelfTest | None:
    """A self-test with what the program gives for its inputs; None if it does not run on them."""
    if any(map(is_random, calls(subject.captured.joint.graph))):
        return test
    space = loaded(f"import torch\n\n\n{test.inputs()}")
    with aside():
        try:
            return replace(test, recorded=recorded_results(subject, test, space["inputs"]()))
        except Exception:  # any: the program may refuse other inputs in any way
            return None


def _first(subject: EmitSubject, call: str, held: frozenset[str]) -> SelfTest:
    """The first self-test: of every gradient that exists and that forward implies."""
    captured, surrogates = subject.captured, subject.surrogates
    gradients = iter(captured.joint.gradients)
    names, needs, specs, silent = [], [], [], []
    texts = [subject.parts.names[node] for node in subject.parts.joint.inputs]
    for one, text, like in zip(captured.inputs, texts, subject.specs, strict=True):
        is_absent = one.needs and next(gradients) is None
        why = ABSENT if is_absent else SURROGATE if one.name in surrogates else ""
        if one.name not in held:
            names.append(text)
            needs.append(one.needs and not why)
            specs.append(like)
            silent += [(one.name, why)] if one.needs and why else []
    held_texts = [
        text for one, text in zip(captured.inputs, texts, strict=True) if one.tensor is not None
    ]
    return SelfTest(
        call,
        tuple(names),
        tuple(needs),
        tuple(specs),
        program=captured.name.removesuffix(".apply"),
        fixed=frozenset(held_texts),
        silent=tuple(silent),
        has_constant_outputs=any(
            one.kind == "tensor" and not one.differentiable for one in captured.outputs
        ),
    )


# ---- running it here ----


def _space(test: SelfTest, reference: str) -> dict[str, Any]:
    """The inputs of a self-test and `reference`."""
    return loaded("\n\n\n".join(["import torch", reference, test.text("Function", "it.py")]))


def fault_of(space: dict[str, Any]) -> Exception | None:
    """What the self-test of a module raises, if anything."""
    with aside():
        try:
            space["self_test"]()
        except Exception as error:
            return error
    return None


def _is_passed(space: dict[str, Any]) -> bool:
    return fault_of(space) is None


def _is_widened(test: SelfTest) -> bool:
    """Whether the inputs of a test are in another dtype than the examples."""
    return any(test.dtype_of(like.dtype) != like.dtype for like in test.specs)


def _is_narrowing(subject: EmitSubject) -> bool:
    """Whether the program rounds numbers of double precision on its way."""
    comparison = subject.comparison
    row = comparison.rows[0].widened(subject.captured)
    casts = casts_of(comparison, comparison.of_arguments(comparison.program), row)
    return any(torch.finfo(made).eps > torch.finfo(given).eps for given, made in casts)


def _is_as_recorded(test: SelfTest, write: Write) -> bool:
    """Whether a module gives what the program gave for the inputs of a test."""
    return _is_passed(loaded(write(replace(test, by_differences=False))))


def _suits(test: SelfTest, space: dict[str, Any]) -> bool:
    """Whether `reference` is finite and smooth at the inputs of a module, as autograd sees it."""
    with aside():
        try:
            given = space["inputs"]()
            outputs = space["called"](space["reference"], given)
            if test.is_differentiated:
                _gradcheck(lambda *given: space["called"](space["reference"], given), given, test)
        except Exception:  # autograd refuses it here: not these inputs
            return False
    return all(bool(y.isfinite().all()) for y in outputs)


def _gradcheck(function: Callable[..., Any], given: Sequence[Any], test: SelfTest) -> None:
    def differentiable(*given: Any) -> tuple[Tensor, ...]:
        return tuple(y for y in tensor_leaves(function(*given)) if y.requires_grad)

    torch.autograd.gradcheck(differentiable, tuple(given), **test.options)


# ---- gradients that are cut off ----


def _without_cut(subject: EmitSubject, test: SelfTest, space: dict[str, Any]) -> SelfTest:
    """The self-test without the gradients that a program cuts off on purpose.

    These are found by running the program with the forwards of its Functions as plain ops: if
    autograd's gradient is not that of finite differences even there, no backward is wrong.
    """
    if subject.function is not None or not test.is_differentiated or _is_passed(space):
        return test
    cut = [
        place
        for place, need in enumerate(test.needs)
        if need and _is_cut(subject, test, space, place)
    ]
    left_out = {f"the gradient of `{test.names[place]}`" for place in cut}
    known = test.recorded
    return replace(
        test,
        needs=tuple(need and place not in cut for place, need in enumerate(test.needs)),
        recorded=None if known is None else {k: v for k, v in known.items() if k not in left_out},
        silent=(*test.silent, *((test.names[place], CUT) for place in cut)),
    )


def _is_cut(subject: EmitSubject, test: SelfTest, space: dict[str, Any], place: int) -> bool:
    captured = subject.captured
    count = captured.argument_count
    if place >= count:
        return False  # a tensor from outside the program, which cannot be moved here

    def plain(moved: Tensor) -> Any:
        row = [moved if i == place else x for i, x in enumerate(given)]
        seed_torch(0)
        with watching(lambda cls, call, args, kwargs: run_plainly(cls, args, kwargs)):
            return tuple(tensor_leaves(subject.call(*captured.fill(row))))

    with aside():
        made = list(space["inputs"]()[:count])
        own = [_leaf(x, like.dtype) for x, like in zip(made, test.specs, strict=False)]
        for given, how in ((made, test), (own, replace(test, is_double=False))):
            try:
                plain(given[place])
            except Exception:  # a tensor from outside it is in another dtype
                continue
            try:
                _gradcheck(plain, (given[place],), how)
            except Exception:  # gradcheck raises several types: so it does not pass
                return True
            return False
    return False  # it does not run by plain ops: nothing is known


def _leaf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in another dtype, still a leaf.

    All inputs require grad: an output that none of them reaches is not looked at by `gradcheck`.
    """
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)
