"""Recipes are captured when a call of a new kind comes, kept, and found again."""

import itertools
import tempfile
import threading
import types

import pytest
import torch
from torch import nn

from pullback.derive import recipes as module
from pullback.derive.backward import derive_function
from pullback.derive.recipes import MOST_KINDS, Recipes
from pullback.errors import CaptureError, DifferingCaptureError
from tests.derive.functions import (
    CASES,
    COMMON_THEN_EVERY,
    differences,
    inputs_of,
    pulled,
    weights_for,
)


def normal(*shape, dtype=torch.float64, needs=True):
    return torch.randn(*shape, dtype=dtype).requires_grad_(needs)


def scaled(x, factor):
    """x scaled."""
    return torch.sin(x) * factor


@pytest.fixture
def captures(monkeypatch):
    """The arguments of each capture that a recipe was made of, as they come."""
    made = []

    def counted(program, args, **kwargs):
        made.append(args)
        return capture(program, args, **kwargs)

    capture = module.capture
    monkeypatch.setattr(module, "capture", counted)
    return made


# ---- one recipe or another ----


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", COMMON_THEN_EVERY)
def test_one_capture_serves_many_shapes(name, captures):
    case = CASES[name]
    D = derive_function(case.program, *case.arguments())
    for row in range(len(case.rows)):
        for seed in (0, 1):
            D.apply(*case.arguments(row, seed=seed))

    assert len(captures) == case.captures


def test_examples_are_not_captured_again(captures):
    x = normal(4, 3)
    derive_function(scaled, x, 2.0).apply(x, 2.0)

    assert len(captures) == 1


KIND = [
    ((normal(5, 3), 2.0), True),
    ((normal(4, 3), 2.0), True),
    ((normal(3, 4).detach().T.requires_grad_(), 2.0), False),
    ((normal(4, 3, 2), 2.0), False),
    ((normal(4, 3, needs=False), 2.0), False),
    ((normal(4, 3, dtype=torch.float32), 2.0), False),
    ((normal(4, 3), 3.0), False),
    ((normal(4, 3), 2), False),
    ((normal(4, 3), normal(3)), False),
]


@pytest.mark.parametrize(("args", "same"), KIND, ids=range(len(KIND)))
def test_recipe_is_shared_by_calls_of_a_kind(args, same):
    recipes = Recipes(scaled, "auto")
    first, _ = recipes.find((normal(4, 3), 2.0))
    second, tensors = recipes.find(args)

    assert (second is first) == same
    assert tensors == [arg for arg in args if isinstance(arg, torch.Tensor)]
    assert recipes.find(args)[0] is second


def switched(x, flag):
    """One of three ways, told apart by the type and the sign of a number."""
    if flag is True:
        return x.sin()
    return torch.copysign(x, torch.full_like(x, flag))


def test_plain_values_are_told_apart_exactly():
    x = normal(3)
    D = derive_function(switched, x, 1.0)
    for flag in (1.0, 1, True, 0.0, -0.0):
        assert differences(D.apply(x, flag), switched(x, flag), tolerance=0) == [], flag


def test_value_that_is_not_itself_is_captured_once(captures):
    def filled(x, value):
        return torch.nan_to_num(x + value, nan=1.0) * x

    x = normal(3)
    D = derive_function(filled, x, float("nan"))
    for _ in range(3):
        D.apply(x, float("nan"))

    assert len(captures) == 1


@pytest.mark.parametrize(
    "option",
    [{"factor": 2.0}, {"factor": torch.tensor(2.0, dtype=torch.float64)}, (2.0, None), [3.0]],
    ids=["dict", "dict of tensors", "tuple", "list"],
)
def test_arguments_may_be_nested(option):
    def program(x, option):
        factor = option["factor"] if isinstance(option, dict) else option[0]
        return torch.sin(x) * factor

    x = normal(3)
    D = derive_function(program, x, option)

    assert differences(D.apply(x, option), program(x, option), tolerance=0) == []
    assert differences(pulled(D.apply, (x, option)), pulled(program, (x, option))) == []


