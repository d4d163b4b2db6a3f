"""`combine`: one node, what it keeps, when it captures again, and what runs as written."""

import threading
from importlib import import_module

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import BackendError, CaptureError
from tests.compose.as_written import assert_same, derivatives_of
from tests.compose.pipelines import (
    Exp,
    Mul,
    Silu,
    Sin,
    Square,
    TorchSilu,
    chain,
    mlp,
    trig,
)

recipes = import_module("pullback.derive.recipes")


def pair(*shape):
    x = torch.randn(shape or (4,), dtype=torch.float64, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


def gradients(run, *args):
    return torch.autograd.grad(run(*args).sum(), args)


def test_combined_is_one_node():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    out = combined.apply(x, y)

    assert issubclass(combined, pb.Function)
    assert out.grad_fn.name() == "ChainBackward"
    assert [node.name() for node, _ in out.grad_fn.next_functions if node] == [
        "torch::autograd::AccumulateGrad"
    ] * 2
    assert combined.explain() == 'combined: one node of 4 units, backend "eager"'


def test_saved_bytes_are_those_of_nested():
    args = (pair(3, 4)[0], pair(5, 4)[0], pair(5)[0], pair(2, 5)[0], pair(2)[0])
    combined = pb.combine(mlp, *args)

    def saved(run):
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (kept.setdefault(t.data_ptr(), t), t)[1], lambda t: t
        ):
            out = run(*args)
        del out
        inputs = {x.data_ptr() for x in args}
        return sum(t.nbytes for at, t in kept.items() if at not in inputs)

    assert saved(combined.apply) == saved(mlp) > 0


def test_gradient_hooks_are_called():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    seen = []
    middle = x * 1
    middle.register_hook(lambda g: seen.append(g) or 2 * g)
    out = combined.apply(middle, y)
    out.grad_fn.register_hook(lambda given, taken: seen.append(len(given)))
    (got,) = torch.autograd.grad(out.sum(), x)

    torch.testing.assert_close(got, 2 * gradients(chain, x, y)[0])
    assert len(seen) == 2


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpoint_gives_the_gradients(is_reentrant):
    x, y = pair()
    combined = pb.combine(chain, x, y)
    checkpoint(combined.apply, x, y, use_reentrant=is_reentrant).sum().backward()

    torch.testing.assert_close((x.grad, y.grad), gradients(chain, x, y))


def test_saved_tensor_hooks_see_everything():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.tensor):
        out = combined.apply(x, y)
    got = torch.autograd.grad(out.sum(), (x, y))

    torch.testing.assert_close(got, gradients(chain, x, y))


