"""Indices that were drawn: on a device where a wrong one is the end, they are tried on a CPU."""

import pytest
import torch

from pullback.capture.indices import has_indices_elsewhere, try_indices


def elsewhere(*shape, dtype=torch.int64):
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("args", "has"),
    [
        ((torch.zeros(3), torch.arange(3)), False),
        ((elsewhere(3, dtype=torch.float32), elsewhere(3, dtype=torch.bool)), False),
        ((torch.zeros(3), {"labels": [elsewhere(3)]}), True),
        ((elsewhere(3, dtype=torch.uint8),), True),
        ((2, "mean"), False),
    ],
)
def test_indices_elsewhere_are_seen(args, has):
    assert has_indices_elsewhere(args) is has


def test_program_on_a_cpu_is_not_called():
    try_indices(lambda *args: 1 / 0, (torch.zeros(3), torch.arange(3)))


@pytest.mark.needs_cuda
def test_index_out_of_range_raises_and_spares_the_gpu():
    table, right, wrong = torch.randn(3).cuda(), torch.tensor([2]).cuda(), torch.tensor([3]).cuda()

    try_indices(torch.Tensor.__getitem__, (table, right))
    with pytest.raises(IndexError):
        try_indices(torch.Tensor.__getitem__, (table, wrong))
    torch.cuda.synchronize()


@pytest.mark.needs_cuda
def test_program_for_one_device_raises():
    here = torch.randn(3).cuda()

    with pytest.raises(RuntimeError):
        try_indices(lambda index: here + index, (torch.arange(3).cuda(),))
