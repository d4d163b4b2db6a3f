"""Repros of what a call must leave as it is, and of one whose backward runs twice."""

from __future__ import annotations

from pullback.check.findings.facts import Gradient, Input
from pullback.check.repro.context import Repro, ReproContext, compared, text_of
from pullback.check.repro.retold import of_change

# What is the same for two tensors in one memory.
MEMORY = "untyped_storage().data_ptr()"


def begun(context: ReproContext) -> list[str]:
    """The lines that make the arguments and cotangents, and call."""
    return [*context.settings(), *context.weights(), *context.done()]


def second_backward(context: ReproContext) -> str:
    """Backward twice over one graph: it must not raise, and give the same."""
    first = context.pull(options="retain_graph=True")
    if context.raised:
        return text_of(begun(context), first, f"{context.pull()}{context.raised}")
    return text_of(
        begun(context),
        f"first = [grad.clone() for grad in {first}]",
        compared(context.pull(), "first"),
    )


def changed_by_backward(context: ReproContext) -> Repro | str:
    """A tensor that backward must leave as it is; of a gradient, that a second backward gives."""
    if isinstance(context.about.thing, Gradient):
        return second_backward(context)
    what = context.code_of(context.about.thing)
    text = text_of(
        begun(context),
        f"before = {what}.detach().clone()",
        context.pull(),
        f'assert torch.equal({what}, before), f"{{before=}}, after: {{{what}}}"',
    )
    return Repro(text, of_change(what))


def changed_by_forward(context: ReproContext, *, is_needless: bool = False) -> Repro | str:
    """An input that forward changes must be marked, and then becomes an output.

    With `is_needless`, one that it marks must be changed.
    """
    if not isinstance(context.about.thing, Input):
        return ""
    name = context.code_of(context.about.thing)
    passed = [arg.removesuffix(".clone()") for arg in context.arguments]
    passed = ["given" if arg == name else arg for arg in passed]
    own = f"{context.output(0)}.grad_fn"
    marked = f"given.grad_fn is not None and given.grad_fn is {own}"
    test = f"torch.equal(given, before) or ({marked})"
    if is_needless:
        test = f"not torch.equal(given, before) or not ({marked})"
    text = text_of(
        context.settings(),
        f"given = {name}.clone()",
        "before = given.detach().clone()",
        context.done(arguments=passed),
        f'assert {test}, f"{{before=}}, after: {{given}}"',
    )
    return Repro(text, of_change("given"))


def requires_grad(context: ReproContext) -> str:
    """An output that must require grad."""
    return _marked(context, "")


def requires_no_grad(context: ReproContext) -> str:
    """An output that must not require grad."""
    return _marked(context, "not ")


def _marked(context: ReproContext, wanted: str) -> str:
    out = context.code_of(context.about.thing) or context.output(0)
    test = f"{wanted}{out}.requires_grad"
    return text_of(context.settings(), context.done(), f'assert {test}, "as it is marked"')
