"""The short way from a call to its node: what it looks up, and when it is not taken."""

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
from pullback.compose.fast_path import FastPath, key_of
from pullback.errors import DoubleBackwardError
from pullback.run.paths import Paths

fast_path = import_module("pullback.compose.fast_path")
node = import_module("pullback.run.node")


def pair(*shape, dtype=torch.float64):
    x = torch.randn(shape or (4,), dtype=dtype, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


# ---- the key ----


def test_equal_calls_have_equal_keys():
    x, y = pair(2, 3)

    assert key_of((x, y, 2, 0.5, "mean", None, torch.float32)) == key_of(
        (y, x, 2, 0.5, "mean", None, torch.float32)
    )


x = torch.ones(2, 3)
OTHERS = {
    "a size": (torch.ones(3, 2),),
    "strides": (torch.ones(3, 2).t(),),
    "a dtype": (torch.ones(2, 3, dtype=torch.float64),),
    "a need": (torch.ones(2, 3, requires_grad=True),),
    "a device": (torch.ones(2, 3, device="meta"),),
    "one more": (x, None),
    "a plain value": (2.0,),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_calls_have_other_keys(case):
    assert key_of(OTHERS[case]) != key_of((x,))


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True), (None, False)])
def test_values_that_only_look_equal_are_told_apart(one, other):
    assert key_of((one,)) != key_of((other,))


@pytest.mark.parametrize("arg", [[object()], {1: x}, object(), slice(1, 2)], ids=type)
def test_call_that_is_nothing_simple_has_no_key(arg):
    assert key_of((arg,)) is None


def test_subclass_of_tensor_has_no_key():
    class Marked(torch.Tensor):
        pass

    assert key_of((x.as_subclass(Marked),)) is None
    assert key_of((nn.Parameter(x),)) is not None


def test_default_dtype_is_part_of_the_key():
    before = key_of((x,))
    torch.set_default_dtype(torch.float64)
    try:
        assert key_of((x,)) != before
    finally:
        torch.set_default_dtype(torch.float32)


# ---- the table ----


def counting():
    """A `FastPath` over a program, and what was made and what went the general way."""
    made, general = [], []

    def make(args):
        made.append(args)
        return (lambda *args: "short"), "short"

    def run(*args, **kwargs):
        general.append(args)
        return "general"

    return FastPath(program, make, run, Paths("program")).make_call(), made, general


SCALE = 2.0


def program(x, y=None):
    return x * SCALE


def test_entry_is_made_once_for_a_kind_of_call():
    call, made, general = counting()

    assert [call(x), call(x + 1), call(torch.ones(3))] == ["short"] * 3
    assert len(made) == 2
    assert not general


def test_change_around_the_program_empties_the_table(monkeypatch):
    call, made, _ = counting()
    call(x)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    call(x)
    call(x)

    assert len(made) == 2


def test_equal_surroundings_keep_the_table(monkeypatch):
    call, made, _ = counting()
    call(x)
    monkeypatch.setitem(globals(), "SCALE", float("2.0"))
    call(x)

    assert len(made) == 1


def test_table_is_bounded(monkeypatch):
    monkeypatch.setattr(fast_path, "CALLS", 4)
    call, made, _ = counting()
    for size in range(1, 11):
        call(torch.ones(size))
    call(torch.ones(10))

    assert len(made) == 10


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


MOMENTS = {
    "a dispatch mode": Counting,
    "a device context": lambda: torch.device("cpu"),
    "forward mode": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_other_moments_take_the_general_way(moment):
    call, made, general = counting()
    with MOMENTS[moment]():
        assert call(x) == "general"

    assert not made
    assert len(general) == 1


def test_transforms_take_the_general_way():
    call, made, general = counting()
    torch.func.vmap(lambda x: (call(x), x)[1])(x)

    assert not made
    assert len(general) == 1


def test_keywords_are_looked_up_by_position():
    call, made, general = counting()

    assert [call(x), call(x=x), call(y=None, x=x), call(x, None)] == ["short"] * 4
    assert [len(args) for args in made] == [1, 2]
    assert not general


def test_containers_are_looked_up_by_what_is_in_them():
    call, made, _ = counting()
    for arg in ([x], [x + 1], (x,), [x, x], {"a": x}, {"b": x}):
        call(arg)

    assert len(made) == 5


@pytest.mark.parametrize(
    "moment", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_gradient_recording_and_autocast_have_entries_of_their_own(moment):
    call, made, general = counting()
    call(x)
    with moment():
        call(x)
        call(x)

    assert len(made) == 2
    assert not general


def test_call_that_is_recorded_is_seen():
    a, b = pair()
    combined = pb.combine(lambda x, y: x.sin() * y, a, b)
    combined.apply(a, b)
    with pb.recording() as seen:
        combined.apply(a, b)

    assert len(list(seen.calls)) == 1


# ---- nodes on the short way ----


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
        "nested: `by_iterator` must read from around it only what can be looked at: "
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
