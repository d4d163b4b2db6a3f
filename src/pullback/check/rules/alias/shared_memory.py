"""Results that lie in the memory of one another, of an input or of a larger buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations

import torch
from torch import Tensor

from pullback.check.findings.facts import At, Gradient, Input, Output
from pullback.check.findings.registered import Registered
from pullback.check.repro.calls import MEMORY, begun
from pullback.check.repro.context import ReproContext, text_of
from pullback.check.subject.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Severity,
    Skip,
    Subject,
)
from pullback.check.watching.snapshot import share_memory
from pullback.function.slots import version_of
from pullback.judge.run import Run

GRADIENT_ALIASES_INPUT = Rule("A751", "gradient-aliases-input", "alias", Severity.FRAGILE, "quick")
OVERLAPPING_OUTPUTS = Rule("A752", "overlapping-outputs", "alias", Severity.FRAGILE, "quick")
VIEW_OUTPUT = Rule("A753", "view-output", "alias", Severity.FRAGILE, "quick")
OUTPUT_ALIASES_INPUT = Rule("A754", "output-aliases-input", "alias", profile="quick")
SHARED_OUTPUTS = Rule("A755", "shared-outputs", "alias", Severity.FRAGILE, "quick")


def gradient_aliases_input(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that shares memory, for random cotangents and for ones."""
    seen: set[str] = set()
    for of_ones in (False, True):
        run = subject.run()
        cotangents = subject.cotangents(run, 5)
        if of_ones:
            cotangents = tuple(None if c is None else torch.ones_like(c) for c in cotangents)
        try:
            grads = run.pull(cotangents, retain_graph=True)
        except BackwardFailedError as failure:
            yield Skip.refused(GRADIENT_ALIASES_INPUT, "backward fails", failure.raised)
            return
        kept: list[tuple[Input | Output, Tensor]] = list(_inputs(run))
        kept += [(Output(i), output) for i, output in enumerate(run.outputs)]
        for name, gradient in grads.items():
            if gradient is None or name in seen:
                continue
            holder = next((thing for thing, other in kept if share_memory(gradient, other)), None)
            if holder is not None:
                seen.add(name)
                yield subject.finding(
                    GRADIENT_ALIASES_INPUT,
                    example=subject.base,
                    at=At(Gradient(name)),
                    expected="memory of its own",
                    got=f"the memory of {holder}",
                    detail=holder,
                    fix="return a new tensor, by `.clone()` if need be",
                )


