"""The rules of a check of a whole model, which `runner` makes findings of."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from pullback.check.findings.finding import Finding, Rule, Severity, Skip
from pullback.check.findings.registered import Registered, registered

GROUP = "model"

WRONG = Rule("M101", "wrong-in-model", GROUP, profile="quick")
CUT = Rule("M102", "cut-in-model", GROUP, profile="quick")
UNUSED = Rule("M103", "unused-parameter", GROUP, Severity.WASTEFUL, "quick")
NOT_FINITE = Rule("M104", "not-finite-in-model", GROUP, profile="quick")


def _found_by_the_runner(model: Any) -> Iterator[Finding | Skip]:
    """Nothing: one pass through the model shows what all of these rules ask for."""
    return iter(())


PAGES = (
    (
        WRONG,
        """
The gradients of a model must be the slopes of its outputs.

What it checks
    One random direction through all parameters and inputs: the slope that autograd claims, and the
    slope that differences of the outputs show, in float64 where the model runs in it. Where they
    differ by more than 5 %, the Functions inside are replaced by their forwards: the class is named
    without whose backward the gradients are right.

Why it matters
    A model with a wrong gradient trains, only worse. Each Function is checked by itself as well,
    with the arguments that it gets; this is what is left where none of those checks names a fault.

Fails
    a Function whose backward is right for all arguments that were tried, and not for those here

Passes
    a model of which every gradient is that of its forward

Cannot see
    Gradients that are off by less than that; a model whose outputs jump, or that cannot be
    differenced. Where the model itself cuts a gradient (`detach`), nothing is said.
""",
    ),
    (
        CUT,
        """
A parameter that changes the outputs must get a gradient.

What it checks
    Parameters that require grad, and inputs that were given with `requires_grad=True`, whose
    gradient is None although the outputs have a slope along them. The calls that cut it are named
    by their path in the model and their line.

Why it matters
    The optimizer leaves such a parameter as it was initialised, and says nothing.

Fails
    self.scale = nn.Parameter(torch.ones(8));  return x * self.scale.detach()

Passes
    self.scale = nn.Parameter(torch.ones(8));  return x * self.scale

Cannot see
    A gradient that is cut on one of several ways from a parameter to the outputs: that is how
    straight-through estimators are written.
""",
    ),
    (
        UNUSED,
        """
A parameter that requires grad should get one.

What it checks
    Parameters that require grad, get None, and along which the outputs have no slope at the given
    inputs.

Why it matters
    It is memory of the model and of the optimizer for nothing, and `DistributedDataParallel` waits
    for its gradient.

Fails
    self.bias = nn.Parameter(torch.zeros(8))  # and forward does not use it

Passes
    self.bias = None

Cannot see
    Parameters that other inputs would use, such as the experts that nothing was routed to.
""",
    ),
    (
        NOT_FINITE,
        """
A model must not make NaN of finite inputs, forward or backward.

What it checks
    Whether an output is NaN, or a gradient NaN or infinite; then the first call that made such a
    number of finite ones, by its path in the model and its line.

Why it matters
    One NaN reaches every parameter with the next step, and the traceback, if there is one, is that
    of another place.

Fails
    torch.where(x > 0, x.log(), 0)  # backward: 0 times infinity at x = 0

Passes
    torch.where(x > 0, x.clamp_min(1e-8).log(), 0)

Cannot see
    Inputs that were not tried. Infinite outputs are no fault by themselves: masks are made of them.
""",
    ),
)


RULES = tuple(Registered(rule, _found_by_the_runner, page) for rule, page in PAGES)


@cache
def model_rules() -> tuple[Registered, ...]:
    """Every rule of a check of a whole model, in order of code."""
    return tuple(registered(sys.modules[__name__]))
