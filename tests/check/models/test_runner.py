"""A model is checked as a whole, and each Function inside once, by its path."""

from pathlib import Path

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.check.models.rules import model_rules
from tests.check.models.models import Calling, Net, Stretched, Swish, batch

OWN = ("model",)  # the rules of this folder alone


def own(module, *inputs, **options):
    return pb.check(module, inputs or (batch(),), profile="quick", select=OWN, **options)


def scaled(module, h):
    return h * module.scale


SOUND = {
    "linear": lambda: nn.Linear(4, 2),
    "net": Net,
    "used parameter": lambda: Calling(scaled),
    "kinks": lambda: nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3)),
    "random and running means": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)
    ),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "straight through": lambda: Calling(lambda m, h: (h + (h.round() - h).detach()) * m.scale),
    "frozen": lambda: Calling(lambda m, h: h * m.scale).requires_grad_(False),
    "zeros": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()).apply(
        lambda m: [nn.init.zeros_(p) for p in m.parameters(recurse=False)]
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_has_no_finding(name):
    torch.manual_seed(1)
    module = SOUND[name]()
    x = batch(2, 5, 4) if name == "attention" else batch()

    report = own(module, x)

    assert report.findings == ()
    assert report.subject == type(module).__name__


def test_surrogate_inside_a_model_is_no_wrong_gradient():
    class Straight(torch.autograd.Function):
        declares = {"surrogate": "x"}  # noqa: RUF012

        @staticmethod
        def forward(ctx, x):
            return x * x.sigmoid()

        @staticmethod
        def backward(ctx, g):
            return 1.5 * g

    undeclared = type("Straight", (Straight,), {"declares": {}})

    assert own(Calling(lambda m, h: Straight.apply(h) * m.scale)).ok
    assert not own(Calling(lambda m, h: undeclared.apply(h) * m.scale)).ok


def test_cut_parameter_is_named_with_the_call_that_cuts_it():
    (finding,) = own(Calling(lambda m, h: h * m.scale.detach()))

    assert finding.rule.name == "cut-in-model"
    assert "`scale`" in finding.at
    assert "`detach` in `Calling`" in finding.at
    assert finding.place.endswith(f"test_runner.py:{line_of('m.scale.detach()')}")


def line_of(text):
    lines = Path(__file__).read_text("utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_no_grad_around_a_layer_cuts_it():
    def function(m, h):
        with torch.no_grad():
            return m.lin(h) * 2

    report = own(Calling(lambda m, h: function(m, h) + h * 0 * m.scale))

    assert report.findings == ()  # `lin` is used on another way as well
    assert any("cut at" in note for note in report.notes)


def test_unused_parameter_is_named():
    (finding,) = own(Calling(lambda m, h: h.sin()))

    assert (finding.rule.name, finding.weight.value) == ("unused-parameter", "wasteful")
    assert "`scale`" in finding.at


def test_input_that_is_cut_is_named_only_where_its_gradient_was_asked_for():
    module = nn.Sequential(nn.Identity())
    module.forward = lambda x: x.detach() * torch.ones(4, requires_grad=True)

    (finding,) = own(module, batch().requires_grad_())

    assert "the input" in finding.at
    assert own(module, batch()).findings == ()


def test_wrong_gradient_through_a_function_is_blamed_on_it():
    (finding,) = own(Calling(lambda m, h: Stretched.apply(h) * m.scale))

    assert finding.rule.name == "wrong-in-model"
    assert "`Stretched`" in finding.at


def test_fault_that_the_function_has_by_itself_is_told_once():
    report = pb.check(
        Calling(lambda m, h: Stretched.apply(h) * m.scale), (batch(),), profile="quick"
    )
    wrong = report.of("wrong")

    assert {finding.subject for finding in wrong} == {"Stretched"}
    assert {finding.facts["called"] for finding in wrong} == {"at `Calling`"}


def test_first_nan_of_forward_is_found():
    def function(m, h):
        bad = (h - h) / (h - h)
        return (bad + 1) * m.scale

    (finding,) = own(Calling(function))

    assert finding.rule.name == "not-finite-in-model"
    assert "forward" in finding.at
    assert finding.place.endswith(f"test_runner.py:{line_of('bad = (h - h)')}")


def test_first_nan_of_backward_is_found():
    def function(m, h):
        zero = (h - h.detach()).abs()
        root = zero.sqrt()
        return torch.where(zero > 0, root, h) * m.scale

    (finding,) = own(Calling(function))

    assert finding.rule.name == "not-finite-in-model"
    assert "backward" in finding.at
    assert "sqrt" in finding.at


def test_masks_of_minus_infinity_are_no_fault():
    def function(m, h):
        mask = torch.zeros(4, dtype=torch.bool)
        mask[0] = True
        return h.masked_fill(mask, float("-inf")).softmax(-1) * m.scale

    assert own(Calling(function)).findings == ()


# ---- what is inside ----


def test_hundred_layers_are_one_check_of_the_function():
    report = pb.check(Net(100), (batch(),), profile="quick")
    (use,) = report.functions

    assert (use.name, use.calls, use.signatures) == ("Swish", 100, 1)
    assert use.places[:2] == ("layers.0.act", "layers.1.act")
    assert report.tried["functions"] == 1
    assert report.tried["runs"] < 1000


def test_one_module_for_all_layers_has_the_path_of_each():
    (use,) = pb.check(Net(3, act=Net().layers[0].act), (batch(),), profile="quick").functions

    assert use.places == ("layers.0.act", "layers.1.act", "layers.2.act")


def test_each_signature_is_an_example():
    class Two(nn.Module):
        def forward(self, x):
            return Swish.apply(x).sum() + Swish.apply(x[:2]).sum()

    (use,) = pb.check(Two(), (batch(),), profile="quick").functions

    assert (use.calls, use.signatures) == (2, 2)


def test_bytes_are_those_that_backward_keeps():
    (use,) = pb.check(Net(3), (batch(),)).functions

    kept = 5 * 4 * 4  # x, s and the slope are kept, in float32
    assert use.saved == 3 * 3 * kept
    assert use.fewer_derived == 3 * 2 * kept  # the derived one keeps x
    assert use.fewer_combined["layers.0"] > 0


def test_model_is_left_as_it_was():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in module.state_dict().items()}

    pb.check(module, (batch(),), profile="quick")

    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    assert not module[0]._forward_pre_hooks


def test_inputs_that_a_model_refuses_are_an_error():
    with pytest.raises(pb.PullbackError, match="must accept the inputs") as caught:
        pb.check(nn.Linear(4, 2), (batch(5, 3),))

    assert "shapes cannot be multiplied" in str(caught.value)


def test_every_rule_of_a_model_is_tested_here():
    text = Path(__file__).read_text("utf-8")

    assert [r.rule.name for r in model_rules() if f'"{r.rule.name}"' not in text] == []
