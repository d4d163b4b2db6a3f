"""Ops as a GPU fuses them: what they become computes what they computed."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import pullback as pb
from benchmarks.pipelines import PIPELINES, make_inputs
from pullback.run.lowering.fusible import fusible, merge_sums, scatter_src, scatter_value
from pullback.run.lowering.retrace import retrace

aten = torch.ops.aten


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_one_element_to_each_row_is_a_choice(dim, dtype):
    into = torch.randint(-9, 9, (3, 4, 5)).to(dtype)
    index = torch.randint(into.shape[dim], into.shape).narrow(dim, 0, 1)
    src = torch.randint(10, 99, index.shape).to(dtype)

    got = scatter_src(into, dim, index, src)

    assert got.dtype is dtype
    assert torch.equal(got, aten.scatter.src(into, dim, index, src))


@pytest.mark.parametrize(
    ("into", "index", "src"),
    [((4, 5), (4, 2), (4, 2)), ((4, 5), (3, 1), (3, 1)), ((4, 5), (4, 1), (4, 3)), ((), (), ())],
    ids=["two to a row", "not to every row", "more than is taken", "no dimension"],
)
def test_other_scatters_stay(into, index, src):
    row = torch.zeros(into), 0 if not into else 1, torch.zeros(index, dtype=torch.int64)

    assert scatter_src(*row, torch.ones(src)) is NotImplemented


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_numbers_scattered_to_each_row_are_a_choice(dim):
    into = torch.randn(3, 4)
    index = torch.tensor([[1, 0, 2, 1]]) if dim == 0 else torch.tensor([[3], [0], [2]])

    got = scatter_value(into, dim, index, -1.0)

    assert torch.equal(got, aten.scatter.value(into, dim, index, -1.0))


def test_numbers_scattered_to_some_rows_stay():
    into, index = torch.randn(3, 4), torch.tensor([[1], [2]])
    assert scatter_value(into, 1, index, 2.0) is NotImplemented


def test_scatters_on_a_cpu_stay():
    assert not fusible([torch.zeros(3), 4])
    with FakeTensorMode(), torch.device("cuda"):
        assert aten.scatter.src in fusible([torch.zeros(3), 4])


@pytest.mark.needs_cuda
def test_retraced_graph_on_a_gpu_has_no_scatter():
    def backward(index, cotangent):
        zeros = cotangent.new_zeros(3, 5)
        return (zeros.scatter(1, index, cotangent.expand(3, 1)),)

    row = [torch.tensor([[1], [4], [0]]).cuda(), torch.tensor(2.0).cuda()]
    graph = make_fx(backward)(*row).graph
    retraced = retrace(graph, row, fusible(row))

    assert "scatter" not in retraced.module.code
    torch.testing.assert_close(retraced.module(*row), backward(*row))


# ---- sums ----


def merged(program, *row):
    """The graph of a program with its sums merged, and how many sums are left."""
    retraced = retrace(make_fx(program)(*row).graph, row, {})
    merge_sums(retraced)
    retraced.module.graph.lint()
    sums = [n for n in retraced.module.graph.nodes if "aten.sum" in str(n.target)]
    assert all("val" in n.meta for n in retraced.module.graph.nodes if n.op == "call_function")
    return retraced.module, len(sums)


def loop(x, k):
    total = 0
    for _ in range(5):
        x = (x * k).sin()
        total = total + x.sum(0)
    return (total,)


def shared(x, k):
    first = x.sum()
    return (first + (x * k).sum() + first + x.exp().sum(),)


def two(x, k):
    return x.sum(0) + k.sum(0), (x * k).sum(1, keepdim=True) + x.exp().sum(1, keepdim=True)


def with_more(x, k):
    return (2 + x.sum(0) + k[0] + k.sum(0) + (3 + (k[1] + x.exp().sum(0)) + k[2]),)


def broadcast(x, k):
    return (x.sum(0) + (k + x.exp().sum(0)),)


def doubled(x, k):
    total = x.sum() + k.sum()
    for _ in range(40):
        total = total + total
    return (total,)


@pytest.mark.parametrize(
    ("program", "dtype", "left"),
    [
        (loop, torch.float64, 1),
        (shared, torch.float64, 1),
        (two, torch.float64, 2),
        (with_more, torch.float64, 1),
        (broadcast, torch.float64, 1),
        (doubled, torch.float64, 1),
        (doubled, torch.int64, 1),
        (doubled, torch.complex128, 1),
    ],
)
def test_sum_of_sums_is_one_sum(program, dtype, left):
    row = [torch.randint(-3, 4, (4, 5)).to(dtype) for _ in range(2)]
    module, count = merged(program, *row)

    assert count == left
    for got, want in zip(module(*row), program(*row), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def seen(x, k):
    first = x.sum()
    return first + k.sum(), first.exp()


def of_other_dims(x, k):
    return (x.sum(0) + k.t().sum(1),)


def weighted(x, k):
    return (torch.add(x.sum(), k.sum(), alpha=2),)


def of_a_sum(x, k):
    return (x.sum(0).sum() + k.sum(0).sum(),)


def with_a_number(x, k):
    return (x.sum() + 1,)


@pytest.mark.parametrize(
    ("program", "left"),
    [
        (seen, 2),
        (of_other_dims, 2),
        (weighted, 2),
        (of_a_sum, 3),
        (with_a_number, 1),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_other_sums_stay(program, left):
    row = [torch.randn(4, 5, dtype=torch.float64) for _ in range(2)]
    module, count = merged(program, *row)

    assert count == left
    torch.testing.assert_close(module(*row), program(*row))


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_gradient_of_what_every_step_uses_is_right(backend):
    args = make_inputs("leapfrog", 1000, torch.float64)
    program = PIPELINES["leapfrog"].nested
    combined = pb.combine(program, *args, backend=backend)
    for run in (combined.apply, combined.apply):
        got = torch.autograd.grad(sum(y.sum() for y in run(*args)), args)
        want = torch.autograd.grad(sum(y.sum() for y in program(*args)), args)

        torch.testing.assert_close(got, want)
