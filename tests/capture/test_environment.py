"""`environment_of` is another value as soon as something changes that a program reads."""

import array
import collections
import ctypes
import functools
import math
import os
import random
import threading
import types
import weakref
from contextvars import ContextVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pullback.capture.environment import _CALLED, environment_of

FACTOR = 2.0


def by_global(x):
    return x * FACTOR


def helper(x):
    return x * FACTOR


def by_helper(x):
    return helper(x)


def by_inner_function(x):
    return (lambda y: y * FACTOR)(x)


@pytest.mark.parametrize("program", [by_global, by_helper, by_inner_function])
def test_global_that_is_bound_anew_is_seen(program, monkeypatch):
    before = environment_of(program)
    again = environment_of(program)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)

    assert again == before
    assert hash(again) == hash(before)
    assert environment_of(program) != before


def closing_over(value):
    def program(x):
        return x * value

    def bind(new):
        nonlocal value
        value = new

    return program, bind


VALUES = [
    (1.0, 2.0),
    (0.0, -0.0),
    (1, True),
    (torch.ones(2), torch.ones(2)),
    ([1, 2], [1, 3]),
    ({"a": 1}, {"a": 2}),
    ({"a": 1}, {"b": 1}),
    (by_global, by_helper),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (None, 0),
]


@pytest.mark.parametrize(("first", "second"), VALUES)
def test_closure_that_is_bound_anew_is_seen(first, second):
    program, bind = closing_over(first)
    before = environment_of(program)
    bind(second)
    after = environment_of(program)
    bind(first)

    assert after != before
    assert environment_of(program) == before


def test_values_of_tensors_do_not_count():
    weight = torch.ones(3)
    program, _ = closing_over(weight)
    before = environment_of(program)
    weight.mul_(2)

    assert environment_of(program) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.requires_grad_(),
        lambda weight: weight.resize_(4),
        lambda weight: setattr(weight, "data", torch.ones(3, dtype=torch.float64)),
    ],
    ids=["requires_grad", "shape", "dtype"],
)
def test_what_a_tensor_is_counts(change):
    weight = torch.ones(3)
    program, _ = closing_over(weight)
    before = environment_of(program)
    change(weight)

    assert environment_of(program) != before


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.factor = 2.0

    def forward(self, x):
        return self.inner(x) * self.factor


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.eval(),
        lambda m: setattr(m, "factor", 3.0),
        lambda m: setattr(m.inner[1], "p", 0.1),
        lambda m: setattr(m.inner[0], "weight", nn.Parameter(torch.ones(2, 2))),
        lambda m: m.inner[0].bias.requires_grad_(False),
        lambda m: m.inner.append(nn.ReLU()),
    ],
    ids=["eval", "attribute", "inner attribute", "parameter", "frozen", "layer"],
)
@pytest.mark.parametrize("reach", [lambda m: m, lambda m: m.forward], ids=["module", "method"])
def test_change_of_a_module_is_seen(change, reach):
    module = Scale()
    before = environment_of(reach(module))
    again = environment_of(reach(module))
    change(module)

    assert again == before
    assert environment_of(reach(module)) != before


def test_settings_in_the_users_module_are_seen(monkeypatch):
    settings = types.ModuleType("settings")
    settings.__file__ = __file__
    settings.scale = 1.0
    monkeypatch.setitem(globals(), "settings", settings)
    before = environment_of(by_settings)
    settings.scale = 2.0

    assert environment_of(by_settings) != before


def by_settings(x):
    return x * settings.scale  # noqa: F821


def test_cycles_and_large_things_come_to_an_end():
    ring = []
    ring.append(ring)
    program, bind = closing_over(ring)

    assert environment_of(program) == environment_of(program)
    bind([list(range(100)) for _ in range(100)])
    assert len(environment_of(program).entries) < 2000


# ---- objects and classes ----


