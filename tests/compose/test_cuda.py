"""Compositions on a GPU: as written, other devices and streams, and layouts."""

from multiprocessing.pool import ThreadPool

import pytest
import torch

import pullback as pb
from benchmarks.pipelines import PIPELINES, make_inputs
from pullback.run import available
from pullback.run.backends import native
from pullback.run.lowering import wrapper

pytestmark = pytest.mark.needs_cuda

NAMES = [name for name in PIPELINES if name != "leapfrog"]


def combined_by(backend, program, *args):
    """The program as one node on a backend; the test is skipped where that is absent."""
    if backend not in (*available(), "auto"):
        pytest.skip(f"no {backend} here")
    return pb.combine(program, *args, backend=backend)


def gradients(run, args):
    out = run(*args)
    outs = (out,) if isinstance(out, torch.Tensor) else out
    leaves = [x for x in args if x.requires_grad]
    return [*outs, *torch.autograd.grad([y.sum() for y in outs], leaves)]


@pytest.mark.parametrize("backend", ["eager", "inductor", "native"])
@pytest.mark.parametrize("name", NAMES)
def test_combined_is_as_written(name, backend):
    args = make_inputs(name, 4096, torch.float64, "cuda")
    combined = combined_by(backend, PIPELINES[name].nested, *args)
    for _ in range(2):
        got = gradients(combined.apply, args)

        torch.testing.assert_close(got, gradients(PIPELINES[name].nested, args))
    assert "eager:" not in combined.explain()


@pytest.mark.parametrize("backend", ["eager", "inductor", "native"])
def test_strided_and_offset_tensors_are_right(backend):
    x, y = make_inputs("sqsin", 4096, torch.float32, "cuda")
    combined = combined_by(backend, PIPELINES["sqsin"].nested, x, y)
    combined.apply(x, y).sum().backward()
    views = [
        (x.detach()[1:], y.detach()[1:]),
        (x.detach()[::2], y.detach()[::2]),
        (x.detach().view(64, 64).t(), y.detach().view(64, 64)),
        (x.detach()[:1].expand(64), y.detach()[:64]),
    ]
    for row in views:
        args = [t.requires_grad_() for t in row]

        torch.testing.assert_close(
            gradients(combined.apply, args), gradients(PIPELINES["sqsin"].nested, args)
        )


@pytest.mark.parametrize("backend", ["inductor", "native"])
def test_call_on_another_stream_is_right(backend):
    args = make_inputs("norm_block", 1 << 20, torch.float32, "cuda")
    combined = combined_by(backend, PIPELINES["norm_block"].nested, *args)
    want = gradients(PIPELINES["norm_block"].nested, args)
    combined.apply(*args).sum().backward()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = gradients(combined.apply, args)
    torch.cuda.current_stream().wait_stream(stream)

    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [4096, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "attention"])
def test_native_node_runs_without_python(name, dtype, size, monkeypatch):
    read = []

    def reading_of(call, row):
        read.append(wrapper.reading_of(call, row))
        return read[-1]

    monkeypatch.setattr(native, "reading_of", reading_of)
    args = make_inputs(name, size, dtype, "cuda")
    combined = combined_by("native", PIPELINES[name].nested, *args)
    doubled = [x.detach().double() if x.is_floating_point() else x for x in args]
    exact = [x.requires_grad_(y.requires_grad) for x, y in zip(doubled, args, strict=True)]
    want = gradients(PIPELINES[name].nested, exact)
    tolerance = 1e-4 if dtype is torch.float32 else 0.1
    for _ in range(3):
        for got, wanted in zip(gradients(combined.apply, args), want, strict=True):
            assert (got - wanted).norm() <= tolerance * wanted.norm()

    assert len(read) >= 2  # forward, and backward for each layout of cotangents
    assert None not in read


def test_thread_that_never_used_the_gpu_launches():
    args = make_inputs("sqsin", 4096, torch.float32, "cuda")
    combined = combined_by("native", PIPELINES["sqsin"].nested, *args)
    want = gradients(PIPELINES["sqsin"].nested, args)
    gradients(combined.apply, args)
    with ThreadPool(4) as pool:
        for got in pool.map(lambda _: gradients(combined.apply, args), range(8)):
            torch.testing.assert_close(got, want)


def test_graph_on_gpu_is_pulled_twice():
    args = make_inputs("mlp", 4096, torch.float32, "cuda")
    combined = combined_by("native", PIPELINES["mlp"].nested, *args)
    leaves = [x for x in args if x.requires_grad]
    for _ in range(2):
        out = combined.apply(*args).square().sum()
        first = torch.autograd.grad(out, leaves, retain_graph=True)

        torch.testing.assert_close(torch.autograd.grad(out, leaves), first)


def test_calls_on_cpu_and_gpu_alternate():
    x, y = make_inputs("sqsin", 100, torch.float32, "cuda")
    a, b = make_inputs("sqsin", 100)
    combined = combined_by("auto", PIPELINES["sqsin"].nested, x, y)
    for args in ((x, y), (a, b), (x, y), (a, b)):
        torch.testing.assert_close(
            gradients(combined.apply, args), gradients(PIPELINES["sqsin"].nested, args)
        )


def plain_mlp(x, w1, b1, w2, b2):
    return PIPELINES["mlp"].plain(x, w1, b1, w2, b2)


