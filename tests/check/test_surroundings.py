"""A check says the same in whatever modes it is asked for, and asks for tensors with values."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import pullback as pb
from pullback.errors import ExamplesError
from tests.check import functions as f
from tests.check.subjects import normal

AROUND = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device meta": lambda: torch.device("meta"),
    "fake tensors": FakeTensorMode,
    "saved hooks": lambda: torch.autograd.graph.saved_tensors_hooks(abs, lambda t: t),
}
SELECT = ["gradient", "contract", "wrong-under-no-grad"]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", AROUND)
def test_sound_function_is_sound_in_every_mode(name):
    x = normal(5)
    with AROUND[name]():
        report = pb.check(f.Square, (x,), select=SELECT)
        here = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    assert report.ok, str(report)
    assert report.findings == report.lost == ()
    assert here == (name not in ("no_grad", "inference_mode"), name == "inference_mode")


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", AROUND)
def test_fault_is_found_in_every_mode(name):
    x = normal(5)
    with AROUND[name]():
        report = pb.check(f.HalfSquare, (x,), select=SELECT)

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


def test_inputs_made_in_inference_mode_are_taken():
    with torch.inference_mode():
        report = pb.check(f.HalfSquare, (torch.randn(5, dtype=torch.float64),), select=SELECT)

    assert [finding.rule.name for finding in report.findings] == ["wrong-factor"]


def nested(layout):
    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    return torch.nested.nested_tensor(rows, layout=layout, requires_grad=True)


def fake():
    with FakeTensorMode():
        return torch.randn(3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: nested(torch.strided), "a nested tensor with layout torch.strided"),
        (lambda: nested(torch.jagged), "a nested tensor with layout torch.jagged"),
        (lambda: torch.randn(3, device="meta"), "a tensor on the device meta"),
        (fake, "a fake tensor"),
    ],
    ids=["strided", "jagged", "meta", "fake"],
)
def test_tensor_without_values_is_refused(make, got):
    with pytest.raises(ExamplesError) as raised:
        pb.check(f.Square, (make(),))

    assert str(raised.value) == (
        "E403 examples: the inputs of `Square` must be tensors that have sizes and values\n"
        f"  got:      {got}\n"
        "  fix:      check with a plain tensor of the same kind, such as torch.randn(3, 4)"
    )