def test_slice_is_a_plain_value():
    def part(x, rows):
        return x[rows].sin()

    x = normal(4, 3)
    D = derive_function(part, x, slice(0, 2))
    for rows in (slice(0, 2), slice(1, 4)):
        assert differences(D.apply(x, rows), part(x, rows), tolerance=0) == []


def test_branches_may_use_other_closures():
    left, right = normal(3), normal(3)

    def program(x, side):
        return x * left if side == "left" else x * right**2

    x = normal(3)
    D = derive_function(program, x, "left")
    for side in ("left", "right"):
        got, expected = (
            torch.autograd.grad(f(x, side).sum(), (x, left, right), allow_unused=True)
            for f in (D.apply, program)
        )
        assert differences(got, expected) == [], side


def test_closure_that_is_bound_anew_is_seen():
    scale = torch.tensor(2.0, dtype=torch.float64)

    def program(x):
        return x * scale

    x = normal(3)
    D = derive_function(program, x)
    scale = torch.tensor(5.0, dtype=torch.float64)

    assert differences(D.apply(x), program(x), tolerance=0) == []


def test_module_may_change_after_it_is_derived():
    module = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).double()
    x = normal(4, 3)
    D = derive_function(module, x)
    module.eval()
    apart = differences(D.apply(x), module(x), tolerance=0)
    module[0].weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    got, expected = (
        torch.autograd.grad(f(x).sum(), (x, *module.parameters())) for f in (D.apply, module)
    )
    module.requires_grad_(False)

    assert apart == []
    assert differences(got, expected) == []
    assert not D.apply(x.detach()).requires_grad


def test_object_that_changes_is_another_argument():
    options = types.SimpleNamespace(scale=2.0)

    def program(x, options):
        return x * options.scale

    x = normal(3)
    D = derive_function(program, x, options)
    options.scale = 5.0

    assert differences(D.apply(x, options), 5 * x, tolerance=0) == []


def test_closure_bound_anew_does_not_touch_old_graphs():
    scale = normal(3)

    def program(x):
        return (x * scale).sin()

    def with_old(x, old=scale):
        return (x * old).sin()

    def second(out):
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    x = normal(3)
    out = derive_function(program, x).apply(x)
    scale = normal(3)

    assert differences(second(out), second(with_old(x))) == []


def test_default_dtype_is_part_of_a_kind():
    def program(x):
        return x * torch.linspace(0, 1, 3)

    x = normal(3, dtype=torch.float32)
    D = derive_function(program, x)
    try:
        torch.set_default_dtype(torch.float64)
        got = D.apply(x)
    finally:
        torch.set_default_dtype(torch.float32)

    assert got.dtype == torch.float64


def test_decision_on_sizes_makes_two_recipes(captures):
    def program(x):
        return x.sin() if x.shape[0] > 3 else x.cos()

    D = derive_function(program, normal(2))
    for size in (2, 3, 4, 9):
        x = normal(size)
        assert differences(pulled(D.apply, (x,)), pulled(program, (x,))) == []

    assert len(captures) == 2


# ---- keeping ----


def test_oldest_recipe_goes_when_there_are_many(captures):
    recipes = Recipes(scaled, "inputs")
    x = normal(2)
    first, _ = recipes.find((x, 0.5))
    captures.clear()
    for number in range(MOST_KINDS):
        recipes._kinds[number] = []
    recipes.find((x, 1.5))

    assert len(recipes._kinds) <= MOST_KINDS
    assert recipes.find((normal(7), 0.5))[0] is not first