def test_autocast_is_as_written():
    args = make_inputs("mlp", 4096, torch.float32, "cuda")
    combined = pb.combine(plain_mlp, *args, backend="inductor")
    with torch.autocast("cuda", torch.bfloat16):
        got = combined.apply(*args)
        want = plain_mlp(*args)

    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_indices_out_of_range_are_not_tried_on_the_gpu(backend):
    """A capture is tried with other sizes; of fewer classes, most labels would be out of range."""
    args = make_inputs("cross_entropy", 1 << 20, torch.float32, "cuda")
    combined = combined_by(backend, PIPELINES["cross_entropy"].nested, *args)

    got = gradients(combined.apply, args)

    torch.cuda.synchronize()
    torch.testing.assert_close(got, gradients(PIPELINES["cross_entropy"].nested, args))


def test_saved_tensors_come_back_in_another_layout():
    args = make_inputs("cross_entropy", 4096, torch.float32, "cuda")
    combined = combined_by("native", PIPELINES["cross_entropy"].nested, *args)
    want = gradients(PIPELINES["cross_entropy"].nested, args)

    def spread(x):
        return torch.stack([x, x], -1)[..., 0]

    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, spread):
            torch.testing.assert_close(gradients(combined.apply, args), want)
        torch.testing.assert_close(gradients(combined.apply, args), want)


@pytest.mark.parametrize("backend", ["inductor", "native"])
def test_large_sums_are_in_double_precision(backend):
    args = make_inputs("norm_block", 1 << 23, torch.float64, "cuda")
    combined = combined_by(backend, PIPELINES["norm_block"].nested, *args)

    got = gradients(combined.apply, args)

    want = gradients(PIPELINES["norm_block"].nested, args)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


# ---- recorded and replayed ----


@pytest.mark.parametrize("backend", ["eager", "inductor", "native"])
@pytest.mark.parametrize("name", ["sqsin", "mlp", "norm_block", "swiglu"])
def test_calls_are_replayed_from_a_cuda_graph(name, backend):
    args = make_inputs(name, 4096, torch.float32, "cuda")
    combined = combined_by(backend, PIPELINES[name].nested, *args)
    replayed = torch.cuda.make_graphed_callables(combined.apply, args)
    for factor in (1.0, 0.5, -2.0):
        fresh = [(factor * x.detach()).requires_grad_(x.requires_grad) for x in args]

        got = [x.clone() for x in gradients(replayed, fresh)]

        want = gradients(PIPELINES[name].nested, fresh)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["inductor", "native"])
def test_whole_training_step_is_recorded(backend):
    first, *weights = make_inputs("mlp", 4096, torch.float32, "cuda")
    x = first.detach().clone()
    combined = combined_by(backend, PIPELINES["mlp"].nested, x, *weights)

    def step():
        loss = combined.apply(x, *weights).square().mean()
        found = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, found, strict=True):
                weight -= 0.1 * gradient
        return loss

    before = [weight.detach().clone() for weight in weights]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step()

    def begin():
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)

    begin()
    got = []
    for _ in range(4):
        graph.replay()
        got.append(recorded.item())
    begin()

    assert got == pytest.approx([step().item() for _ in range(4)], rel=1e-4)
    assert got == sorted(got, reverse=True)


# ---- layouts, casts and wrong code ----


def rope(q, cos, sin):
    half = q.shape[-1] // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * cos + turned * sin


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["inductor", "native"])
def test_transposed_heads_run_compiled(backend, dtype):
    q = torch.randn(2, 64, 8, 32, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
    angle = torch.arange(64.0, device="cuda")[:, None] * torch.ones(32, device="cuda")
    args = q, angle.cos().to(dtype), angle.sin().to(dtype)
    combined = combined_by(backend, rope, *args)
    cotangents = (
        torch.randn(2, 64, 8, 32, device="cuda", dtype=dtype).transpose(1, 2),
        torch.randn(2, 8, 64, 32, device="cuda", dtype=dtype),
        torch.ones((), device="cuda", dtype=dtype).expand(2, 8, 64, 32),
    )
    for cotangent in (*cotangents, *cotangents):  # those that come again get code of their own
        out, expected = combined.apply(*args), rope(*args)
        (got,) = torch.autograd.grad(out, q, cotangent)
        (want,) = torch.autograd.grad(expected, q, cotangent)

        assert out.stride() == expected.stride()
        torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    assert "eager" not in combined.explain()


@pytest.mark.parametrize("backend", ["inductor", "native"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_explicit_casts_are_kept(half, backend):
    def quantise(x, s):
        return ((x * s).to(half).to(x.dtype) / s) * x.to(half).float().sin()

    args = (
        torch.randn(4096, device="cuda", requires_grad=True),
        torch.full((1,), 3.7, device="cuda", requires_grad=True),
    )
    combined = combined_by(backend, quantise, *args)

    got, want = gradients(combined.apply, args), gradients(quantise, args)
    torch.testing.assert_close(got[:2], want[:2])
    torch.testing.assert_close(got[2], want[2], rtol=1e-3, atol=1e-3)  # a long sum
    assert "eager:" not in combined.explain()


def test_wrong_gradient_is_caught_at_the_first_call(monkeypatch):
    from pullback.errors import WrongCodeWarning
    from tests.run.nodes.test_verify import gate, halve_second_gradient, use

    for backend in ("inductor", "native"):
        if backend not in available():
            continue
        use(monkeypatch, backend, halve_second_gradient)
        args = [torch.randn(n, device="cuda", requires_grad=True) for n in ((64, 32), (32,))]
        combined = pb.combine(gate, *args, backend=backend)
        with pytest.warns(WrongCodeWarning, match="the gradient of `w`"):
            got = gradients(combined.apply, args)

        torch.testing.assert_close(got, gradients(gate, args))
