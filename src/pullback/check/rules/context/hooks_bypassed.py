"""What backward reads must be seen by saved-tensor hooks, and may come back from other memory.

What it checks
    Under hooks that copy each saved tensor elsewhere, as offloading does, the gradients are the
    same. And no tensor that requires memory lies on a ctx attribute of its own, where no hook sees
    it.

Why it matters
    Offloading, activation checkpointing and memory accounting work by these hooks. A tensor on a ctx
    attribute stays on the device, escapes the check for in-place changes, is a constant to double
    backward, and lives as long as the output does (pytorch#25340).

Fails
    ctx.x = x

Passes
    ctx.save_for_backward(x)

Cannot see
    Tensors in a global or in an object on ctx that is not a list, tuple or dict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pullback.check.example import tensors_in
from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
    is_close,
    worst_of,
)

RULE = Rule(
    code="Q005",
    name="hooks-bypassed",
    group="context",
    severity=Severity.FRAGILE,
    profile="quick",
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield a finding when hooks change the gradients, else one for tensors out of their sight."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    usual = subject.pull()
    with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
        run = subject.run()
    try:
        grads = run.pull(subject.cotangents(run)) if run.live else {}
    except BackwardFailedError as failure:
        yield subject.finding(
            RULE,
            example=subject.base,
            at="backward, with saved tensors that come back from other memory",
            expected="the gradients of an ordinary call",
            got=str(failure),
            fix="read nothing from a saved tensor but its values",
        )
        return
    for name, got in grads.items():
        expected = usual[name]
        if got is None or expected is None or got.shape != expected.shape:
            continue
        if is_close(got, expected, 100):
            continue
        index, have, want = worst_of(got, expected)
        yield subject.finding(
            RULE,
            example=subject.base,
            severity=Severity.WRONG,
            at=f"gradient of `{name}` at {list(index)}, with saved tensors from other memory",
            expected=want,
            got=have,
            fix="read nothing from a saved tensor but its values",
        )
        return
    yield from _out_of_sight(subject)


def _out_of_sight(subject: Subject) -> Iterator[Finding]:
    """A tensor on an attribute of ctx; a `pullback.Function` saves those by itself."""
    if subject.target.is_ours or not subject.target.is_function:
        return
    run = subject.run()
    nodes = [run.outputs[i].grad_fn for i in run.live]
    for name, value in (item for node in nodes for item in getattr(node, "__dict__", {}).items()):
        sizes = [tensor.numel() for tensor in tensors_in(value) if tensor.numel() > 1]
        if name.startswith("_") or not sizes:
            continue
        yield subject.finding(
            RULE,
            example=subject.base,
            at=f"`ctx.{name}`, {sum(sizes)} numbers",
            expected="no tensor on an attribute of ctx",
            got="one, which no saved-tensor hook sees",
            fix=f"ctx.save_for_backward instead of ctx.{name}",
        )
        return


def _pack(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _unpack(kept: Tensor) -> Tensor:
    return kept.clone()
