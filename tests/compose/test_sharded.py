"""Combined modules under DDP and FSDP2, in a process group of one."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

PROGRAM = """
import copy
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pullback as pb

how, store = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
torch.manual_seed(0)
layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)]
module, x = nn.Sequential(*layers), torch.randn(3, 4)
combined = copy.deepcopy(module)
if how == "blocks":
    for place, block in enumerate(combined):
        combined[place] = fully_shard(pb.combine(block, x, backend="eager"), mesh=mesh)
    wrapped = fully_shard(combined, mesh=mesh)
else:
    combined = pb.combine(combined, x, backend="eager")
    if how == "inner":
        fully_shard(combined[0], mesh=mesh)
    is_ddp = how == "ddp"
    wrapped = DistributedDataParallel(combined) if is_ddp else fully_shard(combined, mesh=mesh)
names = []
for one in (wrapped, module):
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    for _ in range(3):
        output = one(x)
        names.append(output.grad_fn.name())
        output.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
torch.testing.assert_close(wrapped(x), module(x))
print(names[2])
dist.destroy_process_group()
"""

NODES = {
    "ddp": "SequentialBackward",
    "whole": "SequentialBackward",
    "blocks": "SequentialBackward",
    "inner": "TanhBackward0",  # parameters are gathered by the hooks of a part: as written
}


@pytest.mark.parametrize("how", NODES)
def test_training_agrees_with_the_module_as_written(how, tmp_path, run_python):
    run = run_python("-c", PROGRAM, how, str(tmp_path / "store"), folder=ROOT)

    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().splitlines()[-1] == NODES[how]
