"""Combined modules under DDP and FSDP2, in two processes: they train as the modules as written."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

PROGRAM = """
import copy
import faulthandler
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import pullback as pb

faulthandler.dump_traceback_later(600, exit=True)  # no process stays, whatever the other does
how, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
limit = timedelta(seconds=300)
dist.init_process_group(
    "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=limit
)
mesh = init_device_mesh("cpu", (2,))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return torch.tanh(self.norm(self.layer(x)))


x = torch.randn(3, 4, dtype=torch.float64)


def made():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).double()


def combined(module):
    return pb.combine(module, x, backend="eager")


def wrapped(module, compose):
    if how == "blocks":
        for place, block in enumerate(module):
            module[place] = fully_shard(compose(block), mesh=mesh)
        return fully_shard(module, mesh=mesh)
    if how == "meta":
        module = compose(module.to("meta"))
        fully_shard(module, mesh=mesh)
        module.to_empty(device="cpu")
        for number, parameter in enumerate(module.parameters()):
            nn.init.constant_(parameter, 0.1 * (number + 1))
        for block in module:
            block.norm.reset_running_stats()
        return module
    if how == "sharded":
        return compose(fully_shard(module, mesh=mesh))
    module = compose(module)
    if how == "inner":
        fully_shard(module[0], mesh=mesh)
    return DistributedDataParallel(module) if how == "ddp" else fully_shard(module, mesh=mesh)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def trained(module):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        for part in range(2):  # gradients of two calls are accumulated
            drawn = torch.Generator().manual_seed(100 * step + 10 * part + rank)
            output = module(torch.randn(3, 4, dtype=torch.float64, generator=drawn))
            loss = output.square().mean()
            loss.backward()
        losses += [loss.detach(), whole(clip_grad_norm_(module.parameters(), 0.1))]
        optimizer.step()
        optimizer.zero_grad()
    values = [whole(one) for one in (*module.parameters(), *module.buffers())]
    return [*losses, *values], output.grad_fn.name()


expected, _ = trained(wrapped(made(), lambda module: module))
got, name = trained(wrapped(made(), combined))
torch.testing.assert_close(got, expected)
print(name)
dist.destroy_process_group()
"""

NODES = {
    "ddp": "SequentialBackward",
    "whole": "SequentialBackward",
    "blocks": "BlockBackward",
    "inner": "TanhBackward0",  # parameters are gathered by the hooks of a part: as written
    "meta": "SequentialBackward",
    "sharded": "FSDPSequentialBackward",
}


@pytest.mark.parametrize("how", NODES)
def test_training_agrees_with_the_module_as_written(how, tmp_path, run_python):
    store = str(tmp_path / "store")
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(run_python, "-c", PROGRAM, how, store, str(rank), folder=ROOT)
            for rank in range(2)
        ]
    for rank in ranks:
        assert rank.result().returncode == 0, rank.result().stderr
        assert rank.result().stdout.strip().splitlines()[-1] == NODES[how]
