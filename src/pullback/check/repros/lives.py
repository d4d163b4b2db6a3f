"""Repros of what a call leaves behind or writes where it must not: memory, state, mutation."""

from __future__ import annotations

from itertools import islice

from pullback.check.example import Example, can_differ
from pullback.check.inputs.shapes import sizes_of
from pullback.check.others import other_values
from pullback.check.repros import gradients
from pullback.check.repros.scene import (
    Scene,
    compared,
    indented,
    rounded,
    scene_at,
    text_of,
)
from pullback.check.repros.trying import fails

EDIT = "mul_(0.5).add_(0.25)"


def _begun(scene: Scene) -> list[str]:
    return [*scene.settings(), *scene.weights(), *scene.done()]


# ---- memory ----


def second_backward(scene: Scene) -> str:
    """Backward twice over one graph: it must not raise, and give the same."""
    if ":" in scene.finding.got:
        return text_of(
            _begun(scene),
            scene.pull(options="retain_graph=True"),
            f"{scene.pull()}  # {scene.finding.got}",
        )
    return text_of(
        _begun(scene),
        f"first = [grad.clone() for grad in {scene.pull(options='retain_graph=True')}]",
        compared(scene.pull(), "first"),
    )


def leak(scene: Scene) -> str:
    """What a call made must be gone when nobody holds it."""
    is_slow = "collector only" in scene.finding.got
    output = scene.output(int(scene.said(r"output (\d+)") or 0))
    what = scene.named(r"input `([^`]+)`") or output
    backward = [] if "never ran" in scene.finding.at else [scene.pull()]
    body = [*scene.settings(), *scene.weights(), *scene.done(), *backward]
    return text_of(
        "import gc",
        "import weakref",
        "",
        "def left():",
        indented([*body, f"return weakref.ref({what})"]),
        "",
        ["gc.disable()"] if is_slow else [],
        "refs = [left() for _ in range(3)]",
        [] if is_slow else ["gc.collect()"],
        'assert refs[-1]() is None, "it is held after the call"',
    )


def stale(scene: Scene) -> str:
    """A change between forward and backward must be noticed, or make no difference."""
    number = scene.said(r"after output (\d+) was changed")
    edited = scene.named(r"after input `([^`]+)` was changed")
    edited = edited or (scene.output(int(number)) if number else "")
    if not edited:
        return ""
    return text_of(
        _begun(scene),
        f"wanted = [grad.clone() for grad in {scene.pull()}]",
        scene.done(),
        "with torch.no_grad():",
        f"    {edited}.{EDIT}  # nobody may read this by now",
        "try:",
        f"    found = {scene.pull()}",
        "except RuntimeError:",
        "    found = wanted  # the change was noticed",
        compared("found", "wanted"),
    )


def on_ctx(scene: Scene) -> str:
    """No attribute of ctx holds a tensor after backward."""
    name = scene.said(r"`ctx\.(\w+)`")
    if not name or not scene.used:
        return ""
    return text_of(
        _begun(scene),
        f"node = {scene.output(scene.used[0])}.grad_fn",
        scene.pull(),
        f'kept = getattr(node, "{name}", None)  # an attribute of ctx, after backward',
        "kept = kept if isinstance(kept, (list, tuple)) else [kept]",
        'assert not any(isinstance(t, torch.Tensor) for t in kept), f"{kept=}"',
    )


# ---- mutation ----


def changed(scene: Scene) -> str:
    """A tensor that backward must leave as it is."""
    number = scene.said(r"^output (\d+)")
    what = scene.named(r"^input `([^`]+)`") or (scene.output(int(number)) if number else "")
    cotangent = scene.said(r"^cotangent of output (\d+)")
    if cotangent:
        what = "g" if scene.is_one else f"g[{scene.used.index(int(cotangent))}]"
    if not what:
        return second_backward(scene)
    return text_of(
        _begun(scene),
        f"before = {what}.detach().clone()",
        scene.pull(),
        f'assert torch.equal({what}, before), f"{{before=}}, after: {{{what}}}"',
    )


