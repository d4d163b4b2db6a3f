"""Second derivatives of two ways to compute the same, side by side.

A capture drops `detach`, and inlines the hand-written rules of Functions: to differentiate its ops
again is not always what the program does. So whatever may be differentiated again is tried.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.equality import equal
from pullback.capture.joint import Capture
from pullback.capture.trees import tensors_in
from pullback.derive.likes import Like, drawn

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""How far two computations of the same may be apart, relative to the largest number in it."""

LARGEST_TRIAL = 2**22
"""Elements of an input beyond which nothing is tried."""


def differs_twice(
    function: Callable[..., Any],
    program: Callable[..., Any],
    captured: Capture,
    likes: Sequence[Like],
) -> bool:
    """Whether `function` of the inputs of a capture is seen to go other ways than `program`.

    Where the program has no second derivative, that counts if somebody wrote a part of its
    backward, who may have meant so; else it is an op that lacks a formula.
    """
    if captured.mutated or any(like.numel > LARGEST_TRIAL for like in likes):
        return False
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = [
                drawn(like, seed) if one.tensor is None else one.tensor
                for seed, (one, like) in enumerate(zip(captured.inputs, likes, strict=True))
            ]
            try:
                mine = _run(function, captured, row, is_whole=True)
            except Exception:  # whatever it is: it says so itself
                return False
            try:
                theirs = _run(program, captured, row, is_whole=False)
            except Exception:
                return captured.is_handwritten
    return not all_close(mine, theirs)


def _run(
    call: Callable[..., Any], captured: Capture, row: Sequence[Tensor], *, is_whole: bool
) -> list[Tensor | None]:
    """The second derivatives of a call by all inputs, or by the arguments of the program."""
    leaves = [
        t.detach().clone().requires_grad_(one.needs) if one.tensor is None else t
        for t, one in zip(row, captured.inputs, strict=True)
    ]
    pairs = list(zip(leaves, captured.inputs, strict=True))
    own = [t for t, one in pairs if one.kind == "argument"]
    given = [t for t, one in pairs if one.is_given] if is_whole else captured.fill(own)
    wanted = [t for t, one in pairs if one.needs]
    return pulled_twice(lambda: tensors_in(call(*given)), wanted)


def pulled_twice(
    call: Callable[[], Sequence[Any]], wanted: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of gradients, by the tensors `wanted` and by the cotangents."""
    torch.manual_seed(1)
    outputs = [y for y in call() if isinstance(y, Tensor) and y.requires_grad]
    cotangents = [random_like(y, 2 + i).requires_grad_() for i, y in enumerate(outputs)]
    first = torch.autograd.grad(outputs, wanted, cotangents, create_graph=True, allow_unused=True)
    total = [(g * random_like(g, 20 + i)).sum().real for i, g in enumerate(first) if g is not None]
    smooth = [part for part in total if part.requires_grad]
    if not smooth:
        return [None] * (len(wanted) + len(cotangents))
    return list(
        torch.autograd.grad(sum(smooth), [*wanted, *cotangents], allow_unused=True)  # type: ignore[arg-type]
    )


# ---- values ----


def random_like(like: Tensor, seed: int) -> Tensor:
    """A tensor of positive numbers of the kind of another."""
    generator = torch.Generator().manual_seed(seed)
    is_complex = like.is_complex()
    shape = (*like.shape, 2) if is_complex else like.shape
    row = torch.rand(shape, generator=generator, dtype=torch.float64) + 0.25
    row = torch.view_as_complex(row) if is_complex else row
    return row.to(device=like.device, dtype=like.dtype)


def all_close(mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two rows of values are equal but for rounding."""
    return len(mine) == len(theirs) and all(map(_close, mine, theirs))


def _close(a: Any, b: Any) -> bool:
    """Whether two values are equal but for rounding; no gradient is as good as zeros."""
    if a is None or b is None:
        some = b if a is None else a
        return some is None or not bool(some.detach().abs().max() > 0 if some.numel() else False)
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    if not (a.is_floating_point() or a.is_complex()):
        return equal(a, b)
    if not a.numel():
        return True
    real = a.real.dtype if a.is_complex() else a.dtype
    scale = float(b.abs().nan_to_num(0, 0, 0).max()) or 1.0
    bound = TOLERANCE.get(real, 1e-3)
    return bool(torch.allclose(a, b, rtol=bound, atol=bound * scale, equal_nan=True))
