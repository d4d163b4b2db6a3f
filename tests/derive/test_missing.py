"""What a Function leaves unwritten is derived: a whole backward, or some of the gradients."""

import importlib
import threading

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.capture.joint import capture
from pullback.errors import MissingBackwardError
from pullback.function.unwritten import derivation
from tests.derive.functions import differences


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def message(call):
    with pytest.raises(MissingBackwardError) as caught:
        call()
    return str(caught.value)


# ---- a class without backward ----


class Scaled(pb.Function):
    """In one piece, with a plain and an optional argument."""

    @staticmethod
    def forward(ctx, x, w, power=2.0, bias=None):
        ctx.save_for_backward(x)
        y = torch.tanh(x * w) ** power
        return y if bias is None else y + bias


class Apart(pb.Function):
    """The same, with `setup_context`."""

    @staticmethod
    def forward(x, w, power=2.0, bias=None):
        y = torch.tanh(x * w) ** power
        return y if bias is None else y + bias

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)


def plain(x, w, power=2.0, bias=None):
    y = torch.tanh(x * w) ** power
    return y if bias is None else y + bias


styles = pytest.mark.parametrize("function", [Scaled, Apart], ids=["one", "apart"])


@styles
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x, w: f(x, w),
        lambda f, x, w: f(x, w, 3.0),
        lambda f, x, w: f(x, w=w, bias=w),
        lambda f, x, w: f(x, w, 1.0, None),
        lambda f, x, w: f(w, w),
    ],
    ids=["plain", "power", "keywords", "none", "twice"],
)
def test_derivatives_are_those_of_forward(function, call):
    x, w = normal(2, 3), normal(3)

    assert gradcheck(lambda x, w: call(function.apply, x, w), (x, w))
    assert gradgradcheck(lambda x, w: call(function.apply, x, w), (x, w))


@styles
def test_call_is_one_node(function):
    out = function.apply(normal(2, 3), normal(3))

    assert type(out.grad_fn).__name__ == f"{function.__name__}Backward"


@styles
@pytest.mark.parametrize("needs", [(True, False), (False, True), (False, False)], ids=str)
def test_only_needed_gradients_are_given(function, needs):
    x, w = normal(2, 3).requires_grad_(needs[0]), normal(3).requires_grad_(needs[1])
    out = function.apply(x, w)
    wanted = [tensor for tensor in (x, w) if tensor.requires_grad]

    assert out.requires_grad == any(needs)
    if wanted:
        got, expected = grad(out.sum(), wanted), grad(plain(x, w).sum(), wanted)
        assert differences(got, expected) == []


@styles
def test_other_shapes_and_dtypes_are_served(function):
    for shape, dtype in [((2, 3), torch.float64), ((5, 3), torch.float64), ((3,), torch.float32)]:
        x, w = normal(*shape, dtype=dtype), normal(3, dtype=dtype)
        got, expected = grad(function.apply(x, w).sum(), (x, w)), grad(plain(x, w).sum(), (x, w))

        assert differences(got, expected, tolerance=1e-5) == []


def test_several_outputs_and_marks_are_kept():
    class Several(pb.Function):
        @staticmethod
        def forward(ctx, x):
            size = x.sin()
            ctx.mark_non_differentiable(size)
            return [x * x, size, x.argmax(), x, "name"]

    x = normal(4)
    got = Several.apply(x)

    assert isinstance(got, list)
    assert [y.requires_grad for y in got[:4]] == [True, False, False, True]
    assert got[3] is not x
    assert got[4] == "name"
    assert differences(grad(got[0].sum() + 3 * got[3].sum(), x), [2 * x + 3]) == []