def test_threads_capture_one_kind_once(captures):
    recipes = Recipes(scaled, "auto")
    start = threading.Barrier(4)
    found = []

    def work():
        x = normal(4, 3)
        start.wait()
        found.append(recipes.find((x, 2.0))[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(captures) == 1
    assert found == [found[0]] * 4


def test_program_that_changes_is_refused():
    calls = []

    def unsteady(x):
        calls.append(1)
        return x * len(calls)

    with pytest.raises(DifferingCaptureError):
        derive_function(unsteady, normal(3))


# ---- running one ----


def test_general_recipe_pulls_every_gradient():
    case = CASES["swiglu"]
    arguments = case.arguments(needs=False)
    recipe = Recipes(case.program, "auto").general(arguments)
    outputs, saved, numbers = recipe.run(list(arguments))
    cotangents = weights_for(outputs)
    got = recipe.pull(saved, numbers, cotangents)
    expected = pulled(case.program, case.arguments())

    assert [one.needs for one in recipe.captured.inputs] == [True, True, True]
    assert len(saved) == recipe.saved_count
    assert len(numbers) == len(recipe.parts.cut.numbers)
    assert differences(outputs, case.program(*arguments), tolerance=0) == []
    assert differences(got, expected) == []


@pytest.mark.parametrize("save", ["auto", "inputs", "everything", 10**6])
def test_policy_decides_what_is_saved(save):
    case = CASES["mlp"]
    arguments = case.arguments()
    recipe, tensors = Recipes(case.program, save).find(arguments)
    saved = recipe.run(tensors)[1]
    kept = [t for t in saved if not any(t is x for x in inputs_of(arguments))]

    assert [list(t.shape) for t in kept] == ([] if save == "inputs" else [[4, 5]])


# ---- what a program keeps, and what has no gradient ----


class Cached(torch.nn.Module):
    """Makes a table at its first call, and a longer one when it must."""

    def __init__(self):
        super().__init__()
        self.table = None

    def forward(self, x):
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.arange(x.shape[0], dtype=x.dtype).cos()
        return x * self.table[: x.shape[0], None]


def test_table_of_the_first_call_is_real():
    module = Cached()
    derived = derive_function(module, torch.randn(4, 2, requires_grad=True))
    for rows in (4, 9, 3):
        x = torch.randn(rows, 2, requires_grad=True)

        assert torch.equal(derived.apply(x), Cached()(x))
    assert type(module.table) is torch.Tensor


class Watched(torch.nn.Module):
    """Keeps what it computed last."""

    def forward(self, x):
        self.last = x.softmax(-1)
        return self.last * x


def test_tensor_kept_for_later_is_refused():
    with pytest.raises(CaptureError) as caught:
        derive_function(Watched(), torch.randn(3, requires_grad=True))

    assert str(caught.value) == (
        "E301 capture: `Watched` must not keep the tensors of a call for later to be derived\n"
        "  got:      a tensor from inside it that can be reached from outside it after the call\n"
        "  fix:      return it as one more output"
    )


def test_input_without_derivative_is_no_hindrance():
    def program(x, mean, var):
        return torch.nn.functional.batch_norm(x, mean, var)

    x, mean, var = torch.randn(5, 3, requires_grad=True), torch.zeros(3), torch.full((3,), 4.0)
    derived = derive_function(program, x, mean, var)
    (got,) = torch.autograd.grad(derived.apply(x, mean, var).sum(), x)

    assert torch.allclose(got, torch.full_like(x, 0.5))
    assert "grad_mean" not in derived.source()


def test_strict_recipes_refuse_what_changes_unseen():
    def program(x):
        return x * len(tempfile.gettempdir()[:0])

    x = torch.randn(3, requires_grad=True)
    Recipes(program, "auto").general((x,))
    with pytest.raises(CaptureError) as caught:
        Recipes(program, "auto", is_strict=True).general((x,))

    assert str(caught.value) == (
        "E301 capture: `program` must read from outside it only what can be looked at\n"
        "  got:      something that can change unseen\n"
        "  fix:      pass it as an argument; many numbers as a tensor"
    )


ENDLESS = itertools.repeat(2.0)
MANY = [float(i) for i in range(100_001)]


def by_iterator(x):
    return x * next(ENDLESS)


def by_many(x):
    return x * MANY[3]


@pytest.mark.parametrize(
    ("program", "got"),
    [
        (by_iterator, "an iterator, which every read changes (`repeat`)"),
        (by_many, "more than 100,000 things in lists, dicts and objects"),
    ],
)
def test_what_no_look_can_compare_is_refused(program, got):
    with pytest.raises(CaptureError) as caught:
        derive_function(program, torch.randn(3, requires_grad=True))

    assert str(caught.value) == (
        f"E301 capture: `{program.__name__}` must read from outside it only what can be looked at\n"
        f"  got:      {got}\n"
        "  fix:      pass it as an argument; many numbers as a tensor"
    )
