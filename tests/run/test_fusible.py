"""Ops as a GPU fuses them: what they become computes what they computed."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pullback.run.fusible import fusible, scatter_src

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


def test_scatters_on_a_cpu_stay():
    assert not fusible([torch.zeros(3), 4])
    with FakeTensorMode(), torch.device("cuda"):
        assert aten.scatter.src in fusible([torch.zeros(3), 4])


@pytest.mark.needs_cuda
def test_settled_graph_on_a_gpu_has_no_scatter():
    from torch.fx.experimental.proxy_tensor import make_fx

    from pullback.run.settle import settle

    def backward(index, cotangent):
        zeros = cotangent.new_zeros(3, 5)
        return (zeros.scatter(1, index, cotangent.expand(3, 1)),)

    row = [torch.tensor([[1], [4], [0]]).cuda(), torch.tensor(2.0).cuda()]
    graph = make_fx(backward)(*row).graph
    settled = settle(graph, row, fusible(row))

    assert "scatter" not in settled.module.code
    torch.testing.assert_close(settled.module(*row), backward(*row))
