"""The nodes of a composition in its table of calls: what must not be lost on that short way."""

import gc
import itertools
import threading
import weakref
from contextvars import ContextVar
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pullback as pb
from pullback.errors import DoubleBackwardError

node = import_module("pullback.run.nodes.node")


def pair(*shape, dtype=torch.float64):
    x = torch.randn(shape or (4,), dtype=dtype, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


x = torch.ones(2, 3)


# ---- nodes in the table ----


def test_call_that_is_recorded_is_seen():
    a, b = pair()
    combined = pb.combine(lambda x, y: x.sin() * y, a, b)
    combined.apply(a, b)
    with pb.recording() as seen:
        combined.apply(a, b)

    assert len(list(seen.calls)) == 1


class Doubled(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


WEIGHT = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)


def with_closure(x):
    return Doubled.apply(x) * WEIGHT


def several(x, factor, flag):
    return {"y": x * factor, "twice": [Doubled.apply(x)], "flag": flag}


def test_closure_gets_its_gradient_on_the_short_way():
    a, _ = pair()
    combined = pb.combine(with_closure, a)
    for _ in range(2):
        got = torch.autograd.grad(combined.apply(a).sum(), (a, WEIGHT))
        want = torch.autograd.grad(with_closure(a).sum(), (a, WEIGHT))

        torch.testing.assert_close(got, want)


def test_closure_that_is_frozen_loses_its_gradient():
    a, _ = pair()
    weight = torch.tensor([3.0], dtype=torch.float64, requires_grad=True)
    combined = pb.combine(lambda x: x * weight, a)
    combined.apply(a)
    weight.requires_grad_(False)
    out = combined.apply(a)

    assert [one for one, _ in out.grad_fn.next_functions if one is not None] == [
        torch.autograd.graph.get_gradient_edge(a).node
    ]


def test_trees_and_plain_values_come_back_as_written():
    a, _ = pair()
    combined = pb.combine(several, a, 2.5, True)
    for factor in (2.5, 0.0, -0.0, 2.5):
        got, want = combined.apply(a, factor, True), several(a, factor, True)

        assert list(got) == list(want)
        assert torch.equal(got["y"], want["y"])
        assert torch.equal(got["twice"][0], want["twice"][0])
        assert got["flag"] is True


@pytest.mark.parametrize("call", [lambda F, x: F.apply(x), lambda F, x: F.apply(x=x)])
def test_value_returned_with_and_without_gradient(call):
    a, _ = pair()

    def loss(x):
        y = x.sin()
        return y, y.detach()

    combined = pb.combine(loss, a)
    for _ in range(2):
        y, detached = call(combined, a)

        assert y.requires_grad
        assert not detached.requires_grad
        assert torch.equal(torch.autograd.grad(y.sum(), a)[0], a.cos())


def test_output_without_cotangent_is_right():
    a, b = pair()
    combined = pb.combine(lambda x, y: (x.sin() * y, x.exp()), a, b)
    combined.apply(a, b)
    got = torch.autograd.grad(combined.apply(a, b)[1].sum(), (a, b), allow_unused=True)

    torch.testing.assert_close(got[0], a.exp())
    assert got[1] is None or not got[1].any()


def test_threads_agree():
    a, b = pair(50)
    combined = pb.combine(lambda x, y: Doubled.apply(x).sin() * y, a, b)
    want = torch.autograd.grad(combined.apply(a, b).sum(), (a, b))
    results = []

    def work():
        for size in range(40, 50):
            x, y = (t.detach()[:size].clone().requires_grad_() for t in (a, b))
            got = torch.autograd.grad(combined.apply(x, y).sum(), (x, y))
            results.append(all(torch.equal(g, w[:size]) for g, w in zip(got, want, strict=True)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert results == [True] * 80


def test_calls_with_changing_sizes_leave_nothing_behind():
    a, b = pair()
    combined = pb.combine(lambda x, y: x.sin() * y, a, b)

    seen = []
    for size in range(2, 60):
        x, y = pair(size)
        out = combined.apply(x, y)
        out.sum().backward()
        seen += [weakref.ref(one) for one in (x, y, out)]
    del x, y, out
    gc.collect()

    assert [ref() for ref in seen if ref() is not None] == []


# ---- what must not be lost on the short way ----


def test_second_derivative_survives_a_change_in_between():
    layers = [nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh()]
    module = nn.Sequential(*layers).double()
    a, _ = pair(2, 3)

    def penalty(call):
        module.train()
        out = call(a)
        module.eval()
        (g,) = torch.autograd.grad(out.sum(), a, create_graph=True)
        return torch.autograd.grad(g.square().sum(), a)[0]

    combined = pb.combine(lambda x: module(x), a)
    penalty(combined.apply)

    torch.testing.assert_close(penalty(combined.apply), penalty(module))


def test_handwritten_rules_are_not_differentiated_by_the_text():
    a, _ = pair()
    factor = [2.0]
    combined = pb.combine(lambda x: Doubled.apply(x).exp() * factor[0], a)
    combined.apply(a)
    out = combined.apply(a)
    factor[0] = 3.0

    with pytest.raises(DoubleBackwardError) as caught:
        torch.autograd.grad(out.sum(), a, create_graph=True)
    assert "must be run again to be differentiated twice" in str(caught.value)


def test_tangent_of_a_closure_is_kept():
    weight = torch.ones(3)

    def program(x):
        return x * weight

    combined = pb.combine(program, x[0])
    combined.apply(x[0])
    with torch.autograd.forward_ad.dual_level():
        weight = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.full((3,), 5.0))
        out = torch.autograd.forward_ad.unpack_dual(combined.apply(x[0]))

    assert out.tangent.tolist() == [5.0] * 3


def test_batches_of_cotangents_are_pulled():
    a, _ = pair()
    combined = pb.combine(lambda x: x.sin() * x, a)
    combined.apply(a)
    got = torch.autograd.functional.jacobian(combined.apply, a, vectorize=True)

    torch.testing.assert_close(got, torch.diag(a.cos() * a + a.sin()).detach())


@pytest.mark.parametrize(
    "args",
    [
        (torch.eye(3).to_sparse_csr(),),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),),
        (torch.ones(3, device="meta"),),
        (torch.ones(3, dtype=torch.complex64).conj(),),
    ],
    ids=["csr", "nested", "meta", "conjugate"],
)
def test_unusual_tensors_run_as_written(args):
    combined = pb.combine(lambda x: x * 2, x)
    for _ in range(2):
        got = combined.apply(*args)

        assert got.layout is args[0].layout
        assert got.device == args[0].device