def overlapping_outputs(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding."""
    for (i, one), (j, two) in combinations(enumerate(subject.run().outputs), 2):
        if share_memory(one, two):
            yield subject.finding(
                OVERLAPPING_OUTPUTS,
                example=subject.base,
                at=f"outputs {i} and {j}",
                expected="memory of their own",
                got="the same memory",
                detail=(Output(i), Output(j)),
                fix=f"return a clone as output {j}",
            )
            return


def view_output(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per number that is a view into a buffer."""
    if not subject.target.is_function:
        return
    run = subject.run()
    inputs = [(holder.name, arg) for holder, arg in _inputs(run)]
    if len(run.outputs) == 1 and run.live:
        yield from _part(subject, run.outputs[0], inputs)
    for i in run.live:
        output = run.outputs[i]
        if not output._is_view() or output.dim() != 0:
            continue
        if any(share_memory(output, arg) for _, arg in inputs):
            continue
        held = output.untyped_storage().nbytes()
        used = output.numel() * output.element_size()
        if _refusal_in_place(output) and held > used:
            yield subject.finding(
                VIEW_OUTPUT,
                example=subject.base,
                at=At(Output(i)),
                expected=f"{used} bytes of its own, which may be changed in place",
                got=f"a view into {held} bytes, on which in-place ops raise",
                fix="return a clone of it",
            )


def _part(
    subject: Subject, output: Tensor, inputs: Sequence[tuple[str, Tensor]]
) -> Iterator[Finding]:
    """The only output as a part of an input, on which PyTorch's own view would allow a write."""
    for name, arg in inputs:
        if not output._is_view() or not 0 < output.numel() < arg.numel():
            continue
        if share_memory(output, arg) and _refusal_in_place(output):
            yield subject.finding(
                VIEW_OUTPUT,
                example=subject.base,
                at=At(Output(0)),
                expected="memory of its own, which may be changed in place",
                got=f"a view of a part of `{name}`, on which in-place ops raise",
                fix="return a clone of it",
            )


def output_aliases_input(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per output that is secretly an input."""
    run = subject.run()
    for i, output in enumerate(run.outputs):
        for holder, arg in _inputs(run):
            name = holder.name
            if output is arg or output._is_view() or not share_memory(output, arg):
                continue
            yield subject.finding(
                OUTPUT_ALIASES_INPUT,
                example=subject.base,
                severity=Severity.FRAGILE if _is_counted(output, arg) else None,
                at=At(Output(i)),
                expected=f"memory of its own, or a view of `{name}` that autograd tracks",
                got=f"the memory of `{name}`",
                detail=holder,
                fix=f"return a clone, or `{name}.view_as({name})`",
            )
            break


def shared_outputs(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield at most one finding, for the first two outputs in one buffer."""
    if not subject.target.is_function or subject.fails_at_base:
        return
    run = subject.run()
    inputs = {_memory(arg) for _, arg in _inputs(run)}
    seen: dict[int, int] = {}
    for i in run.live:
        place = _memory(run.outputs[i])
        if place in inputs or place == 0:
            continue
        first = seen.setdefault(place, i)
        refusal = "" if first == i else _refusal_in_place(run.outputs[i])
        if refusal:
            yield subject.finding(
                SHARED_OUTPUTS,
                example=subject.base,
                at=f"outputs {first} and {i}",
                expected="memory of their own, which may be changed in place",
                got=f"parts of one buffer: {refusal}",
                fix="make each output by itself, or return clones of the parts",
            )
            return


def _inputs(run: Run) -> Iterator[tuple[Input, Tensor]]:
    """The tensors that a call was given."""
    for name, arg in zip(run.names, run.passed, strict=False):
        if isinstance(arg, Tensor):
            yield Input(name), arg


def _is_counted(output: Tensor, arg: Tensor) -> bool:
    """Whether a write into the output counts as one into the input, so that PyTorch raises where it
    has saved that. What is computed from the input afterwards is wrong in silence all the same.
    """
    before = version_of(arg)
    output.detach().copy_(output.detach().clone())
    return version_of(arg) > before


def _memory(tensor: Tensor) -> int:
    """The address of the memory of a tensor, 0 where it has none of the usual kind."""
    return 0 if tensor.layout != torch.strided else tensor.untyped_storage().data_ptr()


def _refusal_in_place(output: Tensor) -> str:
    """What PyTorch says where an output is changed in place; empty where that is allowed."""
    try:
        output.mul_(1)
    except RuntimeError as error:
        return str(error).split(".")[0]
    return ""


# ---- repros ----


def _gradient_apart(context: ReproContext, *, of_ones: bool = False) -> str:
    """The gradient and what it shares memory with, perhaps for cotangents of ones."""
    which = context.names[context.position]
    if which not in context.leaves:
        return ""
    holder = context.code_of(context.about.detail)
    return text_of(
        begun(context),
        [f"g = {context.each('torch.ones_like(g)', 'g')}"] if of_ones else [],
        f"got = {context.pull()}[{context.leaves.index(which)}]",
        f'assert got.{MEMORY} != {holder}.{MEMORY}, "the gradient has its memory"',
    )


def _output_apart(context: ReproContext) -> str:
    """The output and the input whose memory it is."""
    out, holder = context.code_of(context.about.thing), context.code_of(context.about.detail)
    test = f"{out}._is_view() or {out}.{MEMORY} != {holder}.{MEMORY}"
    return text_of(context.settings(), context.done(), f'assert {test}, "the memory of an input"')


def _outputs_apart(context: ReproContext) -> str:
    """The two outputs that share memory."""
    one, two = (context.code_of(output) for output in context.about.detail)
    test = f"{one}.{MEMORY} != {two}.{MEMORY}"
    return text_of(context.settings(), context.done(), f'assert {test}, "one memory for two"')


def _whole(context: ReproContext) -> str:
    """The output and the memory that it lies in."""
    out = context.code_of(context.about.thing)
    own = f"{out}.untyped_storage().nbytes() == {out}.nbytes"
    return text_of(context.settings(), context.done(), f'assert {own}, "a view into more memory"')


RULES = (
    Registered(
        GRADIENT_ALIASES_INPUT,
        gradient_aliases_input,
        repros=(
            _gradient_apart,
            partial(_gradient_apart, of_ones=True),
        ),
        page="""
A gradient must not be the memory of an input or an output.

What it checks
    Whether a returned gradient shares memory with an input or an output, for random cotangents and
    for ones.

Why it matters
    Gradients are clipped and scaled in place: then the input itself changes.

Fails
    return saved_b if g == 1 else g * saved_b

Passes
    return g * saved_b

Cannot see
    Memory that is shared only for inputs that were not tried. One tensor returned for two inputs is
    fine: PyTorch's own addition does so.
""",
    ),
    Registered(
        OVERLAPPING_OUTPUTS,
        overlapping_outputs,
        repros=(_outputs_apart,),
        page="""
Outputs must not share memory with one another.

What it checks
    Whether writing into one output would change another one.

Why it matters
    An in-place op on one output, as users write after a call, changes the other in silence, and no
    version counter notices.

Fails
    y = x.exp(); return y, y.view(-1)

Passes
    y = x.exp(); return y, y.reshape(-1).clone()

Cannot see
    Outputs that share memory only for some inputs. Slices of one buffer that do not overlap are
    fine.
""",
    ),
    Registered(
        VIEW_OUTPUT,
        view_output,
        repros=(_whole,),
        page="""
A single number, or a part of an input, should not be returned as a view.

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
""",
    ),
    Registered(
        OUTPUT_ALIASES_INPUT,
        output_aliases_input,
        repros=(_output_apart,),
        page="""
An output must not be the memory of an input without autograd knowing.

What it checks
    Whether an output shares memory with an input while it is neither a view that autograd tracks
    nor an input marked dirty.

Why it matters
    An in-place op on the output then changes the input: what is computed from the input afterwards
    has a gradient that knows nothing of the change. And where no version counter moves, as with
    `x.data`, ops that saved the input compute wrong gradients in silence; else that is fragile.

Fails
    return x.detach()

Passes
    return x.view_as(x)        # or x.clone()

Cannot see
    Memory that is shared only for inputs that were not tried.
""",
    ),
    Registered(
        SHARED_OUTPUTS,
        shared_outputs,
        repros=(),  # PyTorch says what it refuses, and why
        page="""
Two outputs should not be parts of one buffer.

What it checks
    Whether two outputs lie in one piece of memory that forward made, so that an in-place op on
    either of them raises.

Why it matters
    PyTorch refuses `gate.mul_(2)` for an output that is a view of a buffer (unsloth#3452), and each
    output keeps the memory of all others alive.

Fails
    y = x * 2; return y[..., :n], y[..., n:]

Passes
    return x[..., :n] * 2, x[..., n:] * 2

Cannot see
    A single view, and views of inputs: both are often meant, and PyTorch says so when one of them
    is written into.
""",
    ),
)
