"""Repros of calls that raise, and of calls for which no gradient is asked."""

from __future__ import annotations

from enum import Enum

from pullback.check.repro.scene import Scene, compared, indented, text_of


class Mode(Enum):
    """How forward is called for which no gradient is asked."""

    PLAIN = "when no input needs a gradient"
    NO_GRAD = "under torch.no_grad()"
    INFERENCE = "in torch.inference_mode()"


def raises(scene: Scene) -> str:
    """Forward and backward: what it raises is the failure."""
    if not scene.used:
        return text_of(scene.settings(), f"{scene.done()[-1]}{scene.raised}")
    last = f"({scene.total}).backward(){scene.raised}"
    return text_of(scene.settings(), scene.weights(), scene.done(), last)


def frozen(scene: Scene) -> str:
    """Forward where no input requires grad."""
    return text_of(scene.settings(leaves=False), f"{scene.done()[-1]}{scene.raised}")


def without_grad(scene: Scene) -> str:
    """Forward where no gradient is asked for against the ordinary one."""
    mode = scene.about.detail
    is_inference, is_plain = mode is Mode.INFERENCE, mode is Mode.PLAIN
    context = "torch.inference_mode()" if is_inference else "torch.no_grad()"
    plain = [f"{name} = {name}.detach()" for name in scene.floats] if is_plain else []
    outputs = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    kept = f"[t.detach().clone() for t in [{outputs}]]"
    copies = [f"{n} = {n}.clone()" for n in scene.floats] if is_inference else []
    again = scene.done() if is_plain else [f"with {context}:", *indented([*copies, *scene.done()])]
    again[-1] += scene.raised
    return text_of(
        scene.settings(),
        scene.done(),
        f"wanted = {kept}",
        plain,
        again,
        compared(kept, "wanted"),
    )
