"""The fake kernel of an op must say what the op gives.

What it checks
    `torch.library.opcheck` of a custom op at the example, and in float32 and float64: its fake
    kernel exists, and gives outputs of the shapes, dtypes and strides that the op gives. So it is
    for the ops that a program calls, where they have a fake kernel.

Why it matters
    `torch.compile` and `torch.export` plan with the fake kernel alone. One that says another shape
    makes them raise far away from the op, or compute with memory of the wrong size.

Fails
    @row_sum.register_fake
    def _(x): return torch.empty_like(x)           # of x.sum(-1)

Passes
    def _(x): return x.new_empty(x.shape[:-1])

Cannot see
    Shapes other than the example's.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject, describe, each
from pullback.check.target.registration import overload_of
from pullback.check.watching.dispatch import Foreign, foreign_calls
from pullback.function.isolation import seeded
from pullback.judge.example import Example

RULE = Rule("P005", "wrong-fake", "compile", Severity.FRAGILE, "quick", wraps=True)

TEST = "test_faketensor"
FIX = (
    "register a fake kernel (torch.library.register_fake) that makes empty outputs as the op makes "
    "full ones"
)
ALIASES = "outputs_alias_inputs check False != True"
ALIAS = "clone what is a view of an input, or write the alias into the schema"
OWN = "aten"  # PyTorch's own ops, which are not for us to judge
OPS = 3  # so many ops of one program are tried


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for ops of the dispatcher."""
    is_op = subject.target.is_op
    for example in each(_examples(subject), subject):
        for called in _calls(subject, example):
            try:
                failure = _failure(called)
            except Exception as error:
                yield Skip.refused(RULE, "torch.library.opcheck cannot try it", describe(error))
                return
            # An op of somebody else's may have no fake kernel.
            if failure is not None and (is_op or not _is_absent(failure)):
                yield _finding(subject, example, called, failure)
                return


def _examples(subject: Subject) -> Iterator[Example]:
    """The example, and those of another dtype that the function takes."""
    example = subject.small_given
    yield example
    for dtype in (torch.float32, torch.float64):
        other = example.to(dtype)
        if all(example.args[i].dtype == other.args[i].dtype for i in example.tensors):
            continue
        with contextlib.suppress(Exception), torch.no_grad(), seeded():
            subject.target.call(*other.fresh(needs=frozenset()))
            yield other


def _calls(subject: Subject, example: Example) -> list[Foreign]:
    """The op itself, or the first few that a program calls and that are not PyTorch's own."""
    args = example.fresh(needs=frozenset())
    if not subject.target.is_op:
        return foreign_calls(subject.target.call, args)[:OPS]
    op = overload_of(subject.target.thing)
    is_ours = type(op).__name__ == "OpOverload" and op.namespace != OWN
    return [Foreign(op, args, {})] if is_ours else []


def _failure(called: Foreign) -> BaseException | None:
    """What `opcheck` says of the fake kernel; None if nothing."""
    with warnings.catch_warnings(), seeded():
        warnings.simplefilter("ignore")
        found = torch.library.opcheck(
            called.op, called.args, called.kwargs, test_utils=(TEST,), raise_exception=False
        )
    failure: Any = found.get(TEST)
    return failure if isinstance(failure, BaseException) else None


def _cause(failure: BaseException) -> BaseException:
    return failure.__cause__ or failure


def _is_absent(failure: BaseException) -> bool:
    cause = _cause(failure)
    return "no fake impl" in f"{failure} {cause}" or "Unsupported" in type(cause).__name__


def _finding(
    subject: Subject, example: Example, called: Foreign, failure: BaseException
) -> Finding:
    cause = _cause(failure)
    is_alias = ALIASES in str(cause)
    whose = "" if subject.target.is_op else f" of the op `{called.op.name()}`"
    return subject.finding(
        RULE,
        example=example,
        at=f"the outputs{whose or ' of the op'}" if is_alias else f"the fake kernel{whose}",
        expected="memory of their own, as the schema says"
        if is_alias
        else "outputs of the shapes, dtypes and strides of the op's",
        got="none is registered" if _is_absent(failure) else describe(cause),
        fix=ALIAS if is_alias else FIX,
    )