def test_list_of_one_output_is_derived():
    class One(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return [x.sin()]

    assert gradcheck(lambda x: One.apply(x)[0], (normal(3),))


def test_lists_and_keyword_only_inputs_are_derived():
    class Lists(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, xs, *, w):
            return (xs[0] * xs[1] * w).tanh()

    assert gradcheck(lambda x, w: Lists.apply([x, x + 1], w=w), (normal(2, 3), normal(3)))


def test_branch_on_values_is_derived():
    class Branch(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2 if x.sum() > 0 else x.sin()

    x = normal(3).abs().detach().requires_grad_()

    assert gradcheck(Branch.apply, (x,))
    assert gradcheck(Branch.apply, ((-x).detach().requires_grad_(),))
    assert gradgradcheck(Branch.apply, ((-x).detach().requires_grad_(),))


GAIN = 2.0


class Settings:
    gain = 2.0


def test_values_from_around_are_read_anew(monkeypatch):
    class Global(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * GAIN

    class Attribute(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * Settings.gain

    x = normal(3)
    first = [grad(f.apply(x).sum(), x)[0] for f in (Global, Attribute)]
    monkeypatch.setitem(globals(), "GAIN", 5.0)
    monkeypatch.setattr(Settings, "gain", 5.0)
    second = [grad(f.apply(x).sum(), x)[0] for f in (Global, Attribute)]

    assert differences(first, [torch.full_like(x, 2)] * 2) == []
    assert differences(second, [torch.full_like(x, 5)] * 2) == []


def test_changing_argument_is_read_anew():
    class Reads(pb.Function):
        @staticmethod
        def forward(ctx, x, settings):
            return x * settings.gain

    x, settings = normal(3), Settings()
    settings.gain = 3.0
    Reads.apply(x, settings)
    settings.gain = 4.0

    assert differences(grad(Reads.apply(x, settings).sum(), x), [torch.full_like(x, 4)]) == []


def test_hand_written_backward_inside_stays():
    class Through(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, cotangent):
            return 7 * cotangent

    class Outer(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return Through.apply(x) * 2

    x = normal(3)

    assert differences(grad(Outer.apply(x).sum(), x), [torch.full_like(x, 14)]) == []


def test_random_draws_are_those_of_forward():
    class Drop(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return F.dropout(x, 0.5)

    x = torch.ones(20, requires_grad=True)
    torch.manual_seed(3)
    expected = F.dropout(x, 0.5)
    torch.manual_seed(3)
    out = Drop.apply(x)

    assert torch.equal(out, expected)
    assert torch.equal(grad(out.sum(), x)[0], expected)


def test_error_of_forward_is_its_own():
    class Product(pb.Function):
        @staticmethod
        def forward(ctx, a, b):
            return a @ b

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Product.apply(normal(2, 3), normal(2, 3))

    assert gradcheck(Product.apply, (normal(2, 3), normal(3, 2)))


def test_class_without_gradient_is_left_alone(monkeypatch):
    class Index(pb.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.round()
            ctx.mark_non_differentiable(y)
            return y, x.argmax()

    module = importlib.import_module("pullback.derive.backward")
    monkeypatch.setattr(module, "make_derived", lambda *_, **__: pytest.fail("derived"))
    for _ in range(2):
        out = Index.apply(normal(3))

    assert [y.requires_grad for y in out] == [False, False]


def test_forward_alone_derives_nothing(monkeypatch):
    class Double(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    monkeypatch.setattr(derivation(), "make_call", lambda *_: pytest.fail("derived"), raising=False)
    x = normal(3)
    with torch.no_grad():
        assert torch.equal(Double.apply(x), 2 * x)
    assert torch.equal(Double.apply(x.detach()), 2 * x)


def test_backward_of_a_subclass_is_taken():
    class Base(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    class Written(Base):
        @staticmethod
        def backward(ctx, cotangent):
            return 7 * cotangent

    x = normal(3)
    compiled = torch.compile(lambda x: Written.apply(x), backend="aot_eager", fullgraph=True)

    assert differences(grad(Base.apply(x).sum(), x), [torch.full_like(x, 2)]) == []
    assert differences(grad(Written.apply(x).sum(), x), [torch.full_like(x, 7)]) == []
    assert differences(grad(compiled(x).sum(), x), [torch.full_like(x, 7)]) == []


def test_backward_given_later_is_taken():
    class Late(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

    x = normal(3)
    first = grad(Late.apply(x).sum(), x)
    Late.backward = staticmethod(lambda ctx, cotangent: 7 * cotangent)
    compiled = torch.compile(lambda x: Late.apply(x), backend="aot_eager", fullgraph=True)

    assert differences(first, [torch.full_like(x, 2)]) == []
    assert differences(grad(Late.apply(x).sum(), x), [torch.full_like(x, 7)]) == []
    assert differences(grad(compiled(x).sum(), x), [torch.full_like(x, 7)]) == []


def test_vjp_alone_is_taken():
    class Pulls(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def vjp(ctx, cotangent):
            return 7 * cotangent

    x = normal(3)

    assert differences(grad(Pulls.apply(x).sum(), x), [torch.full_like(x, 7)]) == []


class Pushed(pb.Function):
    """A forward-mode rule of its own, seven times too large, and no backward."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, tangent):
        return 14 * tangent


def test_own_forward_mode_rule_is_taken():
    x = normal(3)
    ones = torch.ones_like(x)
    with forward_ad.dual_level():
        pushed = forward_ad.unpack_dual(Pushed.apply(forward_ad.make_dual(x, ones))).tangent

    assert differences([pushed], [14 * ones]) == []
    assert differences([torch.func.jvp(Pushed.apply, (ones,), (ones,))[1]], [14 * ones]) == []
    assert differences(grad(Pushed.apply(x).sum(), x), [2 * ones]) == []


def test_own_batching_rule_is_taken():
    class Batched(pb.Function):
        @staticmethod
        def forward(x):
            return 2 * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def vmap(info, in_dims, x):
            return 14 * x, in_dims[0]

    x = torch.ones(3, 2)

    assert torch.equal(torch.vmap(Batched.apply)(x), 14 * x)
    assert torch.equal(torch.func.grad(lambda x: Batched.apply(x).sum())(x), 2 * torch.ones(3, 2))


@styles
def test_transforms_see_forward(function):
    x, w = normal(2, 3).detach(), normal(3).detach()
    for transform in (
        lambda f: torch.func.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1))(x, w),
        lambda f: torch.func.jacfwd(f, argnums=(0, 1))(x, w),
        lambda f: torch.func.hessian(lambda x: f(x, w, power=3.0).sum())(x),
        lambda f: torch.vmap(f, in_dims=(0, None))(x, w),
        lambda f: torch.vmap(torch.func.grad(lambda x: f(x, w).sum()))(x),
        lambda f: torch.func.jvp(lambda x: f(x, w), (x,), (x,)),
    ):
        assert differences(transform(function.apply), transform(plain)) == []


@styles
def test_forward_mode_is_that_of_forward(function):
    x, w = normal(2, 3), normal(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        got, expected = (forward_ad.unpack_dual(f(dual, w)) for f in (function.apply, plain))

    assert differences(list(got), list(expected)) == []


@pytest.mark.parametrize(
    "function", [Scaled, pytest.param(Apart, marks=pytest.mark.slow)], ids=["one", "apart"]
)
def test_compiled_call_is_that_of_forward(function):
    def program(x, w, power):
        return function.apply(x, w, power, bias=w)

    compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
    for rows, power in [(2, 2.0), (5, 2.0), (5, 3.0)]:
        x, w = normal(rows, 3), normal(3)
        got = [compiled(x, w, power), *grad(compiled(x, w, power).sum(), (x, w))]
        expected = [plain(x, w, power, w), *grad(plain(x, w, power, w).sum(), (x, w))]

        assert differences(got, expected) == []


def test_compiled_call_keeps_marks():
    class Marked(pb.Function):
        @staticmethod
        def forward(x, gain=1.0, *, shift=0.0):
            return x * gain + shift, x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_non_differentiable(output[1])

    compiled = torch.compile(
        lambda x: Marked.apply(x, shift=2.0), backend="aot_eager", fullgraph=True
    )
    x = normal(3)
    got = compiled(x)

    assert differences(got, [x + 2, x.sin()]) == []
    assert [y.requires_grad for y in got] == [True, False]


@pytest.mark.slow
def test_opaque_class_is_derived_under_compile():
    class Opaque(pb.Function):
        is_traceable = False

        @staticmethod
        def forward(ctx, x):
            return x * x

    x = normal(3)
    compiled = torch.compile(lambda x: Opaque.apply(x) + 1, backend="aot_eager")

    assert differences(grad(compiled(x).sum(), x), [2 * x]) == []


def test_capture_sees_the_ops():
    x, w = normal(2, 3), normal(3)
    captured = capture(Scaled.apply, (x, w))
    text = str(captured.joint.graph)

    assert "tanh" in text
    assert len(captured.joint.gradients) == 2


def test_checkpoint_and_threads_may_call():
    x, w = normal(2, 3), normal(3)
    expected = grad(plain(x, w).sum(), (x, w))
    got = grad(checkpoint(Scaled.apply, x, w, use_reentrant=False).sum(), (x, w))
    found = []

    class Fresh(Scaled):
        pass

    def work():
        found.append(differences(grad(Fresh.apply(x, w).sum(), (x, w)), expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert differences(got, expected) == []
    assert found == [[]] * 4


class CubeOfTorch(torch.autograd.Function):
    """Saves an intermediate: PyTorch differentiates it as a constant."""

    @staticmethod
    def forward(ctx, x):
        square = x * x
        ctx.save_for_backward(x, square)
        return x * square

    @staticmethod
    def backward(ctx, cotangent):
        x, square = ctx.saved_tensors
        return cotangent * (2 * x * x + square)


class Captured(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return CubeOfTorch.apply(x.sin())


class Branching(pb.Function):
    """By a value, so that its ops run as they are."""

    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        return CubeOfTorch.apply(y) if x.sum() < 100 else y


class Partly(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return CubeOfTorch.apply(x.sin())

    @staticmethod
    def backward(ctx, cotangent):
        return pb.derived


@pytest.mark.parametrize("function", [Captured, Branching, Partly], ids=lambda f: f.__name__)
def test_intermediates_of_functions_inside_keep_history(function):
    x = normal(3)
    (first,) = grad(function.apply(x).sum(), x, create_graph=True)
    (expected,) = grad((x.sin() ** 3).sum(), x, create_graph=True)

    assert differences([first], [expected]) == []
    assert differences(grad(first.sum(), x), grad(expected.sum(), x)) == []


def test_what_changes_unseen_runs_as_ops():
    gains = iter([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0])

    class Reads(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * next(gains)

    x = normal(3)
    outs = [Reads.apply(x) for _ in range(2)]

    assert type(outs[0].grad_fn).__name__ == "MulBackward0"
    assert differences(grad(outs[1].sum(), x), [(outs[1] / x).detach()]) == []
    assert not torch.equal(*outs)


# ---- what cannot be derived ----


class Numpy(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.from_numpy(np.sin(x.numpy()))


class Half(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.from_numpy(np.sin(x.detach().numpy()))


class Silent(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2, x.detach() * 2


class Changed(pb.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)


REASONS = {
    Numpy: "`forward` does not run with gradient recording on (Can't call numpy() on Tensor that "
    "requires grad. Use tensor.detach().numpy() instead.)",
    Half: "`forward` moves otherwise than autograd sees (detach, no_grad, numpy, a kernel)",
    Silent: "`forward` computes output 1 outside autograd (detach, no_grad, numpy, a kernel)",
    Changed: "`forward` changes `x` in place",
}


@pytest.mark.parametrize("function", REASONS, ids=lambda f: f.__name__)
def test_reason_is_told_at_backward(function):
    line = function.forward.__code__.co_firstlineno
    for _ in range(2):  # the second call knows already
        x = normal(3)
        out = function.apply(x * 1)
        out = out[0] if isinstance(out, tuple) else out

        assert message(out.sum().backward) == (
            f"E101 missing-backward: `{function.__name__}` must define `backward` to be "
            "differentiated\n"
            f"  at:       test_missing.py:{line}\n"
            "  expected: `backward(ctx, *cotangents)`, one cotangent per output\n"
            f"  got:      none, and none can be derived: {REASONS[function]}\n"
            "  fix:      define `backward`, or mark the outputs with "
            "`ctx.mark_non_differentiable`\n"
            "  torch:    You must implement either the backward or vjp method for your custom "
            "autograd.Function to use it with backward mode AD."
        )


def test_mask_without_history_is_a_constant():
    class Masked(pb.Function):
        @staticmethod
        def forward(ctx, x):
            mask = (x > 0).double()
            return mask, x * mask

    x = normal(4)
    mask, out = Masked.apply(x)

    assert not mask.requires_grad
    assert differences(grad(out.sum(), x), [mask]) == []
