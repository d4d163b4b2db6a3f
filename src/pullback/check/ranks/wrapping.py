"""A Function inside `DistributedDataParallel` or `fully_shard`, with arguments as parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pullback.check.ranks.commands import Around, Wrap
from pullback.judge.example import Example, tensors_in


class Holder(torch.nn.Module):
    """A module whose forward is the target; the arguments at `positions` are its parameters."""

    def __init__(
        self, call: Callable[..., Any], args: Sequence[Any], positions: Sequence[int]
    ) -> None:
        super().__init__()
        self._call, self._args, self._positions = call, tuple(args), tuple(positions)
        for position in positions:
            self.register_parameter(f"p{position}", torch.nn.Parameter(args[position].clone()))

    def forward(self) -> Any:
        """The target at the arguments, with the parameters as they are now."""
        args = list(self._args)
        for position in self._positions:
            args[position] = getattr(self, f"p{position}")
        return self._call(*args)


def wrapped_gradients(
    call: Callable[..., Any],
    example: Example,
    command: Wrap,
    cotangent: Callable[[Tensor, Tensor | None], Tensor | None],
) -> dict[int, Tensor | None]:
    """The gradients of the parameters, by position: what the wrapper leaves in `grad`."""
    args = example.fresh(needs=frozenset(set(example.needs) - set(command.parameters)))
    holder = Holder(call, args, command.parameters)
    module = _wrapped(holder, command.around)
    outputs = tensors_in(module())
    pairs = [
        (output, cotangent(output, given))
        for output, given in zip(outputs, command.cotangents, strict=True)
        if output.requires_grad and given is not None
    ]
    torch.autograd.backward([o for o, _ in pairs], [c for _, c in pairs])
    named = {name.rpartition(".")[2]: p for name, p in module.named_parameters()}
    return {i: _whole_grad(named[f"p{i}"]) for i in command.parameters}


def _wrapped(holder: Holder, around: Around) -> Any:
    if around is Around.DDP:
        return torch.nn.parallel.DistributedDataParallel(holder)
    from torch.distributed.device_mesh import init_device_mesh  # heavy, and for this only
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fully_shard(holder, mesh=mesh, reshard_after_forward=True)


def _whole_grad(parameter: Any) -> Tensor | None:
    grad: Any = parameter.grad
    if grad is None:
        return None
    if type(grad) is not Tensor:
        grad = grad.full_tensor()
    whole: Tensor = grad.detach().cpu()
    return whole
