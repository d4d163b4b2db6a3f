"""Every tensor that requires grad must reach forward as an argument of its own.

What it checks
    Forward's body runs as plain PyTorch, and the tensors that require grad and that its outputs
    depend on are collected; so are those that the real call connects to its outputs. A tensor of
    the first kind that is not of the second gets no gradient: one from a global, from a closure, of
    a module, or in a list that is an argument.

Why it matters
    Autograd looks for tensors among the arguments of `apply` and nowhere else. A parameter that
    forward reads by another way is used, and never trained, without an error (nni#4039,
    LongLive#61).

Fails
    return x * gain              # a parameter of the module around

Passes
    MyFunction.apply(x, gain)

Cannot see
    Tensors that forward reads through `.detach()`, `.data` or NumPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.facts import Input
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.subject import Finding, Rule, Skip, Subject, describe, describe_value
from pullback.check.watching.nodes import nodes_from
from pullback.function.isolation import seeded
from pullback.judge.example import exact_copy, mapped, tensors_in

RULE = Rule("Q002", "hidden-tensor", "context", profile="quick")


class Whereabouts(Enum):
    """Where forward finds a tensor."""

    ARGUMENT = "a tensor in"
    GLOBAL = "the global"
    CLOSURE = "the closed-over"
    ELSEWHERE = "a tensor from outside"


@dataclass(frozen=True, slots=True)
class HiddenTensor:
    """A tensor that forward uses and autograd does not see."""

    place: Whereabouts
    name: str = ""

    def __str__(self) -> str:
        return f"{self.place.value} `{self.name}`" if self.name else self.place.value


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per tensor that is used and gets no gradient."""
    args = _fresh(subject)
    try:
        with torch.enable_grad(), seeded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used = _leaves(tensors_in(subject.reference.program(*_cloned(args))))
            connected = _leaves(tensors_in(subject.target.call(*_cloned(args))))
    except Exception as error:
        yield Skip.refused(RULE, "forward cannot be looked into", describe(error))
        return
    direct = {id(arg) for arg in args if isinstance(arg, Tensor)}
    for leaf in used.values():
        if id(leaf) in connected or id(leaf) in direct:
            continue
        where = _where(subject, args, leaf)
        yield subject.finding(
            RULE,
            example=subject.given,
            at=f"{where}, {describe_value(leaf)}, which requires grad",
            detail=where,
            expected="a gradient, since the output depends on it",
            got="None",
            why="autograd sees the tensors that are arguments of `apply`, and no others",
            fix="pass it to `apply` as an argument of its own, and return its gradient",
        )


def _fresh(subject: Subject) -> tuple[Any, ...]:
    """Copies of the user's arguments; tensors in containers require grad as the user's do."""
    args = list(subject.given.fresh())
    for i, arg in enumerate(subject.given.args):
        if not isinstance(arg, Tensor) and tensors_in(arg):
            args[i] = mapped(arg, lambda t: exact_copy(t).requires_grad_(t.requires_grad))
    return tuple(args)


def _cloned(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments that forward may write into."""
    return tuple(
        arg.clone() if isinstance(arg, Tensor) and arg.requires_grad else arg for arg in args
    )


def _leaves(outputs: list[Tensor]) -> dict[int, Tensor]:
    """The leaves that outputs depend on, as the graph says."""
    nodes = nodes_from(output.grad_fn for output in outputs)
    found = (getattr(node, "variable", None) for node in nodes)
    return {id(leaf): leaf for leaf in found if isinstance(leaf, Tensor)}


def _where(subject: Subject, args: tuple[Any, ...], leaf: Tensor) -> HiddenTensor:
    for name, arg in zip(subject.names, args, strict=False):
        if any(inside is leaf for inside in tensors_in(arg)):
            return HiddenTensor(Whereabouts.ARGUMENT, name)
    target = subject.target
    forward = target.function.forward if target.is_function else target.thing
    for name, value in getattr(forward, "__globals__", {}).items():
        if value is leaf:
            return HiddenTensor(Whereabouts.GLOBAL, name)
    names = getattr(getattr(forward, "__code__", None), "co_freevars", ())
    cells = getattr(forward, "__closure__", None) or ()
    for name, cell in zip(names, cells, strict=False):
        if cell.cell_contents is leaf:
            return HiddenTensor(Whereabouts.CLOSURE, name)
    return HiddenTensor(Whereabouts.ELSEWHERE)


def _unseen(context: ReproContext) -> str:
    """A tensor that forward uses and autograd does not see."""
    hidden = context.about.detail
    inside = context.code_of(Input(hidden.name))
    head = context.call.removesuffix(".apply")
    if hidden.place is Whereabouts.GLOBAL:
        found = [f'hidden = [vars(sys.modules[{head}.__module__])["{hidden.name}"]]']
    elif hidden.place is Whereabouts.ARGUMENT and inside:
        found = [f"hidden = [t.requires_grad_() for t in {inside} if t.is_floating_point()]"]
    else:
        return ""
    return text_of(
        "import sys",
        "",
        context.settings(),
        found,
        context.done(),
        "for tensor in hidden:",
        f"    grad = torch.autograd.grad({context.output(0)}.sum(), tensor, allow_unused=True)[0]",
        '    assert grad is not None, "forward uses it, and it gets no gradient"',
    )


REPROS = (_unseen,)
