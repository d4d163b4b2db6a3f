"""Subjects for the tests of rules, and the model of a rule's test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pullback.check.example import example_of
from pullback.check.rules import all_rules
from pullback.check.subject import Finding, Skip, Subject
from pullback.check.target import target_of

all_rules()  # so that the repros of each are known


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers of a fixed seed, as a leaf that requires grad."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def subject(target: Any, *args: Any, profile: str = "standard") -> Subject:
    """`target` at one example, in this process."""
    return Subject(target_of(target), (example_of(args),), profile=profile)


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
