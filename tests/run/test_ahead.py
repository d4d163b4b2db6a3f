"""Graphs compiled ahead of time, in a native node."""

import pytest
import torch

import pullback as pb
import pullback.run
from pullback.run import ahead, native

pytestmark = [pytest.mark.needs_compiler, pytest.mark.slow]


def program(x, y):
    # Sorting is no kernel of Inductor's: "native" calls Python for it.
    return x.sort(dim=0).values * y.sin(), x.exp()


def test_graph_that_cannot_be_read_runs_without_python(monkeypatch):
    monkeypatch.setattr(pullback.run, "BACKENDS", (*pullback.run.BACKENDS, "ahead"))
    specs, make = [], native.make_node
    monkeypatch.setattr(ahead, "make_node", lambda spec: specs.append(spec) or make(spec))
    x, y = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    apply = pb.combine(program, x, y, backend="ahead").apply
    cotangents = torch.randn(5), torch.randn(5)
    for _ in range(2):
        actual = torch.autograd.grad(apply(x, y), (x, y), cotangents)
        expected = torch.autograd.grad(program(x, y), (x, y), cotangents)

        assert all(map(torch.allclose, actual, expected))
    assert all(map(torch.allclose, apply(x, y), program(x, y)))
    (spec,) = specs
    assert type(spec.forward).__name__ == "Library"
