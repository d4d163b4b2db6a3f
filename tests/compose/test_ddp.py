"""Compositions inside `DistributedDataParallel`: two processes agree with one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import pullback as pb

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.compose.test_ddp import Net

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
net = DistributedDataParallel(Net())
data = torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4)
for step in range(3):
    net.zero_grad()
    net(data[4 * rank : 4 * rank + 4]).square().mean().backward()
torch.save([p.grad for p in net.parameters()], f"{out}.{rank}")
dist.destroy_process_group()
"""


class Doubled(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def layer(x, weight, bias):
    return Doubled.apply(torch.tanh(x @ weight + bias))


class Net(nn.Module):
    """Two layers, each of which is one node."""

    def __init__(self):
        super().__init__()
        values = torch.linspace(-1, 1, 40, dtype=torch.float64)
        self.weights = nn.ParameterList([values[i : i + 16].view(4, 4) for i in (0, 20)])
        self.biases = nn.ParameterList([values[i : i + 4] for i in (16, 36)])
        example = torch.ones(2, 4, dtype=torch.float64)
        self.layer = pb.combine(layer, example, self.weights[0], self.biases[0])

    def forward(self, x):
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = self.layer.apply(x, weight, bias)
        return x


def test_two_processes_agree_with_one(tmp_path, run_python):
    store, out = str(tmp_path / "store"), str(tmp_path / "out")
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(run_python, "-c", PROGRAM, str(rank), store, out, folder=ROOT)
            for rank in range(2)
        ]
    for run in ranks:
        assert run.result().returncode == 0, run.result().stderr
    net = Net()
    data = torch.linspace(-1, 1, 32, dtype=torch.float64).view(8, 4)
    net(data).square().mean().backward()
    for rank in range(2):
        got = torch.load(f"{out}.{rank}")

        torch.testing.assert_close(got, [p.grad for p in net.parameters()])
