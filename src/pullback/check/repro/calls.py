"""Repros of what a call must leave as it is, and of one whose backward runs twice."""

from __future__ import annotations

from pullback.check.facts import Gradient, Input
from pullback.check.repro.retold import of_change
from pullback.check.repro.scene import Repro, Scene, compared, text_of

# What is the same for two tensors in one memory.
MEMORY = "untyped_storage().data_ptr()"


def begun(scene: Scene) -> list[str]:
    """The lines that make the arguments and cotangents, and call."""
    return [*scene.settings(), *scene.weights(), *scene.done()]


def second_backward(scene: Scene) -> str:
    """Backward twice over one graph: it must not raise, and give the same."""
    first = scene.pull(options="retain_graph=True")
    if scene.raised:
        return text_of(begun(scene), first, f"{scene.pull()}{scene.raised}")
    return text_of(
        begun(scene),
        f"first = [grad.clone() for grad in {first}]",
        compared(scene.pull(), "first"),
    )


def changed_by_backward(scene: Scene) -> Repro | str:
    """A tensor that backward must leave as it is; of a gradient, that a second backward gives."""
    if isinstance(scene.about.thing, Gradient):
        return second_backward(scene)
    what = scene.code_of(scene.about.thing)
    text = text_of(
        begun(scene),
        f"before = {what}.detach().clone()",
        scene.pull(),
        f'assert torch.equal({what}, before), f"{{before=}}, after: {{{what}}}"',
    )
    return Repro(text, of_change(what))


def changed_by_forward(scene: Scene, *, is_needless: bool = False) -> Repro | str:
    """An input that forward changes must be marked, and then becomes an output.

    With `is_needless`, one that it marks must be changed.
    """
    if not isinstance(scene.about.thing, Input):
        return ""
    name = scene.code_of(scene.about.thing)
    passed = [arg.removesuffix(".clone()") for arg in scene.arguments.split(", ")]
    passed = ["given" if arg == name else arg for arg in passed]
    own = f"{scene.output(0)}.grad_fn"
    marked = f"given.grad_fn is not None and given.grad_fn is {own}"
    test = f"torch.equal(given, before) or ({marked})"
    if is_needless:
        test = f"not torch.equal(given, before) or not ({marked})"
    text = text_of(
        scene.settings(),
        f"given = {name}.clone()",
        "before = given.detach().clone()",
        scene.done(arguments=", ".join(passed)),
        f'assert {test}, f"{{before=}}, after: {{given}}"',
    )
    return Repro(text, of_change("given"))


def requires_grad(scene: Scene) -> str:
    """An output that must require grad."""
    return _marked(scene, "")


def requires_no_grad(scene: Scene) -> str:
    """An output that must not require grad."""
    return _marked(scene, "not ")


def _marked(scene: Scene, wanted: str) -> str:
    out = scene.code_of(scene.about.thing) or scene.output(0)
    test = f"{wanted}{out}.requires_grad"
    return text_of(scene.settings(), scene.done(), f'assert {test}, "as it is marked"')
