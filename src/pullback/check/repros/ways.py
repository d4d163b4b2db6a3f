"""Repros of calls made another way: compiled, checkpointed, batched, in threads, without grad."""

from __future__ import annotations

from pullback.check.repros.scene import Scene, compared, indented, text_of


def _calling(scene: Scene, name: str = "call") -> list[str]:
    """The lines that define `call`, a function of the arguments that can have a gradient."""
    body = [*scene.done(), "return out"]
    return ["", f"def {name}({', '.join(scene.floats)}):", *indented(body), ""]


def _results(scene: Scene, call: str) -> list[str]:
    """The lines that define `results`: the outputs of a way to call, and the gradients."""
    floats = ", ".join(scene.floats)
    outputs = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    body = [
        f"out = {call}({floats})",
        f"held = [t.detach().clone() for t in [{outputs}]]",
        f"return [*held, *{scene.pull()}]" if scene.used else "return held",
    ]
    return [f"def results({call}):", *indented(body), ""]


def compiled(scene: Scene) -> str:
    """Compiled against eager."""
    way = 'torch.compile(call, backend="aot_eager")'
    if "inductor" in scene.finding.at:
        way = "torch.compile(call)"
    return text_of(
        scene.settings(),
        scene.weights(),
        _calling(scene),
        _results(scene, "way"),
        "wanted = results(call)",
        compared(f"results({way})", "wanted"),
    )


def checkpointed(scene: Scene) -> str:
    """The second forward of a checkpointed call against the first, then the gradients."""
    reentrant = "use_reentrant=True" in scene.finding.at
    floats = ", ".join(scene.floats)
    outputs = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    body = [
        f"out = {scene.call}({scene.arguments})",
        f"seen.append([t.detach().clone() for t in [{outputs}]])",
        "return out",
    ]
    fields = ", ".join(f"{name}.grad" for name in scene.leaves)
    zeros = f"[torch.zeros(()) if grad is None else grad for grad in [{fields}]]"
    found = [f"({scene.total}).backward()", f"found = {zeros}"]
    return text_of(
        "from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop",
        "",
        scene.settings(),
        scene.weights(),
        "seen = []",
        ["", f"def call({floats}):", *indented(body), ""],
        "torch.manual_seed(0)",
        f"out = call({floats})",
        f"wanted = {scene.pull()}",
        "torch.manual_seed(0)",
        "with set_checkpoint_early_stop(False):",
        f"    out = checkpoint(call, {floats}, use_reentrant={reentrant})",
        indented(found if reentrant else [f"found = {scene.pull()}"]),
        compared("seen[2]", "seen[1]"),
        compared("found", "wanted"),
    )


def autocast(scene: Scene) -> str:
    """The gradients of a call under autocast against those of a plain one."""
    cast = f"g = [a.to(b.dtype) for a, b in zip(g, {scene.outputs()})]"
    if scene.is_one:
        cast = "g = g.to(out.dtype)"
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"wanted = {scene.pull()}",
        'with torch.autocast("cpu", torch.bfloat16):',
        indented(scene.done()),
        cast,
        f"for got, expected in zip({scene.pull()}, wanted):",
        "    limit = 0.1 * expected.abs().max()",
        '    assert (got - expected).abs().max() <= limit, f"{got=}, {expected=}"',
    )