class Settings:
    gain = 2.0

    def __init__(self):
        self.own = 1.0

    @property
    def doubled(self):
        return self.gain * FACTOR

    def scale(self):
        return self.hidden()

    def hidden(self):
        return self.gain


class Slotted:
    __slots__ = ("gain",)

    def __init__(self):
        self.gain = 2.0


class Answering:
    def __getattr__(self, name):
        return STORE[-1]

    def __float__(self):
        return STORE[-1]


STORE = [2.0]
REFERRED = Settings()


def by_class(x):
    return x * Settings.gain


def reading(value, read):
    return lambda x: x * read(value)


CHANGES = {
    "class attribute": (Settings, lambda s: s.gain, lambda s: setattr(s, "gain", 3.0)),
    "attribute by a method": (
        Settings(),
        lambda s: s.scale(),
        lambda s: setattr(Settings, "gain", 3.0),
    ),
    "own attribute": (Settings(), lambda s: s.own, lambda s: setattr(s, "own", 3.0)),
    "slot": (Slotted(), lambda s: s.gain, lambda s: setattr(s, "gain", 3.0)),
    "deque": (collections.deque([1.0]), lambda d: d[0], lambda d: d.append(2.0)),
    "array": (np.ones(3), lambda a: float(a[0]), lambda a: a.fill(3)),
    "array of Python": (array.array("d", [2.0]), lambda a: a[0], lambda a: a.append(3.0)),
    "number of C": (ctypes.c_double(2.0), lambda c: c.value, lambda c: setattr(c, "value", 3.0)),
    "row of C": ((ctypes.c_double * 2)(1, 2), lambda c: c[1], lambda c: c.__setitem__(1, 3.0)),
    "weak reference": (
        weakref.ref(REFERRED),
        lambda r: r().gain,
        lambda r: setattr(r(), "gain", 3.0),
    ),
    "attribute by `__getattr__`": (Answering(), lambda a: a.any, lambda a: STORE.append(3.0)),
    "operator": (Answering(), lambda a: float(a), lambda a: STORE.append(3.0)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_change_inside_an_object_is_seen(what, monkeypatch):
    value, read, change = CHANGES[what]
    monkeypatch.setattr(Settings, "gain", 2.0)
    program = reading(value, read)
    before = environment_of(program)
    again = environment_of(program)
    change(value)

    assert again == before
    assert environment_of(program) != before


def test_method_that_is_exchanged_is_seen(monkeypatch):
    program = reading(Settings(), lambda s: s.scale())
    before = environment_of(program)
    monkeypatch.setattr(Settings, "hidden", lambda self: 5.0)

    assert environment_of(program) != before


class ByGlobal(nn.Module):
    def forward(self, x):
        return x * FACTOR


def test_global_that_a_module_reads_is_seen(monkeypatch):
    module = ByGlobal()
    before = environment_of(module)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)

    assert environment_of(module) != before


def test_module_may_hold_tensors_that_are_no_buffers():
    module = Scale()
    module.table = torch.ones(3)
    before = environment_of(module)
    module.table = torch.ones(3)

    assert environment_of(module) != before


# ---- whether all was seen ----


def simple(x):
    return F.relu(x) * math.pi


def by_import(x):
    import operator

    return operator.neg(x)


def by_random(x):
    return x * random.random()


def by_generator(x):
    return x * next(GENERATOR)


GENERATOR = iter([1.0])
OPEN_FILE = open(__file__)  # noqa: SIM115
OPEN_FILE.close()


def by_file(x):
    return x * len(OPEN_FILE.name)


def by_many(x):
    return x * MANY[0][0]


MANY = [[float(i)] for i in range(1000)]


@pytest.mark.parametrize("program", [simple, by_global, by_helper, by_class, by_import, by_many])
def test_what_can_be_looked_at_is_whole(program):
    assert environment_of(program).is_whole


def test_only_operators_are_read_unnamed():
    """Of a module, that is none of its machinery: `__builtins__`, `__spec__`, `__loader__`."""
    assert {"__add__", "__radd__", "__getitem__", "__contains__"} <= set(_CALLED)
    assert set(_CALLED).isdisjoint({*vars(types.ModuleType("one")), "__builtins__", "__file__"})


@pytest.mark.parametrize("program", [by_random, by_generator, by_file])
def test_what_can_change_unseen_is_not_whole(program):
    assert not environment_of(program).is_whole


def by_eval(x):
    return x * eval("STORE")[-1]


def by_globals(x):
    return x * globals()["STORE"][-1]


@pytest.mark.parametrize(
    ("program", "unseen"),
    [
        (by_generator, "an iterator"),
        (by_file, "an iterator"),
        (by_eval, "whatever `eval` reads"),
        (by_globals, "whatever `globals` reads"),
    ],
)
def test_what_no_look_can_compare_is_named(program, unseen):
    assert unseen in environment_of(program).unseen


def nested(depth):
    """A number in so many lists, and the innermost of them."""
    inner = outer = [2.0]
    for _ in range(depth):
        outer = [outer]
    return outer, inner


def in_objects(depth):
    inner = outer = types.SimpleNamespace(held=2.0)
    for _ in range(depth):
        outer = types.SimpleNamespace(held=outer)
    return outer, inner


def held(value):
    while hasattr(value, "held"):
        value = value.held
    return value


VAR = ContextVar("VAR", default=2.0)
LONG, DEEP, OBJECTS = [1.0] * 1000, nested(20), in_objects(20)
LOCAL, LARGE = threading.local(), np.ones(50_000)
TABLE = {str(i): [float(i)] for i in range(1000)}

BOUNDLESS = {
    "a long list": (lambda x: x * LONG[999], lambda: LONG.__setitem__(999, 3.0)),
    "a long dict": (lambda x: x * TABLE["999"][0], lambda: TABLE["999"].__setitem__(0, 3.0)),
    "deep lists": (lambda x: (x, DEEP[0]), lambda: DEEP[1].__setitem__(0, 3.0)),
    "deep objects": (lambda x: x * held(OBJECTS[0]), lambda: setattr(OBJECTS[1], "held", 3.0)),
    "a context variable": (lambda x: x * VAR.get(), lambda: VAR.set(3.0)),
    "a thread's attribute": (lambda x: x * LOCAL.scale, lambda: setattr(LOCAL, "scale", 3.0)),
    "a large array": (lambda x: x * LARGE[9], lambda: LARGE.__setitem__(9, 3.0)),
    "the environment": (lambda x: x * float(os.environ["SCALE"]), lambda: None),
}


@pytest.mark.parametrize("what", BOUNDLESS)
def test_what_the_code_names_is_looked_at_whole(what, monkeypatch):
    program, change = BOUNDLESS[what]
    before = environment_of(program)
    again = environment_of(program)
    change()
    monkeypatch.setenv("SCALE", "3.0")

    assert again == before
    assert not before.unseen
    assert environment_of(program) != before


class WithLog:
    def __init__(self):
        self.scale, self.log, self.data = 2.0, OPEN_FILE, [[i] for i in range(200_000)]

    def __call__(self, x):
        return x * self.scale


def test_what_no_code_names_is_no_reason_to_refuse():
    program = WithLog()
    before = environment_of(program)
    program.scale = 3.0

    assert not before.unseen
    assert environment_of(program) != before


def test_too_much_to_look_at_is_said():
    much = [[i] for i in range(60_000)]

    assert "more than 100,000 things" in environment_of(lambda x: x * much[0][0]).unseen


def test_tensors_are_told_apart():
    weight = torch.ones(2)
    program, bind = closing_over(weight)
    before = environment_of(program)
    bind(torch.ones(2))

    assert len(before.tensors) == 1
    assert environment_of(program).tensors != before.tensors
