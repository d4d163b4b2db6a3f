"""What is spelled gives back the very same value, in its layout."""

import pytest
import torch

from pullback.check.target.spelling import UnspeakableError, imported, spelled
from pullback.check.target.target import target_of
from tests.check import functions as f

WIDE = torch.arange(12, dtype=torch.float32).reshape(3, 4)

VALUES = {
    "float32": torch.tensor([0.1, -2.5, 1e-20]),
    "float64": torch.tensor([1 / 3, 0.1], dtype=torch.float64),
    "bfloat16": torch.tensor([0.1, 3.0], dtype=torch.bfloat16),
    "special": torch.tensor([float("inf"), -float("inf"), -0.0]),
    "integers": torch.tensor([[1, 2], [3, 4]]),
    "small integers": torch.tensor([1, 2], dtype=torch.int32),
    "booleans": torch.tensor([True, False]),
    "scalar": torch.tensor(2.5),
    "complex": torch.tensor([1 + 2j, -0.5j]),
    "conjugate": torch.tensor([1 + 2j, -0.5j]).conj(),
    "empty": torch.zeros(0, 3, dtype=torch.float64),
    "constant": torch.full((10, 10), 0.25),
    "transposed": WIDE.t(),
    "sliced": WIDE[:, 1:3],
    "offset": WIDE.flatten()[3:],
    "expanded": torch.ones(1).expand(5),
    "list": [1, 2.5, None, "a", (True,)],
}


def is_same(one, other):
    if not isinstance(one, torch.Tensor):
        return one == other
    same = (one.dtype, one.shape, one.stride(), one.is_conj())
    return same == (other.dtype, other.shape, other.stride(), other.is_conj()) and bool(
        torch.equal(one, other)
    )


@pytest.mark.parametrize("kind", VALUES)
def test_spelling_gives_the_value(kind):
    value = VALUES[kind]

    assert is_same(eval(spelled(value), {"torch": torch}), value)


def test_nan_is_spelled():
    assert eval(spelled(torch.tensor([float("nan")])), {"torch": torch}).isnan().all()


def test_short_decimals_are_preferred():
    assert spelled(torch.tensor([0.1])) == "torch.tensor([0.1])"


@pytest.mark.parametrize("value", [object(), torch.rand(100), torch.rand(3).to_sparse()])
def test_value_without_spelling_is_refused(value):
    with pytest.raises(UnspeakableError):
        spelled(value)


def test_import_names_module_and_call():
    head, call = imported(target_of(f.HalfSquare))

    assert head.splitlines()[-1] == "from tests.check.functions import HalfSquare"
    assert call == "HalfSquare.apply"


def test_op_needs_no_import():
    assert imported(target_of(torch.ops.aten.sin))[1] == "torch.ops.aten.sin"


@torch.library.custom_op("pullback_spelled::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    "op", [doubled, torch.ops.pullback_spelled.doubled.default], ids=["definition", "op"]
)
def test_op_made_in_python_comes_with_its_module(op):
    lines, call = imported(target_of(op))
    assert lines.splitlines()[-1] == f"import {__name__}"
    assert call == "torch.ops.pullback_spelled.doubled.default"
