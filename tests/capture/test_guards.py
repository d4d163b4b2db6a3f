"""`guarded_state` answers in a microsecond, and never says that what has changed is the same."""

import gc
import threading
import types
import weakref
from contextvars import ContextVar

import numpy as np
import pytest
import torch
from torch import nn

from pullback.capture.environment import environment_of, guarded_state

FACTOR = 2.0
OPTIONS = {"scale": 3.0}


class Settings:
    scale = 2.0


def by_global(x):
    return x * FACTOR


def by_dict(x):
    return x * OPTIONS["scale"]


def by_class(x):
    return x * Settings.scale


def by_default(x, factor=2.0):
    return x * factor


def by_builtin(x):
    return x * len(x.shape)


CHANGES = {
    "a global": (by_global, lambda m: m.setitem(globals(), "FACTOR", 3.0)),
    "a dict's item": (by_dict, lambda m: m.setitem(OPTIONS, "scale", 4.0)),
    "a dict's new key": (by_dict, lambda m: m.setitem(OPTIONS, "other", 4.0)),
    "a class's attribute": (by_class, lambda m: m.setattr(Settings, "scale", 9.0)),
    "a default": (by_default, lambda m: m.setattr(by_default, "__defaults__", (7.0,))),
    "a shadowed builtin": (by_builtin, lambda m: m.setitem(globals(), "len", lambda x: 7)),
}


@pytest.mark.parametrize("case", CHANGES)
def test_change_is_noticed(case, monkeypatch):
    program, change = CHANGES[case]
    _, holds = guarded_state(program)

    assert holds()

    change(monkeypatch)

    assert not holds()


def test_code_that_is_replaced_is_noticed():
    def program(x):
        return x + 1

    _, holds = guarded_state(program)
    program.__code__ = (lambda x: x + 2).__code__

    assert not holds()


def test_closure_is_noticed():
    def make(value):
        def program(x):
            return x * value

        def bind(new):
            nonlocal value
            value = new

        return program, bind

    program, bind = make(2.0)
    _, holds = guarded_state(program)

    assert holds()

    bind(3.0)

    assert not holds()


@pytest.mark.parametrize("change", [lambda row: row.append(2.0), lambda row: row.reverse()])
def test_changed_list_is_noticed(change):
    row = [1.0, 3.0]
    _, holds = guarded_state(lambda x: x * row[0])

    assert holds()

    change(row)

    assert not holds()


class Row(list):
    pass


ODD = {
    "a function's attribute": (lambda: lambda x: x, lambda f: setattr(f, "k", 5.0)),
    "a tensor's attribute": (lambda: torch.ones(2), lambda t: setattr(t, "k", 5.0)),
    "a list's attribute": (Row, lambda row: setattr(row, "k", 5.0)),
    "a bytearray": (lambda: bytearray([2]), lambda one: one.__setitem__(0, 3)),
    "a dict's key": (lambda: {("a", 1): 2.0}, lambda d: (d.clear(), d.update({("b", 1): 2.0}))),
    "a long list": (lambda: [1.0] * 1000, lambda one: one.__setitem__(999, 3.0)),
    "a long dict": (lambda: dict.fromkeys(range(1000)), lambda one: one.__setitem__(999, 3.0)),
    "an array": (lambda: np.ones(20_000), lambda one: one.fill(3)),
    "a context variable": (lambda: ContextVar("scale", default=2.0), lambda one: one.set(3.0)),
    "a thread's attribute": (threading.local, lambda one: setattr(one, "k", 3.0)),
    "a set": (lambda: {2.0}, lambda one: (one.clear(), one.add(3.0))),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_places_are_looked_at(case):
    make, change = ODD[case]
    held = make()
    program = lambda x: (x, held)  # noqa: E731
    state, holds = guarded_state(program)
    change(held)

    assert not holds()
    assert environment_of(program) != state


def test_nothing_and_zero_of_a_module_are_told_apart():
    module = nn.Linear(2, 2)
    module.scale = 0.0
    state, holds = guarded_state(module)
    module.scale = None

    assert not holds()
    assert environment_of(module) != state


MODULE_CHANGES = {
    "eval": lambda module: module.eval(),
    "a hook": lambda module: module[0].register_forward_hook(lambda *_: None),
    "a replaced layer": lambda module: module.__setitem__(0, nn.Linear(2, 2)),
    "a new layer": lambda module: module.append(nn.ReLU()),
    "a frozen weight": lambda module: module[0].weight.requires_grad_(False),
    "a new weight": lambda module: setattr(module[0], "weight", nn.Parameter(torch.ones(2, 2))),
    "another dtype": lambda module: module.double(),
    "an attribute": lambda module: setattr(module[1], "p", 0.25),
}


@pytest.mark.parametrize("case", MODULE_CHANGES)
def test_change_of_a_module_is_noticed(case):
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    _, holds = guarded_state(module)

    assert holds()

    MODULE_CHANGES[case](module)

    assert not holds()


def test_values_of_tensors_do_not_count():
    weight = torch.ones(3, requires_grad=True)
    _, holds = guarded_state(lambda x: x * weight)
    with torch.no_grad():
        weight.mul_(2)

    assert holds()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.requires_grad_(False),
        lambda t: setattr(t, "data", torch.ones(4)),
        lambda t: setattr(t, "data", torch.ones(3, dtype=torch.float64)),
    ],
)
def test_kind_of_a_tensor_counts(change):
    weight = torch.ones(3, requires_grad=True)
    _, holds = guarded_state(lambda x: x * weight)
    change(weight)

    assert not holds()


def test_dropped_tensor_is_not_kept_alive():
    space = types.SimpleNamespace(weight=torch.ones(3))
    ref = weakref.ref(space.weight)
    _, holds = guarded_state(lambda x: x * space.weight)
    space.weight = torch.zeros(3)
    gc.collect()

    assert ref() is None
    assert not holds()


def test_what_has_no_place_is_never_steady():
    row = bytearray([1, 2])
    program = lambda x: x * row[0]  # noqa: E731
    state, holds = guarded_state(program)

    assert not holds()
    assert environment_of(program) == state


def test_equal_number_bound_anew_is_left_to_a_look(monkeypatch):
    state, holds = guarded_state(by_global)
    monkeypatch.setitem(globals(), "FACTOR", float("2.0"))

    assert not holds()
    assert environment_of(by_global) == state


def test_module_inside_a_module_is_looked_at(tmp_path, monkeypatch):
    folder = tmp_path / "a_package_of_mine"
    folder.mkdir()
    (folder / "__init__.py").write_text("from a_package_of_mine import conf\n")
    (folder / "conf.py").write_text("scale = 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = __import__("a_package_of_mine")
    program = eval("lambda x: x * package.conf.scale", {"package": package})
    program.__code__ = program.__code__.replace(co_filename=__file__)
    state, holds = guarded_state(program)
    package.conf.scale = 3.0

    assert not holds()
    assert environment_of(program) != state


def test_object_that_answers_for_itself_is_no_error():
    class Odd:
        def __getattr__(self, name):
            raise KeyError(name)

    odd = Odd()
    program = lambda x: (x, odd)  # noqa: E731

    assert environment_of(program) == environment_of(program)
