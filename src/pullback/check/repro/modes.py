"""Repros of calls that raise, and of calls for which no gradient is asked."""

from __future__ import annotations

from enum import Enum

from pullback.check.repro.context import ReproContext, compared, indented, text_of


class Mode(Enum):
    """How forward is called for which no gradient is asked."""

    PLAIN = "when no input needs a gradient"
    NO_GRAD = "under torch.no_grad()"
    INFERENCE = "in torch.inference_mode()"


def raises(context: ReproContext) -> str:
    """Forward and backward: what it raises is the failure."""
    if not context.used:
        return text_of(context.settings(), f"{context.done()[-1]}{context.raised}")
    last = f"({context.total}).backward(){context.raised}"
    return text_of(context.settings(), context.weights(), context.done(), last)


def frozen(context: ReproContext) -> str:
    """Forward where no input requires grad."""
    return text_of(context.settings(leaves=False), f"{context.done()[-1]}{context.raised}")


def without_grad(context: ReproContext) -> str:
    """Forward where no gradient is asked for against the ordinary one."""
    mode = context.about.detail
    is_inference, is_plain = mode is Mode.INFERENCE, mode is Mode.PLAIN
    without = "torch.inference_mode()" if is_inference else "torch.no_grad()"
    plain = [f"{name} = {name}.detach()" for name in context.floats] if is_plain else []
    outputs = ", ".join(context.output(i) for i in range(len(context.run.outputs)))
    kept = f"[t.detach().clone() for t in [{outputs}]]"
    copies = [f"{n} = {n}.clone()" for n in context.floats] if is_inference else []
    again = (
        context.done() if is_plain else [f"with {without}:", *indented([*copies, *context.done()])]
    )
    again[-1] += context.raised
    return text_of(
        context.settings(),
        context.done(),
        f"wanted = {kept}",
        plain,
        again,
        compared(kept, "wanted"),
    )
