"""What PyTorch loads while a process group is there, loaded so that it does not keep the group.

The functions of `torch.distributed.nn` have the group that is there as a default; `torch._dynamo`
loads them. A group that is kept has threads when the interpreter ends, and one of them that still
holds a tensor then ends the process by SIGABRT.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch.distributed as dist


def load_without_group() -> None:
    """Load them as if there were no group, which they then ask for at each call."""
    if not dist.is_available() or not dist.is_initialized():
        return
    members: Any = dist.GroupMember
    world, members.WORLD = members.WORLD, None
    try:
        importlib.import_module("torch.distributed.nn.functional")
    finally:
        members.WORLD = world