def batched(scene: Scene) -> str:
    """`torch.vmap` against a loop."""
    said = scene.said(r"in_dims=(\([^)]*\))")
    if not said:
        return ""
    dims = eval(said, {})
    pairs = list(zip(scene.names, dims, strict=False))
    stacked = {name: f"torch.stack([{name}, 2 * {name}, 0.5 * {name}], {d})" for name, d in pairs}
    rows = [f"{name} = {stacked[name]}" for name, d in pairs if d is not None]
    sample = [name if d is None else f"{name}.select({d}, k)" for name, d in pairs]
    names = ", ".join(name for name, _ in pairs)
    first = scene.output(int(scene.said(r"^output (\d+)") or 0))
    call = f"{scene.call}({', '.join(sample)})"
    text = [
        f"def call({names}):",
        f"    return {scene.call}({names})",
        "",
        f"out = torch.vmap(call, {said})({names})",
    ]
    if scene.finding.at.startswith("vmap"):
        return text_of(
            scene.settings(leaves=False), rows, "", text[:3], f"{text[3]}  # {scene.finding.got}"
        )
    loop = f"torch.stack([{call}{first.removeprefix('out')} for k in range(3)])"
    return text_of(
        scene.settings(leaves=False),
        rows,
        "",
        text,
        f"got, expected = {first}, {loop}",
        "assert got.shape == expected.shape and torch.allclose(got, expected, 1e-3, 1e-5), "
        'f"{got=}, {expected=}"',
    )


# ---- threads, memory and modes around a call ----


def threads(scene: Scene) -> str:
    """Two threads, each forward before either backward, against one."""
    if "another thread than its forward" in scene.finding.at:
        return text_of(
            "from threading import Thread",
            "",
            scene.settings(),
            scene.weights(),
            scene.done(),
            f"wanted = {scene.pull()}",
            scene.done(),
            "found = []",
            f"thread = Thread(target=lambda: found.extend({scene.pull()}))",
            "thread.start(), thread.join()",
            "assert found",
            compared("found", "wanted"),
        )
    floats = ", ".join(scene.floats)
    moved = ", ".join(f"{name}.detach().flip(0) * 0.75" for name in scene.floats)
    body = [
        f"({floats},), barrier = job",
        *(f"{name} = {name}.detach().requires_grad_()" for name in scene.leaves),
        *scene.done(),
        "barrier.wait(10)",
        f"return {scene.pull()}",
    ]
    return text_of(
        "from concurrent.futures import ThreadPoolExecutor",
        "from threading import Barrier",
        "",
        scene.settings(),
        scene.weights(),
        ["", "def work(job):", *indented(body), ""],
        f"rows = [({floats},), ({moved},)]",
        "wanted = [work((row, Barrier(1))) for row in rows]",
        "barrier = Barrier(2)  # both forwards, then both backwards",
        "with ThreadPoolExecutor(2) as pool:",
        "    found = list(pool.map(work, [(row, barrier) for row in rows]))",
        "for k in range(2):",
        indented(compared("found[k]", "wanted[k]")),
    )


def racing(scene: Scene) -> str:
    """Two threads at once, many times, each turn as short as can be, against one."""
    floats = ", ".join(scene.floats)
    moved = ", ".join(f"{name}.detach().flip(0) * 0.75" for name in scene.floats)
    body = [
        *(f"{name} = {name}.detach().requires_grad_()" for name in scene.leaves),
        *scene.done(),
        f"return {scene.pull()}",
    ]
    return text_of(
        "import sys",
        "from concurrent.futures import ThreadPoolExecutor",
        "",
        scene.settings(),
        scene.weights(),
        ["", f"def work({floats}):", *indented(body), ""],
        f"rows = [({floats},), ({moved},)] * 500",
        "wanted = [work(*row) for row in rows[:2]]",
        "sys.setswitchinterval(1e-6)",
        "with ThreadPoolExecutor(2) as pool:",
        "    found = list(pool.map(work, *zip(*rows)))",
        "for k, grads in enumerate(found):",
        indented(compared("grads", "wanted[k % 2]")),
    )


def moved(scene: Scene) -> str:
    """An input that gets other memory between forward and backward, as offloading does."""
    name = scene.named(r"after `([^`]+)` got")
    if not name:
        return ""
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"wanted = {scene.pull()}",
        scene.done(),
        f"old = {name}.data",
        f"{name}.data = old.clone()",
        'old.fill_(float("nan"))  # freed, and used for something else',
        compared(scene.pull(), "wanted"),
    )


