"""Sound functions pass `wrong-gradient`; planted faults are caught, and named."""

import pytest
import torch

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("wrong-gradient")

X, A, B = normal(3, 4), normal(5), normal(5, seed=1)
SIN = (lambda x: x.sin(), lambda g, x: g * x.cos())

SOUND = {
    "sine": (made(*SIN), (X,)),
    "product": (made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)), (A, B)),
    "wrong sign, told by another rule": (made(SIN[0], lambda g, x: -g * x.cos()), (X,)),
    "on purpose": (
        made(lambda x: x.round(), lambda g, x: g, declares={"surrogate": "x"}),
        (X,),
    ),
}


class SavedInHalf(torch.autograd.Function):
    """A product whose gradients come from inputs that were rounded to be saved."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a.half(), b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * b, g * a.to(g.dtype)


def written_past_autograd(x, v):
    """`x` with its second entry as `v`, of which autograd sees nothing."""
    out = x.clone()
    out.data[1] = v.detach()
    return out


# Forward cuts its own graph, and backward agrees with the cut: differences of forward show it.
CUT = {
    "detached in both": (made(lambda x: x * x.detach(), lambda g, x: g * x), (A,)),
    "through numpy in both": (
        made(lambda x: x * torch.from_numpy(x.detach().numpy().copy()), lambda g, x: g * x),
        (A,),
    ),
    "written past autograd": (
        made(written_past_autograd, lambda g, x, v: (g, torch.zeros_like(v))),
        (A, normal()),
    ),
}
PLANTED = {
    **{name: (*row, "gradient of `x`") for name, row in CUT.items()},
    "saved in half": (SavedInHalf, (A, B), "gradient of `b`"),
    "missing term": (
        made(lambda x: x * x.sin(), lambda g, x: g * x.sin()),
        (X,),
        "gradient of `x`",
    ),
    "second of two": (
        made(lambda a, b: a * b.exp(), lambda g, a, b: (g * b.exp(), g * a * b)),
        (A, B),
        "gradient of `b`",
    ),
    "one entry": (
        made(lambda x: x.exp(), lambda g, x: (g * x.exp()).index_fill(0, torch.tensor([1]), 1.5)),
        (A,),
        "at [1], wrong in 1 of 5 entries",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_finding_says_what_it_must_be():
    (finding,) = findings(check, PLANTED["missing term"][0], torch.tensor([0.5]).double())

    assert float(finding.got) / float(finding.expected) == pytest.approx(0.5221, rel=1e-3)


@pytest.mark.parametrize("name", CUT)
def test_what_autograd_gives_is_no_advice_where_forward_hides_from_it(name):
    target, args = CUT[name]
    for finding in findings(check, target, *args):
        assert "hides" in finding.why
        assert "derived" not in finding.fix


@pytest.mark.parametrize("name", CUT)
def test_gradcheck_finds_a_cut_too(name):
    target, args = CUT[name]
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(target.apply, args)


def test_edit_says_for_which_arguments_the_gradient_is_right():
    class Loss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, reduction):
            ctx.save_for_backward(x)
            ctx.reduction = reduction
            return x.square().mean() if reduction == "mean" else x.square().sum()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (3 * x / x.numel() if ctx.reduction == "mean" else 2 * x), None

    (finding,) = findings(check_of("wrong-factor"), Loss, X, "mean")

    assert finding.fix.endswith("? Not for `reduction` as 'sum': there it is right")


def test_op_is_not_blamed_for_what_autograd_does_not_see():
    @torch.library.custom_op("wrong_gradient::cap", mutates_args=())
    def cap(x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    def backward(ctx, g):
        return g * (1 - ctx.saved_tensors[0]) ** 2

    cap.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output)
    )
    (finding,) = findings(check, cap, X)

    assert finding.rule.name == "wrong-gradient"
    assert finding.why == ""
