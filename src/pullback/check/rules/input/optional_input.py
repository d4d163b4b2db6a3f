"""An input that may be left out must be served both ways.

What it checks
    An argument whose default is None: where the example gives a tensor, None is tried, and where it
    gives None, tensors of the shapes of the others are. What forward takes, backward must serve.

Why it matters
    A bias or mask is optional, and tests give it or leave it out, never both. The other way then
    has no gradient, or crashes in backward in the first model that uses it.

Fails
    x, mask = ctx.saved_tensors; return grad * mask, None      # where mask is None

Passes
    grad_x = grad if mask is None else grad * mask

Cannot see
    Arguments without a default of None. The gradient of a tensor that is given in the place of
    None, unless its name is that of a parameter, such as `bias` or `weight`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from pullback.check.inputs.values import resampled
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject, each
from pullback.check.subject.trials import TriedVariant, is_new, trial_of
from pullback.judge.example import Example, can_differ

RULE = Rule("I002", "optional-input", "input", profile="quick")

# Names of arguments that are trained, and so have a gradient.
TRAINED = ("b", "w", "bias", "weight", "scale", "gain", "gamma", "beta", "shift", "residual")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding per argument."""
    target = subject.target
    if not target.is_function or subject.fails_at_base or subject.writes_inputs:
        return
    if target.intent.has_surrogate or not subject.is_steady:
        return
    for i, name in each(_optional(subject), subject):
        whole = _with(subject, i)
        for example in each(_variants(whole.small, i, name), subject):
            trial = trial_of(whole, example)
            if trial is None:
                continue
            found = _finding(whole, trial, i, name)
            if found is not None:
                yield found
            break


def _optional(subject: Subject) -> list[tuple[int, str]]:
    """The arguments whose default is None, by position."""
    try:
        parameters = list(inspect.signature(subject.target.function.forward).parameters.values())
    except (TypeError, ValueError):
        return []
    if not subject.target.has_setup_context:
        parameters = parameters[1:]
    return [(i, p.name) for i, p in enumerate(parameters) if p.default is None]


def _with(subject: Subject, i: int) -> Subject:
    """The subject with argument `i` in its example, as None where it was left out."""
    start = subject.small
    if i != len(start.args):
        return subject
    return subject.other(replace(start, args=(*start.args, None)))


def _variants(start: Example, i: int, name: str) -> Iterator[Example]:
    """The example without a tensor that it has, or with one that it has not."""
    if i >= len(start.args):
        return
    given = start.args[i]
    if isinstance(given, Tensor):
        if len(start.needs - {i}):
            yield start.put(i, None, f"`{name}` as None").need(start.needs - {i})
        return
    if given is not None:
        return
    for k, shape in enumerate(_shapes(start)):
        like = next(start.args[j] for j in start.differentiable)
        value = resampled(like, shape, 600 + k)
        made = start.put(i, value, f"`{name}` as a tensor")
        yield made.need(made.needs | {i}) if name in TRAINED else made


def _shapes(start: Example) -> list[tuple[int, ...]]:
    """The last size, then the whole shape, of each differentiable input."""
    found: list[tuple[int, ...]] = []
    for j in start.differentiable:
        shape = tuple(start.args[j].shape)
        found += [shape[-1:], shape]
    return list(dict.fromkeys(found))


def _finding(subject: Subject, trial: TriedVariant, i: int, name: str) -> Finding | None:
    example = trial.example
    is_guess = example.args[i] is not None  # the shape of a tensor may not be meant
    if trial.failure and not is_guess and is_new(subject, RULE, "backward"):
        return subject.finding(
            RULE,
            example=example,
            at=f"backward, with {example.label}",
            expected="gradients, since forward takes it",
            got=trial.failure,
            severity=Severity.FRAGILE,
            fix=f"serve `{name}` both given and left out in backward",
        )
    for mismatch in trial.mismatches:
        if is_new(subject, RULE, mismatch.name) and can_differ(example.args[mismatch.position]):
            fix = f"serve `{name}` both given and left out in backward"
            return subject.mismatched(RULE, mismatch, example, fix=fix)
    return None
