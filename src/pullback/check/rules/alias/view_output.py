"""A single number, or a part of an input, should not be returned as a view.

What it checks
    Whether an output without dimensions, such as a loss, is a view of a larger buffer that forward
    made; and whether the only output is a view of a part of an input.

Why it matters
    PyTorch refuses every in-place op on such an output (`loss *= n` raised in unsloth#3452), and
    the whole buffer stays alive as long as the output.

Fails
    return losses[0]                   # or x[:n], where x is an input

Passes
    return losses[0].clone()

Cannot see
    Views of whole inputs, which are often meant (`x.view_as(x)`), and views with dimensions of what
    forward made: a slice of a padded result is often meant too, and PyTorch raises where it is
    written into.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.facts import At, Output
from pullback.check.repro.scene import Scene, text_of
from pullback.check.snapshot import share_memory
from pullback.check.subject import Finding, Rule, Severity, Skip, Subject

RULE = Rule(
    code="A753", name="view-output", group="alias", severity=Severity.FRAGILE, profile="quick"
)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per number that is a view into a buffer."""
    if not subject.target.is_function:
        return
    run = subject.run()
    inputs = {n: a for n, a in zip(run.names, run.passed, strict=False) if isinstance(a, Tensor)}
    if len(run.outputs) == 1 and run.live:
        yield from _part(subject, run.outputs[0], inputs)
    for i in run.live:
        output = run.outputs[i]
        if not output._is_view() or output.dim() != 0:
            continue
        if any(share_memory(output, arg) for arg in inputs.values()):
            continue
        held = output.untyped_storage().nbytes()
        used = output.numel() * output.element_size()
        refused = _refuses_in_place(output)
        if held > used and refused:
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Output(i)),
                expected=f"{used} bytes of its own, which may be changed in place",
                got=f"a view into {held} bytes, on which in-place ops raise",
                fix="return a clone of it",
            )


def _part(subject: Subject, output: Tensor, inputs: dict[str, Tensor]) -> Iterator[Finding]:
    """The only output as a part of an input, on which PyTorch's own view would allow a write."""
    for name, arg in inputs.items():
        if not output._is_view() or not 0 < output.numel() < arg.numel():
            continue
        if share_memory(output, arg) and _refuses_in_place(output):
            yield subject.finding(
                RULE,
                example=subject.base,
                at=At(Output(0)),
                expected="memory of its own, which may be changed in place",
                got=f"a view of a part of `{name}`, on which in-place ops raise",
                fix="return a clone of it",
            )


def _refuses_in_place(output: Tensor) -> bool:
    try:
        output.mul_(1)
    except RuntimeError:
        return True
    return False


def _whole(scene: Scene) -> str:
    """The output and the memory that it lies in."""
    out = scene.code_of(scene.about.thing)
    own = f"{out}.untyped_storage().nbytes() == {out}.nbytes"
    return text_of(scene.settings(), scene.done(), f'assert {own}, "a view into more memory"')


REPROS = (_whole,)
