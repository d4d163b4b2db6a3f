"""Whether a Function keeps for backward what forward computed on the way.

Such a tensor has no history: to a second backward it is a constant.
"""

from __future__ import annotations

from torch import Tensor

from pullback.check.saving import saving
from pullback.check.subject import Subject
from pullback.judge.example import can_differ, tensors_in


def keeps_intermediate(subject: Subject) -> bool:
    """Whether a tensor that is neither input nor output is saved, or lies on ctx."""
    if not subject.target.is_function:
        return False
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with saving(subject.target, pack):
        called = subject.run(subject.small)
    for node in {id(o.grad_fn): o.grad_fn for o in called.outputs}.values():
        packed += tensors_in(list(getattr(node, "__dict__", {}).values()))
    known = {_memory(t) for t in (*tensors_in(called.passed), *called.outputs)}
    return any(can_differ(tensor) and _memory(tensor) not in known for tensor in packed)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