def without_grad(scene: Scene) -> str:
    """Forward where no gradient is asked for against the ordinary one."""
    mode = "torch.no_grad()"
    if "inference" in scene.finding.at:
        mode = "torch.inference_mode()"
    is_plain = "no input" in scene.finding.at
    plain = [f"{name} = {name}.detach()" for name in scene.floats] if is_plain else []
    outputs = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    kept = f"[t.detach().clone() for t in [{outputs}]]"
    copies = [f"{n} = {n}.clone()" for n in scene.floats] if "inference" in mode else []
    again = scene.done() if is_plain else [f"with {mode}:", *indented([*copies, *scene.done()])]
    if ":" in scene.finding.got:
        again[-1] += f"  # {scene.finding.got}"
    return text_of(
        scene.settings(),
        scene.done(),
        f"wanted = {kept}",
        plain,
        again,
        compared(kept, "wanted"),
    )


def poisoned(scene: Scene) -> str:
    """Results where PyTorch fills fresh memory with NaN."""
    outputs = ", ".join(scene.output(i) for i in range(len(scene.run.outputs)))
    results = f"[{outputs}, *{scene.pull()}]" if scene.used else f"[{outputs}]"
    return text_of(
        scene.settings(),
        scene.weights(),
        "torch.use_deterministic_algorithms(True, warn_only=True)  # fresh memory is NaN now",
        scene.done(),
        f"for got in {results}:",
        '    assert bool(got.isfinite().all()), f"{got=}"',
    )


# ---- what is marked, returned or accepted ----


def marked(scene: Scene) -> str:
    """An output that requires grad, or must not."""
    number = scene.said(r"^output (\d+)")
    out = scene.output(int(number or 0))
    wanted = "not " if scene.finding.expected.startswith("not to") else ""
    test = f"{wanted}{out}.requires_grad"
    return text_of(scene.settings(), scene.done(), f'assert {test}, "as it is marked"')


def repaired(scene: Scene) -> str:
    """What backward itself returns, before the engine mends it."""
    if not scene.name or not scene.subject.target.is_function or not scene.used:
        return ""
    name = scene.names[scene.position]
    head = scene.call.removesuffix(".apply")
    cotangents = "g" if scene.is_one else "*g"
    return text_of(
        scene.settings(),
        scene.weights(),
        scene.done(),
        f"returned = {head}.backward({scene.output(scene.used[0])}.grad_fn, {cotangents})",
        "returned = returned if isinstance(returned, tuple) else (returned,)",
        f"got = returned[{scene.position}]",
        f"assert (got.dtype, got.shape) == ({name}.dtype, {name}.shape), "
        'f"{got.dtype}, {list(got.shape)}"',
    )


def unseen(scene: Scene) -> str:
    """A tensor that forward uses and autograd does not see."""
    name = scene.said(r"^the global `(\w+)`")
    inside = scene.named(r"^a tensor in `([^`]+)`")
    head = scene.call.removesuffix(".apply")
    if name:
        found = [f'hidden = [vars(sys.modules[{head}.__module__])["{name}"]]']
    elif inside:
        found = [f"hidden = [t.requires_grad_() for t in {inside} if t.is_floating_point()]"]
    else:
        return ""
    return text_of(
        "import sys",
        "",
        scene.settings(),
        found,
        scene.done(),
        "for tensor in hidden:",
        f"    grad = torch.autograd.grad({scene.output(0)}.sum(), tensor, allow_unused=True)[0]",
        '    assert grad is not None, "forward uses it, and it gets no gradient"',
    )


def accepted(scene: Scene) -> str:
    """Arguments that do not fit must be refused."""
    return text_of(
        scene.settings(leaves=False),
        "try:",
        indented(scene.done()),
        "except Exception:",
        "    pass",
        "else:",
        '    raise AssertionError("arguments that do not fit gave a result")',
    )


def frozen(scene: Scene) -> str:
    """Forward where no input requires grad."""
    return text_of(scene.settings(leaves=False), f"{scene.done()[-1]}  # {scene.finding.got}")