def changed_by_forward(scene: Scene) -> str:
    """An input that forward changes must be marked, and then becomes an output."""
    name = scene.named(r"^input `([^`]+)`")
    if not name:
        return ""
    passed = [arg.removesuffix(".clone()") for arg in scene.arguments.split(", ")]
    passed = ["given" if arg == name else arg for arg in passed]
    own = f"{scene.output(0)}.grad_fn"
    marked = f"given.grad_fn is not None and given.grad_fn is {own}"
    test = f"torch.equal(given, before) or ({marked})"
    if scene.finding.rule.name == "needless-dirty":
        test = f"not torch.equal(given, before) or not ({marked})"
    return text_of(
        scene.settings(),
        f"given = {name}.clone()",
        "before = given.detach().clone()",
        scene.done(arguments=", ".join(passed)),
        f'assert {test}, f"{{before=}}, after: {{given}}"',
    )


def field(scene: Scene) -> str:
    """The `.grad` of an input is the caller's."""
    name = scene.named(r"^`\.grad` of input `([^`]+)`")
    if not name:
        return ""
    preset = "as it was" in scene.finding.expected
    value = f"torch.full_like({name}, 0.5)" if preset else "None"
    test = f"{name}.grad is None"
    if preset:
        test = f"{name}.grad is not None and bool(({name}.grad == 0.5).all())"
    return text_of(
        _begun(scene),
        f"{name}.grad = {value}",
        scene.pull(),
        f'assert {test}, f"{{{name}.grad=}}"',
    )


# ---- state ----


def history(scene: Scene) -> str:
    """The same call again must give the same."""
    if ":" in scene.finding.got.partition(" ")[0]:
        return text_of(
            scene.settings(),
            scene.weights(),
            scene.pulling(),
            "for _ in range(6):",
            f"    pull(g)  # {scene.finding.got}",
        )
    results = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    return text_of(
        scene.settings(),
        scene.weights(),
        "",
        "def results():",
        indented(
            [*scene.done(), f"held = [t.detach().clone() for t in [{results}]]"],
        ),
        f"    return [*held, *{scene.pull()}]" if scene.used else "    return held",
        "",
        "wanted = [t.clone() for t in results()]",
        "for _ in range(6):",
        indented(compared("results()", "wanted")),
    )


def between(scene: Scene) -> str:
    """Another call between forward and backward must make no difference."""
    for other in _others(scene):
        text = _between(scene, other)
        if text:
            return text
    return ""


def _others(scene: Scene) -> list[Example]:
    two = other_values(scene.example).map(rounded, "other values")
    every = [two, *islice(sizes_of(two), 4)]
    return [example for example in every if scene.subject.accepts(example)]


def _between(scene: Scene, example: Example) -> str:
    other = scene_at(scene, example)
    names = [f"other_{name}" for name in scene.names]
    lines = [f"other_{line}" for line in other.settings()]
    arguments = ", ".join(
        f"{name}.clone()" if scene.subject.writes_inputs and can_differ(arg) else name
        for name, arg in zip(names, example.args, strict=False)
    )
    text = text_of(
        scene.settings(),
        lines,
        scene.weights(),
        scene.done(),
        f"wanted = {scene.pull()}",
        scene.done(),
        scene.done("other", arguments),
        compared(scene.pull(), "wanted"),
    )
    return text if fails(text, scene) else ""


def after_other(scene: Scene) -> str:
    """What an earlier call with other values left must make no difference."""
    text = gradients.number(scene)
    if not text:
        return ""
    base = scene.subject.base.map(rounded, "as given")
    earlier = scene_at(scene, base.need(scene.example.needs))
    lines = [f"earlier_{line}" for line in earlier.settings()]
    names = ", ".join(f"earlier_{name}" for name in scene.names[: len(earlier.example.args)])
    return text_of(lines, earlier.done("earlier", names), "", text)