def test_threads_agree_with_one():
    combined = pb.combine(chain, *pair())
    rows = [pair(n) for n in (2, 3, 4, 5)]
    results = {}

    def work(place):
        x, y = rows[place]
        results[place] = [gradients(combined.apply, x, y) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for place, (x, y) in enumerate(rows):
        for got in results[place]:
            torch.testing.assert_close(got, gradients(chain, x, y))


def test_without_recording_nothing_is_kept():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    with torch.no_grad():
        out = combined.apply(x, y)

    assert out.grad_fn is None
    assert torch.equal(out, chain(x, y))


def test_autocast_is_as_written():
    x, y = (t.detach().float().requires_grad_() for t in pair(4, 4))

    def program(x, y):
        return Sin.apply(x @ y)

    combined = pb.combine(program, x, y)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = combined.apply(x, y), program(x, y)

    assert got.dtype is expected.dtype is torch.bfloat16
    assert torch.equal(got, expected)
    got, expected = gradients(lambda *_: got, x, y), gradients(lambda *_: expected, x, y)
    torch.testing.assert_close(got, expected)


def test_unused_output_is_as_written():
    x, y = pair()
    combined = pb.combine(trig, x, y)
    got = torch.autograd.grad(combined.apply(x, y)[0].sum(), (x, y))
    expected = torch.autograd.grad(trig(x, y)[0].sum(), (x, y))

    torch.testing.assert_close(got, expected)


def test_second_derivative_of_foreign_intermediate_is_right():
    x, y = pair()
    combined = pb.combine(lambda x, y: Mul.apply(TorchSilu.apply(x), y), x, y)

    def plain(x, y):
        return torch.nn.functional.silu(x) * y

    assert_same(derivatives_of(combined.apply, (x, y)), derivatives_of(plain, (x, y)))


def test_closure_counts_as_it_is_now():
    x, _ = pair()
    around = {"w": torch.randn(4, dtype=torch.float64, requires_grad=True)}

    def program(x):
        return Mul.apply(Sin.apply(x), around["w"])

    combined = pb.combine(program, x)
    assert combined.composed == "combined"
    for change in (lambda w: w, lambda w: w.detach().mul(3).requires_grad_(), torch.detach):
        around["w"] = change(around["w"])
        got, expected = combined.apply(x), program(x)

        assert torch.equal(got, expected)
        wanted = [t for t in (x, around["w"]) if t.requires_grad]
        got, expected = (torch.autograd.grad(out.sum(), wanted) for out in (got, expected))
        torch.testing.assert_close(got, expected)


def test_new_signature_is_captured_again():
    combined = pb.combine(chain, *pair())
    for args in (pair(2, 3), [t.detach().float().requires_grad_() for t in pair(5)]):
        torch.testing.assert_close(gradients(combined.apply, *args), gradients(chain, *args))
    x, y = pair()
    got = torch.autograd.grad(combined.apply(x, y.detach()).sum(), x)

    torch.testing.assert_close(got, torch.autograd.grad(chain(x, y).sum(), x))
    assert combined.explain().count("\n") == 0


# ---- what is not combined ----


def decides(x, y):
    return x * y if x.sum() > 0 else Sin.apply(x - y)


def test_decision_on_values_runs_as_written():
    x, y = pair()
    composed = pb.combine(decides, x, y)

    line = decides.__code__.co_firstlineno + 1

    assert composed.composed == "nested"
    assert composed.explain() == (
        "nested: `decides` must do the same work whatever the values of its tensors are: "
        f"a decision on the value of a tensor (test_combined.py:{line})"
    )
    for sign in (1, -1):
        a = (x.detach().abs() * sign).requires_grad_()
        assert_same(derivatives_of(composed.apply, (a, y)), derivatives_of(decides, (a, y)))


def test_refused_call_runs_as_written():
    x, _ = pair()

    def program(x, factor):
        return Sin.apply(x) * (float(x.detach().max()) if factor is None else factor)

    combined = pb.combine(program, x, 2.0)
    factors = (3.0, None, None)
    got = [combined.apply(x, factor) for factor in factors]

    for out, factor in zip(got, factors, strict=True):
        assert torch.equal(out, program(x, factor))
    first, reason = combined.explain().splitlines()
    assert first == 'combined: one node of 2 units, backend "eager"'
    assert reason.startswith("nested for (float64[4], None): `program` must do the same work")
    names = ["ProgramBackward", "MulBackward0", "MulBackward0"]
    assert [out.grad_fn.name() for out in got] == names


def test_refusal_is_not_tried_again(monkeypatch):
    x, _ = pair()

    def program(x, reads):
        return Sin.apply(x) * (float(x.detach().max()) if reads else 1.0)

    combined = pb.combine(program, x, False)
    captures, capture = [], recipes.capture

    def counted(*args, **kwargs):
        captures.append(args)
        return capture(*args, **kwargs)

    monkeypatch.setattr(recipes, "capture", counted)
    for _ in range(3):
        assert torch.equal(combined.apply(x, True), program(x, True))
    assert len(captures) == 1


def test_change_of_an_input_runs_as_written():
    x, y = pair()

    def program(x, y):
        return Sin.apply(x.mul_(2)) * y

    composed = pb.combine(program, x, y)

    assert composed.explain() == "nested: an input is changed in place"
    assert_same(derivatives_of(composed.apply, (x, y)), derivatives_of(program, (x, y)))


def test_error_of_the_program_is_raised():
    with pytest.raises(RuntimeError, match="must match the size") as caught:
        pb.combine(chain, pair(2)[0], pair(3)[0])

    assert not isinstance(caught.value, pb.PullbackError)


def test_missing_examples_are_refused():
    with pytest.raises(CaptureError) as caught:
        pb.combine(chain)

    assert str(caught.value) == (
        "E301 capture: `chain` must be composed with examples of its arguments\n"
        "  got:      no example\n"
        "  fix:      pass tensors like those it will be called with, and its other arguments"
    )


def test_unknown_backend_is_refused():
    with pytest.raises(BackendError) as caught:
        pb.combine(chain, *pair(), backend="abacus")

    assert str(caught.value) == (
        "E502 backend: `backend` must be the name of a backend\n"
        '  expected: "auto" or "eager" or "inductor" or "native" or "triton"\n'
        "  got:      'abacus'"
    )


# ---- in and around other things ----


def test_combined_is_derivable_again():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    for again in (pb.derive(combined, x, y), pb.derive(combined.apply, x, y)):
        assert_same(derivatives_of(again.apply, (x, y)), derivatives_of(chain, (x, y)))


def test_function_class_is_combined_by_apply():
    x, _ = pair()
    combined = pb.combine(Silu, x)

    assert combined.composed == "combined"
    assert_same(derivatives_of(combined.apply, (x,)), derivatives_of(Silu.apply, (x,)))


@pytest.mark.slow
def test_combined_is_sound():
    assert pb.check(pb.combine(chain, *pair()), pair()).findings == ()


def test_transforms_know_a_combined_function():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    got = torch.func.grad(lambda x: combined.apply(x, y).sum())(x)
    batch = torch.func.vmap(combined.apply)(torch.stack([x, y]), torch.stack([y, x]))

    torch.testing.assert_close(got, gradients(chain, x, y)[0])
    torch.testing.assert_close(batch, torch.stack([chain(x, y), chain(y, x)]))


def test_compiler_traces_the_program():
    x, y = pair()
    combined = pb.combine(chain, x, y)
    compiled = torch.compile(lambda *a: combined.apply(*a) * 2, backend="aot_eager", fullgraph=True)
    got = gradients(compiled, x, y)

    torch.testing.assert_close(got, gradients(lambda *a: chain(*a) * 2, x, y))


def test_input_is_kept_for_second_order():
    x, _ = pair()
    combined = pb.combine(lambda x: Exp.apply(Exp.apply(Square.apply(x) * 0.1)), x)

    assert torch.autograd.gradgradcheck(lambda x: combined.apply(x * 1), x)


# ---- calls on graphs ----


def cond(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def while_loop(x):
    return torch._higher_order_ops.while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x)
    )[1]


