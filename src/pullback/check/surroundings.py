"""What a check is made in: PyTorch's usual modes, whatever the caller has switched on around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from pullback.capture.fake import apart, is_fake
from pullback.capture.modes import autocast_off
from pullback.errors import ExamplesError
from pullback.judge.example import tensors_in


@contextmanager
def usual_modes() -> Iterator[None]:
    """Gradients recorded, no autocast, no mode or hook of the caller's, tensors that have values.

    A rule that asks for another mode enters it. The default device stays, unless it is "meta".
    """
    is_meta = torch.get_default_device().type == "meta"
    device: Any = torch.device("cpu") if is_meta else nullcontext()
    with apart(), torch.inference_mode(False), torch.enable_grad(), autocast_off(), device:
        yield


def require_plain_inputs(name: str, given: Any) -> None:
    """Raise unless the tensors among the inputs have sizes and values, which rules ask for."""
    for one in tensors_in(given):
        got = _without_values(one)
        if got:
            raise ExamplesError(
                f"the inputs of `{name}` must be tensors that have sizes and values",
                got=got,
                fix="check with a plain tensor of the same kind, such as torch.randn(3, 4)",
            )


def _without_values(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return f"a nested tensor with layout {tensor.layout}"
    if is_fake(tensor):
        return "a fake tensor"
    if tensor.is_meta:
        return "a tensor on the device meta"
    return ""