def redrawn(scene: Scene) -> str:
    """Backward must not depend on the state of a generator, nor move it."""
    if scene.finding.at.startswith("the state of"):
        if "PyTorch" not in scene.finding.at:
            return text_of(
                "import random",
                "",
                _begun(scene),
                "before = random.getstate()",
                scene.pull(),
                'assert random.getstate() == before, "backward has drawn"',
            )
        return text_of(
            _begun(scene),
            "before = torch.get_rng_state()",
            scene.pull(),
            'assert torch.equal(torch.get_rng_state(), before), "backward has drawn"',
        )
    return text_of(
        "import random",
        "",
        _begun(scene),
        "torch.manual_seed(1), random.seed(1)",
        f"first = [grad.clone() for grad in {scene.pull(options='retain_graph=True')}]",
        "torch.manual_seed(2), random.seed(2)",
        compared(scene.pull(), "first"),
    )


# ---- aliases ----


def shared_for_ones(scene: Scene) -> str:
    """The same, for cotangents of ones."""
    return shared(scene, is_plain=True)


def shared(scene: Scene, is_plain: bool = False) -> str:
    """Two tensors that must have memory of their own."""
    at, got = scene.finding.at, scene.finding.got
    pointer = "untyped_storage().data_ptr()"
    if scene.finding.rule.name == "gradient-aliases-input":
        holder = _held_by(scene, got)
        which = scene.names[scene.position] if scene.name else ""
        if not holder or which not in scene.leaves:
            return ""
        ones = [f"g = {scene.each('torch.ones_like(g)', 'g')}"] if is_plain else []
        return text_of(
            _begun(scene),
            ones,
            f"got = {scene.pull()}[{scene.leaves.index(which)}]",
            f'assert got.{pointer} != {holder}.{pointer}, "the gradient has its memory"',
        )
    if scene.finding.rule.name == "overlapping-outputs":
        one, two = (scene.output(int(n)) for n in at.removeprefix("outputs ").split(" and "))
        test = f"{one}.{pointer} != {two}.{pointer}"
        return text_of(scene.settings(), scene.done(), f'assert {test}, "one memory for two"')
    number = scene.said(r"^output (\d+)")
    out = scene.output(int(number or 0))
    if scene.finding.rule.name == "view-output":
        own = f"{out}.untyped_storage().nbytes() == {out}.nbytes"
        return text_of(scene.settings(), scene.done(), f'assert {own}, "a view into more memory"')
    holder = _held_by(scene, got)
    test = f"{out}._is_view() or {out}.{pointer} != {holder}.{pointer}"
    return text_of(scene.settings(), scene.done(), f'assert {test}, "the memory of an input"')


def _held_by(scene: Scene, words: str) -> str:
    """The tensor whose memory is shared, as a finding names it."""
    for i, name in enumerate(scene.run.names):
        if f"`{name}`" in words:
            return scene.names[i]
    for i in range(len(scene.run.outputs)):
        if f"output {i}" in words:
            return scene.output(i)
    return ""


def reused(scene: Scene) -> str:
    """What a call gave must be the same after the next call."""
    number = scene.said(r"^output (\d+)")
    other = [f"{name}.detach() * 0.5" if name in scene.floats else name for name in scene.names]
    again = scene.done(out="other", arguments=", ".join(other[: len(scene.example.args)]))
    kept = f"[{scene.output(int(number))}]" if number else scene.pull()
    more = [] if number else scene.weights("h", draw=1)
    pulled = [] if number else [scene.pull(g="h")]
    return text_of(
        _begun(scene),
        f"kept = {kept}",
        "wanted = [t.detach().clone() for t in kept]",
        more,
        again if number else [*scene.done(), *pulled],
        compared("kept", "wanted"),
    )
