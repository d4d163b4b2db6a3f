"""An output must not be the memory of an input without autograd knowing.

What it checks
    Whether an output shares memory with an input while it is neither a view that autograd tracks
    nor an input marked dirty.

Why it matters
    An in-place op on the output then changes the input, and no version counter moves: ops that
    saved the input compute wrong gradients in silence.

Fails
    return x.detach()

Passes
    return x.view_as(x)        # or x.clone()

Cannot see
    Memory that is shared only for inputs that were not tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.facts import At, Input, Output
from pullback.check.repro.calls import MEMORY
from pullback.check.repro.scene import Scene, text_of
from pullback.check.snapshot import share_memory
from pullback.check.subject import Finding, Rule, Skip, Subject

RULE = Rule(code="A754", name="output-aliases-input", group="alias", profile="quick")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output that is secretly an input."""
    run = subject.run()
    for i, output in enumerate(run.outputs):
        for name, arg in zip(subject.names, run.passed, strict=False):
            if not isinstance(arg, Tensor) or output is arg or output._is_view():
                continue
            if share_memory(output, arg):
                yield subject.finding(
                    RULE,
                    example=subject.base,
                    at=At(Output(i)),
                    expected=f"memory of its own, or a view of `{name}` that autograd tracks",
                    got=f"the memory of `{name}`",
                    detail=Input(name),
                    fix=f"return a clone, or `{name}.view_as({name})`",
                )
                break


def _apart(scene: Scene) -> str:
    """The output and the input whose memory it is."""
    out, holder = scene.code_of(scene.about.thing), scene.code_of(scene.about.detail)
    test = f"{out}._is_view() or {out}.{MEMORY} != {holder}.{MEMORY}"
    return text_of(scene.settings(), scene.done(), f'assert {test}, "the memory of an input"')


REPROS = (_apart,)
