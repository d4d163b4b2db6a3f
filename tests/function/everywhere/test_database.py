"""PyTorch's own database of Functions, rebuilt on ours: whatever passes there passes here."""

from functools import cache

import pytest
import torch

import pullback as pb

pytest.importorskip("expecttest", reason="PyTorch's test database cannot be imported without it")

from tests.function.everywhere.compare import assert_equal, flat
from tests.function.everywhere.database import CHECKS, operators, problems, rebuilt, samples

TORCH = torch.autograd.Function

NUMERICAL = ("numerical", "numerical_batched")
FORWARD = ("numerical_forward", "numerical_forward_over_reverse", "func_jvp", "jvp_of_grad")
BATCHED = (
    "func_jacfwd",
    "func_hessian",
    "vmap_like_a_loop",
    "vmap_over_last_dim",
    "vmap_of_grad",
    "grad_of_vmap",
    "vmap_of_jvp",
)

# (operator, checks) that fail for `torch.autograd.Function` too, by the database's own text.
FAILING = (
    # Its backward ignores the cotangent; it has neither a jvp nor a batching rule.
    ("NumpyCubeNotComposable", (*NUMERICAL, "numerical_twice", *FORWARD, *BATCHED)),
    # Returns its input unsorted.
    ("NumpySort", (*NUMERICAL, "numerical_forward")),
    # Its backward adds a term that is not multiplied by the cotangent.
    ("CubeGenVmap", (*NUMERICAL, "numerical_twice")),
    # Wrong on purpose.
    ("ScaleGradGenVmap", (*NUMERICAL, "numerical_forward")),
    ("ZeroGradientsGenVmap", (*NUMERICAL, "numerical_forward")),
    # The vmap of `gradcheck(check_batched_grad=True)` cannot enter numpy.
    ("NumpyCube", ("numerical_batched",)),
    ("NumpyExpMarkDirty", ("numerical_batched",)),
    ("NumpyMul", ("numerical_batched",)),
    ("NumpyTake", ("numerical_batched",)),
    # Multiplies an unbatched tangent in place by a batched output.
    ("NumpyExpMarkDirty", ("vmap_of_jvp",)),
    # Reads a number from an attribute of its class, which Dynamo cannot.
    ("ScaleGradGenVmap", ("compiled",)),
    # Leaves a default of forward to be filled in, which Dynamo cannot.
    ("ForwardHasDefaultArgs", ("compiled",)),
)

NAMES = sorted(operators(rebuilt(TORCH)))


@cache
def database(base: type, compiled: bool) -> dict:
    """The operators by name; without their jvp, which Dynamo refuses, where they are compiled."""
    return operators(rebuilt(base, without=("jvp",) if compiled else ()))


def result_of(check: str, name: str, base: type) -> list:
    info = database(base, compiled=check.startswith("compiled"))[name]
    return [CHECKS[check](f, xs) for f, xs in problems(info)]


def fails(check: str, name: str) -> bool:
    return any(name == operator and check in checks for operator, checks in FAILING)


def cases(failing: bool) -> list[tuple[str, str]]:
    return [(check, name) for check in CHECKS for name in NAMES if fails(check, name) is failing]


def test_database_has_fourteen_operators():
    assert len(NAMES) == 14


def test_every_class_is_rebuilt_on_our_base():
    rebuilt_classes = [
        value
        for value in vars(rebuilt(pb.Function)).values()
        if isinstance(value, type) and issubclass(value, TORCH) and value is not pb.Function
    ]

    assert len(rebuilt_classes) >= 14
    assert [issubclass(value, pb.Function) for value in rebuilt_classes] == [True] * len(
        rebuilt_classes
    )


@pytest.mark.quick(90)
@pytest.mark.filterwarnings("ignore", r"error:W\d{3} [a-z]")
@pytest.mark.parametrize(("check", "name"), cases(failing=False))
def test_our_class_agrees_with_torch(check, name):
    actual = result_of(check, name, pb.Function)

    assert_equal(actual, result_of(check, name, TORCH))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("check", "name"), cases(failing=True))
def test_torch_fails_where_it_is_recorded(check, name):
    with pytest.raises((RuntimeError, NotImplementedError, torch._dynamo.exc.Unsupported)):
        result_of(check, name, TORCH)


def outcome(name: str, base: type, dtype: torch.dtype) -> tuple[str, list]:
    """The kind of error that torch or numpy raises, if any, and the outputs up to there."""
    info = database(base, compiled=False)[name]
    outputs: list = []
    try:
        for sample in samples(info, dtype):
            outputs.append(flat(info.op(sample.input, *sample.args, **sample.kwargs)))
    except Exception as error:
        return type(error).__name__, outputs
    return "", outputs


@pytest.mark.parametrize("name", NAMES)
def test_values_agree_in_every_dtype(name):
    for dtype in sorted(database(TORCH, compiled=False)[name].dtypes, key=str):
        error, outputs = outcome(name, pb.Function, dtype)
        expected_error, expected = outcome(name, TORCH, dtype)

        assert error == expected_error
        assert_equal(outputs, expected)
