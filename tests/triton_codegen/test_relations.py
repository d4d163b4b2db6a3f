"""Relations between sizes: those that always hold or follow from others go, the rest is short."""

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv

from pullback.triton_codegen.relations import least_conditions

N, M = sympy.symbols("n m", integer=True, positive=True)


def kept(one):
    return sympy.Le(one[0], one[1], evaluate=False)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, N), (FloorDiv(N, 2), N), (2 * FloorDiv(N, 2), N), (0, N - FloorDiv(N + 1, 2))],
)
def test_what_always_holds_is_not_asked_for(low, high):
    assert least_conditions([kept((low, high))]) == []


def test_a_size_may_be_zero():
    assert list(map(str, least_conditions([kept((1, N))]))) == ["1 <= n"]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(8, N, "8 <= n"), (N, 7, "n <= 7"), (-N, -4, "4 <= n"), (5, 2 * N, "3 <= n")],
)
def test_bounds_on_one_size_are_short(low, high, said):
    assert list(map(str, least_conditions([kept((low, high))]))) == [said]


def test_narrower_bound_is_left():
    assert list(map(str, least_conditions([kept((2, N)), kept((8, N)), kept((3, N))]))) == [
        "8 <= n"
    ]


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        (FloorDiv(N, 2), N - FloorDiv(N, 2), "Eq(Mod(n, 2), 0)"),
        (N, 4 * FloorDiv(N, 4), "Eq(Mod(n, 4), 0)"),
        (FloorDiv(N + 1, 2), N - FloorDiv(N + 1, 2), "Eq(Mod(n, 2), 0)"),
    ],
)
def test_equal_parts_are_said_by_the_rest(one, two, said):
    equal = sympy.Eq(one, two, evaluate=False)

    assert list(map(str, least_conditions([equal]))) == [said]


def test_what_follows_from_rests_is_not_asked_for():
    even = sympy.Eq(sympy.Mod(N, 2), 0, evaluate=False)
    halves = kept((N - FloorDiv(N, 2), FloorDiv(N, 2)))

    assert least_conditions([even, halves]) == [even]


def test_sizes_that_nothing_else_ties_stay_tied():
    tied = sympy.Eq(N, 2 * M, evaluate=False)

    assert least_conditions([tied]) == [tied]
