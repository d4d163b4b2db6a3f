"""Results are right up to rounding that their dtype, length and condition allow, and not beyond."""

import pytest
import torch

from pullback.candidates.comparing import EntryPattern, digest_of, rounded_truths, truth_of
from pullback.judge.example import example_of


def program(x, w):
    return torch.tanh(x @ w).sum(-1)


DRAWN = torch.Generator().manual_seed(4)
ARGS = (torch.randn(8, 32, generator=DRAWN), torch.randn(32, 16, generator=DRAWN))


def compared(candidate, args=ARGS, reference=program, gradients=False):
    example = example_of(args)
    names = ["x", "w"] if gradients else []
    truth = truth_of(reference, example, 3, names, gradients=gradients)
    got = candidate(*example.fresh(needs=frozenset()))
    got = list(got) if isinstance(got, tuple) else [got]
    rounded = lambda: rounded_truths(reference, example, 3, truth.plain, gradients=gradients)  # noqa: E731
    return truth.compare(got, rounded)


def test_reference_itself_is_right():
    assert compared(program).status == "right"


def test_sums_in_another_order_are_right():
    def other(x, w):
        y = torch.zeros(8, 16)
        for k in range(32):
            y = y + x[:, k : k + 1] * w[k]
        return torch.tanh(y).flip(-1).sum(-1)

    assert compared(other).status == "right"


def test_long_sums_one_by_one_are_right():
    x = torch.rand(4096)

    def one_by_one(x):
        return torch.tensor(sum(x.tolist()), dtype=torch.float32)

    assert compared(one_by_one, (x,), lambda x: x.sum()).status == "right"
    assert compared(lambda x: x.cumsum(0)[-1], (x,), lambda x: x.sum()).status == "right"


@pytest.mark.parametrize("factor", [1.0002, 0.999])
def test_a_factor_is_wrong(factor):
    found = compared(lambda x, w: program(x, w) * factor)

    assert found.status == "wrong"
    assert found.share > 0.5


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")]
)
def test_rounded_inputs_are_named(dtype, name):
    found = compared(lambda x, w: program(x.to(dtype).float(), w.to(dtype).float()))

    assert (found.status, found.pattern) == ("wrong", EntryPattern.ROUNDED_INPUTS)
    assert found.rounded_to == name


def test_coarse_results_are_named():
    args = (torch.randn(64, 32, generator=DRAWN), torch.randn(32, 64, generator=DRAWN) / 6)

    def plain(x, w):
        return torch.tanh(torch.tanh(x @ w) @ w.T)

    def coarse(x, w):
        return torch.tanh(torch.tanh(x @ w).half().float() @ w.T)

    found = compared(coarse, args, plain)

    assert found.status == "wrong"
    assert (found.pattern, found.rounded_to) == (EntryPattern.ROUNDED, "float16 or TF32")


def test_a_factor_near_one_is_no_rounding():
    args = (torch.randn(64, 32, generator=DRAWN), torch.randn(32, 64, generator=DRAWN))

    assert compared(lambda x, w: 0.998 * (x @ w), args, torch.matmul).pattern is EntryPattern.OTHER


def test_half_precision_asked_for_is_right():
    args = tuple(arg.bfloat16() for arg in ARGS)

    assert compared(lambda x, w: program(x.float(), w.float()).bfloat16(), args).status == "right"


def test_some_zeros_are_named():
    found = compared(lambda x, w: torch.cat([program(x, w)[:6], torch.zeros(2)]))

    assert (found.status, found.pattern, found.share) == (
        "wrong",
        EntryPattern.ZEROS,
        0.25,
    )


def test_nan_is_noted():
    found = compared(lambda x, w: program(x, w) * float("nan"))

    assert (found.pattern, found.has_nan) == (EntryPattern.NOT_FINITE, True)


def test_other_shapes_and_dtypes_are_told():
    assert compared(lambda x, w: program(x, w)[:3]).status == "shape"
    assert compared(lambda x, w: program(x, w).double()).expected == "float32[8]"
    assert compared(lambda x, w: (program(x, w), x)).status == "shape"


def test_gradients_are_compared():
    def candidate(x, w):
        x, w = x.requires_grad_(), w.requires_grad_()
        out = program(x, w)
        from pullback.candidates.calling import cotangents_for

        gx, gw = torch.autograd.grad(out, (x, w), cotangents_for([out], 3))
        return out.detach(), gx, 1.01 * gw

    found = compared(candidate, gradients=True)

    assert found.what == "gradient of w"


def test_missing_gradient_is_absent():
    found = compared(lambda x, w: (program(x, w), None, None), gradients=True)

    assert found.status == "absent"


def test_integers_must_be_equal():
    args = (torch.randn(50),)

    assert compared(lambda x: x.argsort(), args, lambda x: x.argsort()).status == "right"
    assert compared(lambda x: x.argsort() + 1, args, lambda x: x.argsort()).status == "wrong"


def test_digest_is_of_numbers_and_shape():
    x = torch.arange(6.0)

    assert digest_of([x]) == digest_of([x.clone()])
    assert (
        len({digest_of([t]) for t in (x, x + 1, x.view(2, 3), x.double())} | {digest_of([None])})
        == 5
    )
