"""G109: outputs and gradients beside those of a reference."""

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import pullback as pb
from pullback.errors import DeclarationError, TargetError


def rms_norm(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def function_of(forward):
    """A Function with this forward, and the backward that fits it."""

    class Norm(Function):
        @staticmethod
        def forward(ctx, x, eps=1e-6):
            ctx.save_for_backward(x)
            ctx.eps = eps
            return forward(x, eps)

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                (grad,) = torch.autograd.grad(forward(y, ctx.eps), y, g)
            return grad, None

    return Norm


def without_root(x, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps)


def wrong_when_long(x, eps):
    return rms_norm(x, eps) * (1 if x.shape[-1] < 8 else 2)


def coarse(x, eps):
    return rms_norm(x.half(), eps).to(x.dtype)


class WrongGradient(Function):
    """Its forward agrees with the reference."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + x)


def findings(function, reference, *args):
    report = pb.check(function, args, reference=reference, select=["differs-from-reference"])
    return [str(finding.at) for finding in report.findings]


def row(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


SOUND = {
    str(dtype): (function_of(rms_norm), rms_norm, row(4, 6, dtype=dtype))
    for dtype in (torch.float64, torch.float32, torch.bfloat16)
}

PLANTED = {
    "a root left out": (function_of(without_root), rms_norm, "output 0"),
    "wrong at larger sizes": (function_of(wrong_when_long), rms_norm, "output 0"),
    "half precision inside": (function_of(coarse), rms_norm, "output 0"),
    "a wrong gradient": (WrongGradient, torch.exp, "gradient of `x`"),
}


@pytest.mark.parametrize("name", SOUND)
def test_same_function_has_no_finding(name):
    assert findings(*SOUND[name]) == []


@pytest.mark.parametrize("name", PLANTED)
def test_other_function_is_found(name):
    function, reference, where = PLANTED[name]

    assert findings(function, reference, row(4, 6))[0].startswith(where)


def test_wrong_forward_is_seen_by_no_other_rule():
    assert pb.check(function_of(without_root), (row(4, 6),)).of("wrong") == ()


def test_other_shape_is_found():
    report = pb.check(
        function_of(rms_norm),
        (row(4, 6),),
        reference=lambda x: rms_norm(x).sum(0),
        select=["differs-from-reference"],
    )

    assert "[6]" in str(report.findings[0].expected)


def test_reference_that_raises_is_said():
    def refuses(x):
        raise ValueError("only for squares")

    report = pb.check(function_of(rms_norm), (row(4, 6),), reference=refuses)

    assert any("the reference raised: ValueError" in skip.reason for skip in report.skips)


def test_bad_reference_and_declaration_are_named():
    with pytest.raises(TargetError, match="the reference of `Norm` must be something"):
        pb.check(function_of(rms_norm), (row(4, 6),), reference=3)
    with pytest.raises(DeclarationError, match="keys out of surrogate"):
        pb.check(function_of(rms_norm), (row(4, 6),), declares={"surogate": "x"})


def test_declaration_may_stand_outside_of_the_class():
    report = pb.check(WrongGradient, (row(4),), declares={"surrogate": "x"})

    assert report.of("wrong") == ()
    assert pb.check(WrongGradient, (row(4),)).of("wrong") != ()