def test_sparse_tensor_is_not_taken_for_one_that_repeats_a_number():
    repeated = torch.ones(1).expand(3).detach().requires_grad_()
    combined = pb.combine(lambda x: x * 2, repeated)
    combined.apply(repeated)
    sparse = torch.ones(3).to_sparse().requires_grad_()

    assert combined.apply(sparse).grad_fn.name() == "MulBackward0"


# ---- gradients of some inputs ----


class Ops(TorchDispatchMode):
    """Counts the ops that run under it."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **kwargs or {})


def branches(x, y):
    return x.sin().exp() * (y.cos().exp() + 1)


def ops_of(out, **options):
    """How many ops a backward of `out` takes."""
    with Ops() as ops:
        out.backward(torch.ones_like(out), **options)
    return ops.count


@pytest.mark.parametrize("is_leaf", [True, False])
def test_backward_of_some_inputs_does_less(is_leaf):
    leaves = pair()
    given = leaves if is_leaf else [leaf * 2 for leaf in leaves]
    for first in (0, 1):
        call = pb.combine(branches, *leaves, backend="eager").apply
        g = torch.ones_like(given[0])
        outs = call(*given), call(*given)
        with Ops() as part:
            got = torch.autograd.grad(outs[0], given[first], g)
        with Ops() as whole:
            pulled = torch.autograd.grad(outs[1], given, g)

        assert part.count < whole.count
        assert torch.equal(got[0], pulled[first])


@pytest.mark.parametrize("record", [False, True])
def test_accumulating_some_gradients_does_less(record):
    x, y = pair()
    call = pb.combine(branches, x, y, backend="eager").apply
    whole = ops_of(call(x, y), create_graph=record)
    want, x.grad, y.grad = y.grad, None, None
    part = ops_of(call(x, y), create_graph=record, inputs=[y])

    assert part < whole
    assert x.grad is None
    assert torch.equal(y.grad, want)


def test_dear_question_is_asked_seldom(monkeypatch):
    x, y = pair()
    asked = []
    runs = node.engine_runs
    monkeypatch.setattr(node, "engine_runs", lambda one: asked.append(one) or runs(one))
    call = pb.combine(branches, x, y, backend="eager").apply
    for _ in range(node.PATIENCE + 1):
        torch.autograd.grad(call(x, y).sum(), (x, y))

    assert len(asked) == 2
    torch.autograd.grad(call(x, y).sum(), (x, y))
    assert len(asked) == 4


# ---- surroundings ----

SCALES, CURRENT = [1.0] * 1000, ContextVar("CURRENT", default=2.0)
ENDLESS = itertools.repeat(2.0)


def by_long_list(x):
    return x.sin() * SCALES[999]


def by_context(x):
    return x.sin() * CURRENT.get()


def by_iterator(x):
    return x.sin() * next(ENDLESS)


@pytest.mark.parametrize("make", [pb.combine, pb.hybrid])
@pytest.mark.parametrize(
    ("program", "change"),
    [
        (by_long_list, lambda: SCALES.__setitem__(999, SCALES[999] + 1)),
        (by_context, lambda: CURRENT.set(CURRENT.get() + 1)),
    ],
)
def test_no_surroundings_are_stale(make, program, change):
    x, _ = pair()
    made = make(program, x, **({"groups": [(0, 1)]} if make is pb.hybrid else {}))
    for _ in range(3):
        assert torch.equal(made.apply(x), program(x))
        change()


@pytest.mark.parametrize("make", [pb.combine, pb.hybrid])
def test_what_cannot_be_compared_runs_as_written(make):
    x, _ = pair()
    made = make(by_iterator, x)

    assert torch.equal(made.apply(x), by_iterator(x))
    assert made.explain() == (
        "nested: `by_iterator` must read from outside it only what can be looked at: "
        "an iterator, which every read changes (`repeat`)"
    )


def test_surroundings_that_grow_too_large_run_as_written(monkeypatch):
    x, _ = pair()
    made = pb.combine(by_long_list, x)
    made.apply(x)
    monkeypatch.setitem(globals(), "SCALES", list(range(100_001)))

    for _ in range(3):
        assert torch.equal(made.apply(x), by_long_list(x))
        SCALES[999] += 1
    assert "nested for (float64[4])" in made.explain()
