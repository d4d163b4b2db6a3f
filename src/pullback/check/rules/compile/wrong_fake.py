"""The fake kernel of an op must say what the op gives.

What it checks
    `torch.library.opcheck` of a custom op at the example: its fake kernel exists, and gives outputs
    of the shapes, dtypes and strides that the op gives.

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

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from pullback.check.registration import overload_of
from pullback.check.run import seeded
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject, told

RULE = Rule(
    code="P005",
    name="wrong-fake",
    group="compile",
    severity=Severity.FRAGILE,
    profile="quick",
    wraps=True,
)

TEST = "test_faketensor"
FIX = (
    "register a fake kernel (torch.library.register_fake) that makes empty outputs as the op makes "
    "full ones"
)
ALIASES = "outputs_alias_inputs check False != True"
ALIAS = "clone what is a view of an input, or write the alias into the schema"
OWN = "aten"  # PyTorch's own ops, which are not for us to judge


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for ops of the dispatcher."""
    if not subject.target.is_op:
        return
    op = overload_of(subject.target.thing)
    if type(op).__name__ != "OpOverload" or op.namespace == OWN:
        return
    args = subject.small_given.fresh(needs=frozenset())
    try:
        with warnings.catch_warnings(), seeded():
            warnings.simplefilter("ignore")
            found = torch.library.opcheck(op, args, test_utils=(TEST,), raise_exception=False)
    except Exception as error:
        yield Skip(RULE, f"torch.library.opcheck cannot try it: {told(error)}")
        return
    failure: Any = found.get(TEST)
    if isinstance(failure, BaseException):
        cause = failure.__cause__ or failure
        is_absent = "no fake impl" in f"{failure} {cause}" or "Unsupported" in type(cause).__name__
        yield subject.finding(
            RULE,
            example=subject.small_given,
            at="the op's outputs" if ALIASES in str(cause) else "the fake kernel",
            expected="memory of their own, as the schema says"
            if ALIASES in str(cause)
            else "outputs of the shapes, dtypes and strides of the op's",
            got="none is registered" if is_absent else told(cause),
            fix=ALIAS if ALIASES in str(cause) else FIX,
        )
