"""Surrogate gradients are known by their shape, and faults of the same look are still found."""

import pytest
import torch
from torch.autograd import Function

import pullback as pb
from pullback.check.subject.subject import Subject
from pullback.check.subject.surrogates import surrogates_of
from pullback.check.target.surrogate import Shape
from pullback.check.target.target import target_of
from pullback.judge.example import example_of


def made(name, forward, backward):
    return type(
        name, (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def keep(ctx, *tensors):
    ctx.save_for_backward(*tensors)


def passing(ctx, g):
    return g


# ---- surrogates ----


def rounded(ctx, x):
    return x.round()


def spike(ctx, v, threshold):
    keep(ctx, v)
    ctx.threshold = threshold
    return (v > threshold).to(torch.float32)


def fast_sigmoid(ctx, g):
    (v,) = ctx.saved_tensors
    return g / (10 * (v - ctx.threshold).abs() + 1) ** 2, None


def same(ctx, x, alpha):
    ctx.alpha = alpha
    return x.view_as(x)


def at_least(ctx, x, bound):
    keep(ctx, x, bound)
    return torch.maximum(x, bound)


def towards_the_bound(ctx, g):
    x, bound = ctx.saved_tensors
    return ((x >= bound) | (g < 0)) * g, None


def learned_step(ctx, x, s):
    keep(ctx, x, s)
    return (x / s).round().clamp(-8, 7) * s


def learned_step_back(ctx, g):
    x, s = ctx.saved_tensors
    v = x / s
    inside = (v > -8) & (v < 7)
    return g * inside, (g * torch.where(inside, v.round() - v, v.clamp(-8, 7))).sum()


def one_hot(ctx, x):
    return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


def two_levels(ctx, x):
    return x.sign(), x.abs().mean()


def another(ctx, x, other):
    return x.clone()


def rotation():
    return torch.linalg.qr(row(3, 3).detach()).Q.requires_grad_()


def sampled(ctx, g):
    (x,) = ctx.saved_tensors
    drawn = torch.multinomial(x.softmax(-1), 1)
    return torch.zeros_like(x).scatter(-1, drawn, 1.0) * g[..., None]


def on_grid(ctx, low, width):
    start = (-low / width).round()
    return -start * width, width + low.abs()


def log_sum(ctx, x):
    keep(ctx, x)
    return x.logsumexp(-1)


def row(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


def both(ctx, a, b):
    return a.clone(), b.clone()


def drawn_spikes(ctx, rate, steps):
    if rate.min() < 0 or rate.max() > 1:
        raise ValueError("rates must be between 0 and 1")
    return (torch.rand(steps, *rate.shape) < rate).to(rate.dtype)


SURROGATES = {
    "of two inputs that are returned": (
        made("Averaged", both, lambda ctx, g, h: ((g + h) / 2, (g + h) / 2)),
        (row(4, 5), (2 * row(4, 5).detach() - 0.3).requires_grad_()),
    ),
    "drawn spikes": (
        made("Drawn", drawn_spikes, lambda ctx, g: (g.sum(0), None)),
        (row(3, 4).detach().sigmoid().requires_grad_(), 6),
    ),
    "straight through": (made("Rounded", rounded, passing), (row(4, 5),)),
    "one-hot": (made("OneHot", one_hot, passing), (row(4, 5),)),
    "spike": (made("Spike", spike, fast_sigmoid), (row(4, 5), 0.5)),
    "reversal": (made("Reversed", same, lambda ctx, g: (-ctx.alpha * g, None)), (row(4, 5), 0.7)),
    "clipping": (
        made("Clipped", same, lambda ctx, g: (g.clamp(-ctx.alpha, ctx.alpha), None)),
        (row(4, 5), 0.1),
    ),
    "to another input": (
        made("Replaced", another, lambda ctx, g: (None, g)),
        (row(4, 5), row(4, 5)),
    ),
    "of a rotation": (
        made("Turned", another, lambda ctx, g: (g, 0.1 * torch.ones_like(g) * g.sum())),
        (rotation(), row(3, 3)),
    ),
    "one output of two": (
        made("TwoLevels", two_levels, lambda ctx, g, h: g),
        (row(4, 5),),
    ),
    "a clip that is passed": (
        made("Relu", lambda ctx, x: x.clamp(min=0), passing),
        (row(4, 5),),
    ),
    "an estimate": (made("Sampled", log_sum, sampled), (row(4, 5),)),
    "two outputs that are rounded": (
        made("OnGrid", on_grid, lambda ctx, g, h: (g, h)),
        (row(4), row(4).detach().abs().requires_grad_()),
    ),
    "bound": (made("AtLeast", at_least, towards_the_bound), (row(4, 5), torch.tensor(0.1))),
    "learned step": (
        made("LearnedStep", learned_step, learned_step_back),
        (row(4, 5), torch.tensor(0.2, requires_grad=True)),
    ),
}


SHAPES = {
    "straight through": {"x": Shape.CONSTANT},
    "one-hot": {"x": Shape.CONSTANT},
    "spike": {"v": Shape.CONSTANT},
    "reversal": {"x": Shape.IDENTITY},
    "clipping": {"x": Shape.IDENTITY},
    "to another input": {"other": Shape.IDENTITY},
    "of a rotation": {"other": Shape.IDENTITY},
    "one output of two": {"x": Shape.CONSTANT},
    "a clip that is passed": {"x": Shape.PASSED},
    "an estimate": {"x": Shape.DRAWN},
    "two outputs that are rounded": {"low": Shape.CONSTANT, "width": Shape.ROUNDED},
    "bound": {"x": Shape.BOUND},
    "of two inputs that are returned": {"a": Shape.IDENTITY, "b": Shape.IDENTITY},
    "drawn spikes": {"rate": Shape.CONSTANT},
    "learned step": {"x": Shape.CONSTANT},
}


@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_is_known_by_its_shape(name):
    function, inputs = SURROGATES[name]
    found = surrogates_of(Subject(target_of(function), [example_of(inputs)]))

    assert {one.name: one.shape for one in found} == SHAPES[name]


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SURROGATES)
def test_surrogate_is_no_finding_and_is_said(name):
    function, inputs = SURROGATES[name]
    report = pb.check(function, inputs)

    assert [f for f in report.findings if f.weight == "wrong"] == []
    assert any(note.startswith("surrogate gradient of `") for note in report.notes)
    assert any("declares = {'surrogate': " in note for note in report.notes)


def test_declared_surrogate_is_not_said_again():
    function = made("Rounded", rounded, passing)
    function.declares = {"surrogate": "x"}

    assert not any("surrogate" in note for note in pb.check(function, (row(3),)).notes)


@pytest.mark.quick(1)
@pytest.mark.parametrize("is_declared", [True, False])
def test_surrogate_inside_a_program_is_known(is_declared):
    function = made("Rounded", rounded, passing)
    if is_declared:
        function.declares = {"surrogate": True}

    def layer(x, w):
        return function.apply(x.sin()) @ w

    report = pb.check(layer, (row(4, 5), row(5, 2).detach()))

    assert [f.rule.code for f in report.findings if f.weight == "wrong"] == []
    assert any("`Rounded`, which it calls" in note for note in report.notes)


def test_second_derivative_through_a_surrogate_is_not_compared():
    function = made("Smoothed", lambda ctx, x: x * x.sigmoid(), lambda ctx, g: 1.5 * g)
    function.declares = {"surrogate": True}

    report = pb.check(lambda x: function.apply(x).sin(), (row(4, 5),), select=["second"])

    assert report.ok
    assert any("which second derivatives go through" in s.reason for s in report.skips)


def test_estimate_inside_a_program_is_known():
    drawn = made("Sampled", log_sum, sampled)

    report = pb.check(lambda x: drawn.apply(x.sin()).exp(), (row(4, 5),))

    assert report.of("wrong") == ()
    assert any("`Sampled`, which it calls" in note for note in report.notes)


# ---- what is asked of a surrogate, too ----


def smooth_step(ctx, v):
    keep(ctx, v)
    return (v > 0).to(v.dtype)


def overflowing(ctx, g):
    (v,) = ctx.saved_tensors
    large = (20 * v).exp()
    return g * large / (1 + large) ** 2  # infinity by infinity, far out


FAULTY = {
    "zero-cotangent of an estimate": (
        made("Noise", log_sum, lambda ctx, g: sampled(ctx, g) + torch.randn(4, 5)),
        (row(4, 5),),
    ),
    "zero-cotangent": (made("Biased", rounded, lambda ctx, g: g + 0.5), (row(4, 5),)),
    "gradient-overflow": (made("Overflowing", smooth_step, overflowing), (row(4, 5),)),
}


@pytest.mark.parametrize("name", FAULTY)
def test_fault_of_a_surrogate_is_found(name):
    function, inputs = FAULTY[name]
    report = pb.check(function, inputs)

    assert report.of("wrong") != ()
    assert any(note.startswith("surrogate gradient") for note in report.notes)


# ---- faults that look like one ----


def doubled_exp(ctx, x):
    y = x.half().exp().to(x.dtype)
    keep(ctx, y)
    return y


def twice(ctx, g):
    (y,) = ctx.saved_tensors
    return 2 * g * y


def product(ctx, x, w):
    keep(ctx, x, w)
    return x * w


def negated(ctx, g):
    x, w = ctx.saved_tensors
    return -g * w, g * x


def dropped(ctx, x):
    return x * (torch.rand_like(x) > 0.5)


def half_of_it(ctx, g):
    return 2 * g * (torch.rand_like(g) > 0.5)


def with_noise(ctx, g):
    return 2 * g + 1e-2 * torch.rand_like(g)


FAULTS = {
    "half precision inside": (made("HalfExp", doubled_exp, twice), (row(4, 5),)),
    "a factor that is one here": (made("Product", product, negated), (row(5), torch.ones(5))),
    "an input that forward ignores": (
        made("Ignored", lambda ctx, x, y: y.sin(), lambda ctx, g: (g, None)),
        (row(5), row(5).detach()),
    ),
}


def test_mask_that_is_drawn_again_is_no_surrogate():
    redrawn = made("Dropped", dropped, lambda ctx, g: g * (torch.rand_like(g) > 0.5))

    report = pb.check(redrawn, (row(4, 5),))

    assert [f.rule.name for f in report.of("wrong")] == ["random-in-backward"]
    assert not any(note.startswith("surrogate") for note in report.notes)


def summed_in_any_order(ctx, g):
    x, w = ctx.saved_tensors
    parts = (g * x).bfloat16()[torch.randperm(len(x))]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return g * w, total.to(w.dtype)


DRAWN = {
    "a part left out": (made("Halved", lambda ctx, x: 2 * x, half_of_it), (row(4, 5),)),
    "noise with a mean": (made("Noisy", lambda ctx, x: 2 * x, with_noise), (row(4, 5),)),
    "a sum in an order": (made("Unstable", product, summed_in_any_order), (row(32, 4), row(4))),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_gradient_that_is_no_estimate_is_found(name):
    function, inputs = DRAWN[name]

    report = pb.check(function, inputs, profile="quick")

    assert report.of("wrong")
    assert not any(note.startswith("surrogate") for note in report.notes)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_that_looks_like_a_surrogate_is_found(name):
    function, inputs = FAULTS[name]
    report = pb.check(function, inputs)

    assert any(f.rule.group == "gradient" for f in report.findings)
    assert not any("surrogate" in note for note in report.notes)
