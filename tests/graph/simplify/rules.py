"""Tests of a rule: what it makes of one formula, and what it leaves alone."""

from dataclasses import dataclass, field
from typing import Any

import torch

from pullback.graph.rewrite import rewrite
from tests.graph.graphs import assert_legal, awkward, formulas, graph_of, printed, run

SHAPES = {"x": (4, 5), "y": (4, 5), "z": (1, 5), "v": (5,)}
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """`before` becomes `after` by a rule, which leaves `alone` as it is.

    `helpers` are rules that make the formula which the rule is about.
    """

    before: Any
    after: str
    alone: Any
    shapes: dict = field(default_factory=dict)
    helpers: tuple = ()


def arguments(fn, shapes, dtype=torch.float32, device="cpu", **kinds):
    """Awkward tensors for the parameters of `fn`, of the shapes of the case or the usual ones."""
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    shapes = SHAPES | shapes
    return [
        awkward(*shapes[name], dtype=dtype, seed=position, **kinds).to(device)
        for position, name in enumerate(names)
    ]


def assert_rewritten(rule, case):
    """Require the rule to make `after` of `before`, in a new and legal graph."""
    graph = graph_of(case.before, *arguments(case.before, case.shapes))
    text = printed(graph)

    step = rewrite(graph, (*case.helpers, rule))

    assert formulas(step.graph, case.before) == [case.after]
    assert step.applied[rule.name] > 0
    assert printed(graph) == text
    assert_legal(step.graph)


def assert_left_alone(rule, case):
    """Require the rule not to touch `alone`."""
    graph = graph_of(case.alone, *arguments(case.alone, case.shapes))
    graph = rewrite(graph, case.helpers).graph

    step = rewrite(graph, (rule,))

    assert step.applied == {}
    assert formulas(step.graph) == formulas(graph)


def results(rule, case, dtype, **kinds):
    """What `before` gives, and what it gives once rewritten."""
    inputs = arguments(case.before, case.shapes, dtype, **kinds)
    graph = graph_of(case.before, *inputs)
    step = rewrite(graph, (*case.helpers, rule))
    return run(graph, *inputs), run(step.graph, *inputs)
