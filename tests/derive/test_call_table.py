"""The one place where a call is looked up: its key, its table, and when it is not taken."""

import gc
import threading
import weakref
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import pullback as pb
from pullback.capture.environment import Environment
from pullback.derive.call_table import MISS, CallEntry, CallTable, Unlisted, call_key
from pullback.derive.recipes import MOST_KINDS
from pullback.derive.returned import record_of

call_table = import_module("pullback.derive.call_table")


def pair(*shape, dtype=torch.float64):
    x = torch.randn(shape or (4,), dtype=dtype, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


# ---- the key ----


def test_equal_calls_have_equal_keys():
    x, y = pair(2, 3)

    assert call_key((x, y, 2, 0.5, "mean", None, torch.float32)) == call_key(
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
    assert call_key(OTHERS[case]) != call_key((x,))


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True), (None, False)])
def test_values_that_only_look_equal_are_told_apart(one, other):
    assert call_key((one,)) != call_key((other,))


@pytest.mark.parametrize("arg", [[object()], {1: x}, object(), slice(1, 2)], ids=type)
def test_call_that_is_nothing_simple_has_no_key(arg):
    assert call_key((arg,)) is None


def test_sparse_tensor_has_no_key():
    """Its strides are all zero, as those of a tensor that repeats one number."""
    assert call_key((torch.ones(3).to_sparse(),)) is None


def test_subclass_of_tensor_has_no_key():
    class Marked(torch.Tensor):
        pass

    assert call_key((x.as_subclass(Marked),)) is None
    assert call_key((nn.Parameter(x),)) is not None


def test_default_dtype_is_part_of_the_key():
    before = call_key((x,))
    torch.set_default_dtype(torch.float64)
    try:
        assert call_key((x,)) != before
    finally:
        torch.set_default_dtype(torch.float32)


# ---- the table ----


def counting():
    """A table over a program, and what was made and what went the general way."""
    made, general = [], []

    def make(args):
        made.append(args)
        return CallEntry(lambda *args: "short", [0])

    def run(*args, **kwargs):
        general.append(args)
        return "general"

    return CallTable(Environment(program), make, run).make_call(), made, general


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
    monkeypatch.setattr(call_table, "MOST_ENTRIES", 4)
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


def test_who_is_told_learns_why_a_call_is_not_looked_up():
    told = []

    def keyword_only(x, *, scale=1.0):
        return x * scale

    table = CallTable(
        Environment(keyword_only),
        lambda args: CallEntry(keyword_only, [0]),
        keyword_only,
        told.append,
    )
    call = table.make_call()
    call(x, scale=2.0)
    call(torch.eye(2).to_sparse_csr())
    with Counting():
        call(x)
    call(x)

    assert told == [Unlisted.KEYWORD, Unlisted.VALUE, Unlisted.MOMENT]


def test_entry_that_misses_sends_its_call_the_general_way():
    call = CallTable(
        Environment(program),
        lambda args: CallEntry(lambda *args: MISS, [0]),
        lambda *args: "general",
    ).make_call()

    assert call(x) == "general"


def test_entry_counts_its_calls():
    entry = CallEntry(program, [0])
    call = CallTable(Environment(program), lambda args: entry, program).make_call()
    for _ in range(3):
        call(x)

    assert entry.tally == [3]


# ---- calls of a derived Function ----


def test_call_that_comes_again_does_not_look_for_its_recipe(monkeypatch):
    a, b = pair()
    D = pb.derive(lambda x, y: x.sin() * y, a, b)
    D.apply(a, b)
    recipes = record_of(D).recipes
    monkeypatch.setattr(recipes, "find", lambda *args: pytest.fail("looked for"))

    got = torch.autograd.grad(D.apply(a, b).sum(), (a, b))

    torch.testing.assert_close(got, (a.cos() * b, a.sin()))


def test_leaves_are_told_apart_where_bytes_are_counted():
    """A leaf is alive anyway and costs nothing to keep, so that another recipe serves it."""
    a, _ = pair(100)
    D = pb.derive(lambda x: x.sin().exp(), a, save=10_000)
    saved = [D.apply(x).grad_fn.call.recipe for x in (a, a * 1, a)]

    assert saved[0] is saved[2]
    assert saved[0] is not saved[1]


def test_windows_of_one_memory_are_told_apart():
    base = torch.arange(8.0)

    def windows(x):
        return x.as_strided((2,), (1,), 1) * 2

    whole = base.clone().requires_grad_()
    D = pb.derive(windows, whole)
    for start in (0, 2, 0):
        part = base[start : start + 4].detach().requires_grad_()

        assert torch.equal(D.apply(part), windows(part))


def test_tensor_from_around_that_is_frozen_loses_its_gradient():
    a, weight = pair()
    D = pb.derive(lambda x: x * weight, a)
    D.apply(a)
    weight.requires_grad_(False)
    out = D.apply(a)

    assert [one for one, _ in out.grad_fn.next_functions if one is not None] == [
        torch.autograd.graph.get_gradient_edge(a).node
    ]


def test_many_kinds_of_calls_are_not_kept_for_ever():
    a, _ = pair()
    D = pb.derive(lambda x, factor: x * factor, a, 1.0)
    first = weakref.ref(record_of(D).recipes.find((a, 2.0))[0])
    D.apply(a, 2.0)
    for number in range(MOST_KINDS + 2):
        D.apply(a, 3.0 + number)
    gc.collect()

    assert first() is None


def test_derived_inside_of_a_program_that_is_captured_does_not_wait_for_ever():
    """Two threads: one captures a program that calls D, the other calls D for the first time."""
    a, _ = pair()
    D = pb.derive(lambda x: x.sin(), a)
    done = []

    def outer(size):
        x = torch.ones(size, dtype=torch.float64, requires_grad=True)
        pb.derive(lambda x: D.apply(x).exp(), x).apply(x)
        done.append(size)

    def inner(size):
        for more in range(5):
            D.apply(torch.ones(size, more + 1, dtype=torch.float64, requires_grad=True))
        done.append(size)

    calls = [
        threading.Thread(target=f, args=(n,), daemon=True) for n in (2, 3) for f in (outer, inner)
    ]
    for one in calls:
        one.start()
    for one in calls:
        one.join(timeout=60)

    assert len(done) == 4
