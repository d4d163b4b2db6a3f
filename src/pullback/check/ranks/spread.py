"""DTensors, which are looked at whole, and cotangents as they are asked for in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pullback.check.findings.facts import Gradient, Output
from pullback.check.ranks.collectives import arrived
from pullback.check.ranks.commands import CotangentLayout, LocalPart, MeshLayout
from pullback.judge.example import exact_copy


def is_spread(value: Any) -> bool:
    """Whether a tensor is a DTensor."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def whole_of(tensor: Tensor) -> Tensor:
    """A tensor as it is sent: all of it."""
    if is_spread(tensor):
        spread: Any = tensor
        tensor = spread.full_tensor()
    return arrived(tensor).detach().cpu()


def layout_of(tensor: Any) -> MeshLayout | None:
    """How a DTensor lies on its mesh, as code; None where that cannot be said."""
    codes = [_placement(placement) for placement in tensor.placements]
    if not all(codes):
        return None
    mesh = tensor.device_mesh
    named = f", mesh_dim_names={mesh.mesh_dim_names}" if mesh.mesh_dim_names else ""
    made = f"DeviceMesh({mesh.device_type!r}, {mesh.mesh.tolist()}{named})"
    return MeshLayout(made, f"[{', '.join(codes)}]")


def _placement(placement: Any) -> str:
    kind = type(placement).__name__
    if kind == "Shard":
        return f"Shard({placement.dim})"
    if kind == "Partial":
        return "Partial()" if placement.reduce_op == "sum" else f"Partial({placement.reduce_op!r})"
    return "Replicate()" if kind == "Replicate" else ""


def put_like(old: Any, value: Tensor) -> Tensor:
    """A value in the place of another one: on its device, and spread as it is."""
    if not is_spread(old):
        return value.to(old.device)
    from torch.distributed.tensor import DTensor, Partial, Replicate  # only where it is in use

    placements = old.placements
    whole = [Replicate() if isinstance(p, Partial) else p for p in placements]
    made = DTensor.from_local(value, old.device_mesh, [Replicate()] * len(whole), run_check=False)
    return made.redistribute(placements=placements).detach()


def replicated_parts(tensors: Mapping[Output | Gradient, Any]) -> Iterator[LocalPart]:
    """The parts of DTensors that are said to be the same on all ranks."""
    for what, tensor in tensors.items():
        if is_spread(tensor):
            kinds = {type(p).__name__ for p in tensor.placements}
            if kinds == {"Replicate"}:
                yield LocalPart(tensor.detach().to_local().cpu(), what)


def laid_cotangent(
    output: Tensor, given: Tensor | None, laid: CotangentLayout, *, is_needed: bool = False
) -> Tensor | None:
    """The cotangent of an output, in memory as it is asked for."""
    if given is None:
        return None
    if is_spread(output):
        spread: Any = output
        made = put_like(_without_partial(spread), given.to(output.dtype))
        return made.requires_grad_(is_needed)
    made = exact_copy(given).to(device=output.device, dtype=output.dtype)
    if laid is CotangentLayout.TRANSPOSED:
        made = _transposed(made)
    elif laid is CotangentLayout.EXPANDED and made.numel():
        made = made.flatten()[:1].reshape([1] * made.dim()).expand(made.shape)
    return made.requires_grad_(is_needed)


def _without_partial(output: Any) -> Any:
    """A DTensor as its cotangent is placed: that of a sum is the same for each part."""
    from torch.distributed.tensor import Partial, Replicate  # only where it is in use

    if not any(isinstance(p, Partial) for p in output.placements):
        return output
    placements = [Replicate() if isinstance(p, Partial) else p for p in output.placements]
    return output.detach().redistribute(placements=placements)


def _transposed(tensor: Tensor) -> Tensor:
    """The same numbers in another order in memory."""
    if tensor.dim() >= 2:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim() == 1:
        wide = tensor.new_zeros(2 * tensor.numel())
        wide[::2] = tensor
        return wide[::2]
    return tensor
