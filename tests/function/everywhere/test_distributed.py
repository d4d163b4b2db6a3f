"""A module with a Function trains under DistributedDataParallel on two gloo processes."""

import os
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import pullback as pb
from tests.function.everywhere.compare import ROWS, Call, assert_equal, weighed
from tests.function.everywhere.functions import ENTRIES

RANKS = 2
SCALES = (0.9, 0.7)


class Scaled(nn.Module):
    """A Function of the parameters; the data of a rank scales them."""

    def __init__(self, f: Call, tensors: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.f = f
        self.values = nn.ParameterList(x.clone() for x in tensors)

    def forward(self, scale: Tensor) -> Tensor:
        return weighed(self.f(*(scale * x for x in self.values)))


def train(rank: int, folder: str) -> None:
    """Differentiate every entry once under DDP, and leave the gradients of this rank in a file."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS
    )
    scale = torch.tensor(SCALES[rank], dtype=torch.float64)
    results = {}
    for name, entry in ENTRIES.items():
        module = DistributedDataParallel(Scaled(entry.build(pb.Function), entry.tensors(ROWS)))
        module(scale).backward()
        results[name] = [parameter.grad for parameter in module.parameters()]
    torch.save(results, f"{folder}/rank{rank}.pt")
    distributed.barrier()
    os._exit(0)  # PyTorch's own threads may abort a process that takes them down (seen once)


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    """The gradients of each rank, by entry."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    # Two processes on one machine need no name service to find each other.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(train, args=(str(folder),), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(RANKS)]


def expected(name: str) -> list[Tensor]:
    """The mean over the data of both ranks, in plain operations in this process."""
    entry = ENTRIES[name]
    module = Scaled(entry.reference, entry.tensors(ROWS))
    scales = torch.tensor(SCALES, dtype=torch.float64)
    torch.stack([module(scale) for scale in scales]).mean().backward()
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("name", ENTRIES)
def test_ranks_share_the_average_gradient(name, of_ranks):
    first, second = (results[name] for results in of_ranks)

    assert_equal(first, second)
    assert_equal(first, expected(name))