def scan(x):
    return torch._higher_order_ops.scan(lambda total, y: (total + y, total * y), x[0], x)[1]


@pytest.mark.parametrize("program", [cond, while_loop, scan])
@pytest.mark.parametrize("make", [pb.combine, pb.hybrid])
def test_calls_on_graphs_run_as_written(make, program):
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    expected = program(x)
    made = make(program, x)

    assert torch.equal(made.apply(x), expected)
    assert (
        f"must not call other graphs (`torch.cond`, `torch.while_loop`, ...): `{program.__name__}"
        in (made.explain())
    )
    with pytest.raises(pb.PullbackError, match="must not call other graphs"):
        pb.derive(program, x)
    assert torch.equal(program(x), expected)  # Dynamo is as it was


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_jit_trace_records_the_program():
    combined = pb.combine(lambda x: x.sin() * 2, torch.ones(2), backend="eager")
    combined(torch.ones(3))
    for size in (3, 4):
        traced = torch.jit.trace(combined, (torch.ones(size),))

        assert "aten::sin" in str(traced.graph)
        assert traced(torch.ones(5)).equal(torch.ones(5).sin() * 2)


def test_examples_on_meta_are_refused():
    combined = pb.combine(lambda x: x.sin() * 2, torch.ones(2, device="meta"), backend="eager")

    assert "with tensors that have values" in combined.explain()
    assert combined(torch.ones(3)).equal(torch.ones(3).sin() * 2)


def test_compiled_part_of_a_program_stays_compiled():
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    part = torch.compile(lambda x: x.sin() * 2, backend=backend)

    def program(x):
        return part(x) + 1

    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    made = pb.combine(program, x)
    before = len(compiled)

    assert torch.equal(made.apply(x), x.sin() * 2 + 1)
    part(torch.rand(3))
    assert len(compiled) == before + 1
