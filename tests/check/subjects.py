"""Subjects for the tests of rules, and the model of a rule's test."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from pullback.check.repro.writing import with_repro
from pullback.check.rules import all_rules
from pullback.check.subject.subject import Finding, Skip, Subject
from pullback.check.target.target import target_of
from pullback.judge.example import example_of

all_rules()  # so that the repros of each are known


def check_of(name: str) -> Any:
    """The function that tries the rule of that name."""
    return next(r.check for r in all_rules() if r.rule.name == name)


def _rule_of(check: Any) -> str:
    """The name of the rule that a function tries; it may have been written just now."""
    known = [r.rule.name for r in all_rules() if r.check is check]
    return known[0] if known else str(sys.modules[check.__module__].RULE.name)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of a fixed seed, as a leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def subject(target: Any, *args: Any, profile: str = "standard") -> Subject:
    """`target` at one example, in this process."""
    examples = (example_of(args),)
    return Subject(target_of(target), examples, profile=profile, show=with_repro)


def findings(check: Any, target: Any, *args: Any) -> list[Finding]:
    """What one rule finds, without the skips."""
    return [r for r in check(subject(target, *args)) if isinstance(r, Finding)]


def skips(check: Any, target: Any, *args: Any) -> list[Skip]:
    """What one rule did not try."""
    return [r for r in check(subject(target, *args)) if isinstance(r, Skip)]


def made(forward: Callable[..., Any], backward: Callable[..., Any], **body: Any) -> Any:
    """A Function that saves its inputs: `backward` gets the cotangents, then what was saved.

    Both are plain functions of tensors; the inputs have the names of `forward`'s parameters.
    """

    def run(ctx, *args):
        ctx.save_for_backward(*args)
        return forward(*args)

    names = ["ctx", *inspect.signature(forward).parameters]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]

    def pull(ctx, *cotangents):
        return backward(*cotangents, *ctx.saved_tensors)

    methods = {"forward": staticmethod(run), "backward": staticmethod(pull)}
    return type("Made", (Function,), {**methods, **body})


def variadic(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A Function of `*args`, tensors first: `backward` gets them all, and the cotangent last."""

    class Made(Function):
        @staticmethod
        def forward(ctx, *args):
            ctx.args = [a for a in args if not isinstance(a, torch.Tensor)]
            ctx.save_for_backward(*(a for a in args if isinstance(a, torch.Tensor)))
            return forward(*args)

        @staticmethod
        def backward(ctx, grad):
            return backward(*ctx.saved_tensors, *ctx.args, grad)

    return Made


def rule_tests(
    check: Any, sound: dict[str, Any], planted: dict[str, Any], *, count: int | None = None
) -> tuple[Any, Any]:
    """The two tests of a rule: sound functions have no finding, planted faults have, in its name.

    A row is a target and its arguments, or a function that gives them; that of a fault also has a
    part of the place that the finding names. `count` is how many findings a fault must have, where
    that matters.
    """
    rule = _rule_of(check)

    def found(row: Any) -> list[Finding]:
        target, args = row[:2]
        return findings(check, target, *(args() if callable(args) else args))

    @pytest.mark.parametrize("name", sound)
    def test_sound_function_has_no_finding(name: str) -> None:
        assert found(sound[name]) == []

    @pytest.mark.parametrize("name", planted)
    def test_planted_fault_is_caught(name: str) -> None:
        results = found(planted[name])

        assert {finding.rule.name for finding in results} == {rule}
        assert any(planted[name][2] in finding.at for finding in results)
        assert count in (None, len(results))

    return test_sound_function_has_no_finding, test_planted_fault_is_caught


def missed_by_gradcheck(planted: dict[str, Any], *names: str) -> Any:
    """The test that `gradcheck` finds nothing wrong with some planted faults."""

    @pytest.mark.parametrize("name", names)
    def test_gradcheck_alone_would_miss_it(name: str) -> None:
        target, args = planted[name][:2]

        assert torch.autograd.gradcheck(target.apply, args() if callable(args) else args)

    return test_gradcheck_alone_would_miss_it
