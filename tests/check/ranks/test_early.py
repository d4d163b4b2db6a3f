"""No function of PyTorch keeps the process group that is there when a check is asked for."""

import subprocess
import sys

PROGRAM = """
import torch
import torch.distributed as dist
import pullback as pb

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert "torch.distributed.nn.functional" not in __import__("sys").modules
try:
    pb.check(torch.sin, (torch.ones(2),), ranks=1)
except pb.PullbackError as error:
    print(error.code)
from torch.distributed.nn import functional
print(functional.broadcast.__defaults__, dist.is_initialized())
dist.destroy_process_group()
"""


def test_group_is_no_default_of_functions_that_are_loaded():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)

    assert run.stdout.splitlines() == ["E403", "(None,) True"], run.stderr
