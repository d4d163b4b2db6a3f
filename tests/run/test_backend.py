"""A backend is what `Backend` says, and no more: one of two methods serves a composition."""

import inspect

import pytest
import torch
from torch import fx

import pullback as pb
from pullback.compose import fast_path
from pullback.run import BACKENDS, backend_of, candidates_now
from pullback.run.backend import Backend


class Abacus(Backend):
    """The smallest backend: it interprets a graph, for one size after the other."""

    def __init__(self):
        self.names = []

    def absence(self):
        return None

    def specialise(self, graph, row, *, name, donated=()):
        self.names.append(name)
        module = fx.GraphModule({}, graph)
        return lambda row: fx.Interpreter(module).run(*row)


def gate(x, w):
    return torch.sigmoid(x * w) * x, x.sum()


@pytest.fixture
def abacus(monkeypatch):
    made = Abacus()
    monkeypatch.setattr(fast_path, "backends_of", lambda _: {"abacus": made})
    return made


def leaves(*shape):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def gradients(call, args):
    y, s = call(*args)
    return torch.autograd.grad(y.sum() + 3 * s, args)


def test_two_methods_are_enough(abacus):
    args = leaves(3, 4)
    combined = pb.combine(gate, *args)

    for got, want in zip(combined(*args), gate(*args), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(gradients(combined, args), gradients(gate, args))
    assert set(abacus.names) == {"forward", "backward"}
    assert 'run by backend "abacus"' in combined.explain()


def test_what_it_refuses_runs_eagerly(abacus):
    combined = pb.combine(gate, *leaves(3, 4))
    combined(*leaves(3, 4))
    other = leaves(5, 2)

    with pytest.warns(pb.errors.UncompiledWarning, match="each size by itself"):
        got = gradients(combined, other)
    torch.testing.assert_close(got, gradients(gate, other))
    assert "must be compiled for each size by itself" in combined.explain()


def test_outputs_alone_are_compiled_too(abacus):
    combined, args = pb.combine(gate, *leaves(3, 4)), leaves(3, 4)
    with torch.no_grad():
        got = combined(*args)

    torch.testing.assert_close(got, gate(*args))
    assert 'without gradients by backend "abacus"' in combined.explain()


def test_nothing_else_is_asked_of_a_backend(abacus):
    asked = set()

    class Noting(Abacus):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

    noting, args = Noting(), leaves(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_path, "backends_of", lambda _: {"abacus": noting, "other": Abacus()})
        gradients(pb.combine(gate, *args), args)

    known = {name for name, _ in inspect.getmembers(Backend) if not name.startswith("_")}
    assert {"specialise", "make_node", "whole", "donates"} <= asked
    assert {name for name in asked if not name.startswith("_")} <= known | {"names"}


# ---- one that is being built ----


class Slow(Abacus):
    meanwhile = "other"

    def __init__(self, is_there):
        super().__init__()
        self.is_there = is_there

    def is_ready(self, tell):
        return self.is_there


@pytest.mark.parametrize(("is_there", "names"), [(False, ["other"]), (True, ["slow"])])
def test_other_one_serves_until_it_is_built(is_there, names):
    found = {"slow": Slow(is_there), "other": Abacus()}

    assert candidates_now(found, lambda: None) == names


def test_one_alone_is_waited_for():
    assert candidates_now({"slow": Slow(False)}, lambda: None) == ["slow"]


@pytest.mark.parametrize("name", BACKENDS)
def test_our_own_are_backends(name):
    try:
        backend = backend_of(name)
    except pb.errors.BackendError:
        pytest.skip("not here")

    assert Backend in type(backend).__mro__
    assert backend.compiles == (name != "eager")
