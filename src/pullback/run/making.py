"""How the recipe of a derived Function becomes a light node, with one backend or another.

The eager node serves every size and layout that its capture serves. A backend that compiles for one
layout gives a node for that layout alone; for further sizes of contiguous tensors it compiles once
more, with the sizes left open. What it cannot compile runs eagerly, and the reason is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.derive.backward import silent_among
from pullback.derive.call import Call, Inputs
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.graph.split import split
from pullback.run import eager
from pullback.run.choosing import fastest
from pullback.run.lean import Lean, lean, whole
from pullback.run.node import ANY, DENSE, EXACT, Compiled, Layout, NodeSpec, Source, make_node

STATIC = 8  # how many layouts of one recipe are compiled for

Node = Callable[..., Any]


@dataclass(eq=False)
class Nodes:
    """The light nodes of one derived Function; safe to use from several threads.

    `derived` is what its class knows; `backends` are the modules of the backends, of which the
    fastest is taken. `reasons` says why something that should be compiled is not, `choices` which
    backends run it.
    """

    name: str
    module: str
    derived: Any
    backends: Mapping[str, Any]
    reasons: list[str] = field(default_factory=list)
    choices: dict[Any, str] = field(default_factory=dict)
    _open: dict[Any, Node] = field(default_factory=dict)
    _fixed: dict[Any, dict[Any, Node]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)

    def find(self, recipe: Recipe, row: Sequence[Tensor]) -> Node | None:
        """The node for a row of tensors; None where only the general way is right."""
        is_usual = _is_live(recipe) and not _is_shadowed(recipe)
        if recipe.is_random or not recipe.has_contiguous_cotangents or not is_usual:
            return None
        if recipe.captured.sees_offsets:
            return None  # compiled code counts from the beginning of a tensor, not of its memory
        if any(x.is_neg() or x.is_conj() or x.is_meta for x in row):
            return None  # its memory holds the negative (`z.conj().imag`), which code does not see
        with self._lock:
            key = recipe, sum(x.numel() for x in row).bit_length()
            if key not in self.choices:
                self.choices[key] = self._fastest(recipe, row)
            return self._node(self.choices[key], recipe, row)

    def _fastest(self, recipe: Recipe, row: Sequence[Tensor]) -> str:
        """The backend that runs tensors of about these sizes fastest."""
        if len(self.backends) == 1:
            return next(iter(self.backends))
        return fastest({name: self._node(name, recipe, row) for name in self.backends}, row)

    def _node(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node:
        """The node of one backend; the eager one where that cannot compile."""
        backend = self.backends[name]
        if backend is eager:
            return self._eager(recipe, row)
        fixed = self._fixed.setdefault((name, recipe), {})
        key = tuple(Layout.of(x) for x in row)
        is_open = bool(fixed) and all(x.is_contiguous() for x in row)
        if key not in fixed and is_open:
            return self._shared(name, recipe, row)
        if key not in fixed and len(fixed) >= STATIC:
            return self._eager(recipe, row)
        if key not in fixed:
            make: Callable[[NodeSpec], Node] = getattr(backend, "make_node", make_node)
            try:
                fixed[key] = make(_exact(self, backend, recipe, row))
            except CaptureError as error:
                self.note(error)
                fixed[key] = self._eager(recipe, row)
        return fixed[key]

    def _shared(self, name: str, recipe: Recipe, row: Sequence[Tensor]) -> Node:
        """The node of a backend that serves every size of contiguous tensors."""
        if (name, recipe) not in self._open:
            try:
                spec = _dense(self, self.backends[name], recipe, row)
            except CaptureError as error:
                self.note(error)
                self._open[name, recipe] = self._eager(recipe, row)
            else:
                self._open[name, recipe] = make_node(spec)
        return self._open[name, recipe]

    def _eager(self, recipe: Recipe, row: Sequence[Tensor]) -> Node:
        if ("eager", recipe) not in self._open:
            self._open["eager", recipe] = make_node(_any(self, recipe, row))
        return self._open["eager", recipe]

    def text(self) -> str:
        """The backends in words, and which of them were chosen so far."""
        names = list(self.backends)
        if len(names) == 1:
            return f'backend "{names[0]}"'
        chosen = dict.fromkeys(self.choices.values())
        return 'backend "auto"' + (f" ({', '.join(chosen)})" if chosen else "")

    def note(self, error: CaptureError) -> None:
        """Keep why something is not compiled."""
        got = error.facts["got"]
        reason = " ".join((error.rule + (f": {got}" if got else "")).split())
        if reason not in self.reasons:
            self.reasons.append(reason)


def _is_live(recipe: Recipe) -> bool:
    """Whether there is anything to differentiate."""
    captured = recipe.captured
    return any(o.differentiable for o in captured.outputs) and any(i.needs for i in captured.inputs)


def _is_shadowed(recipe: Recipe) -> bool:
    """Whether one value is returned both with a gradient and without: `return y, y.detach()`."""
    captured = recipe.captured
    row = captured.joint.outputs
    live = [row[o.index] for o in captured.outputs if o.differentiable and o.index is not None]
    return any(one in live for one in silent_among(captured, row))


# ---- specs ----


def _any(nodes: Nodes, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that runs the text."""
    parts = recipe.parts
    forward = lean(parts.forward)

    def backward(_: Sequence[Any]) -> Compiled:
        return _text(lean(parts.backward), "backward", recipe)

    def some(wanted: tuple[bool, ...]) -> Compiled:
        needed = tuple(place for place, want in enumerate(wanted) if want)
        graph = split(parts.joint, replace(parts.cut, needed=needed))[1]
        return _text(lean(graph), "backward", recipe)

    run = _text(Lean(forward.graph, _made(forward)), "forward", recipe)
    spec = _spec(nodes, recipe, row, forward.sources, run, backward, ANY, (), None)
    return replace(spec, some=some)


def _dense(nodes: Nodes, backend: Any, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that is compiled once for contiguous tensors of every size."""
    forward = lean(recipe.parts.forward)
    run = _specialised(backend, Lean(forward.graph, _made(forward)), row, "forward", is_open=True)
    with torch.no_grad():
        made = run(list(row))
    _require_own_memory(recipe, forward.sources, row, made)

    def backward(given: Sequence[Any]) -> Compiled:
        one = lean(recipe.parts.backward)
        if all(x.is_contiguous() for x in given if isinstance(x, Tensor)):
            try:
                return _specialised(backend, one, given, "backward", is_open=True)
            except CaptureError as error:
                nodes.note(error)
        return _text(one, "backward", recipe)

    return _spec(nodes, recipe, row, forward.sources, run, backward, DENSE, (), made)


def _exact(nodes: Nodes, backend: Any, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that is compiled for tensors of one layout."""
    count = recipe.captured.joint.output_count + recipe.saved_count
    forward = lean(recipe.parts.forward, count)
    run = _specialised(backend, Lean(forward.graph, _made(forward)), row, "forward", is_open=False)
    with torch.no_grad():
        made = run(list(row))
    _require_own_memory(recipe, forward.sources, row, made)
    with torch.no_grad():
        numbers = recipe.run(row[: _argument_count(recipe)])[2]
    pull = lean(recipe.parts.backward)
    donated = _unshared(recipe, forward.sources, made) if _donates(backend, run) else []
    donated = [place for place in donated if Source(True, place) not in pull.sources]

    def backward(given: Sequence[Any]) -> Compiled:
        try:
            return _specialised(backend, pull, given, "backward", is_open=False, donated=donated)
        except CaptureError as error:
            nodes.note(error)
        return _text(pull, "backward", recipe)

    spec = _spec(nodes, recipe, row, forward.sources, run, backward, EXACT, numbers, made)
    return replace(spec, donated=tuple(donated))


def _spec(
    nodes: Nodes,
    recipe: Recipe,
    row: Sequence[Tensor],
    sources: Sequence[Any],
    forward: Compiled,
    backward: Callable[[Sequence[Any]], Compiled],
    demands: str,
    numbers: Sequence[Any],
    made: Sequence[Any] | None,
) -> NodeSpec:
    """The spec; `made` is what forward made of `row`, where backward demands its layouts."""
    captured = recipe.captured
    count, end = captured.joint.output_count, captured.joint.output_count + recipe.saved_count
    saved = list(sources[count:end])
    kept = [] if made is None else [(row if s.is_input else made)[s.place] for s in saved]
    saved += [s for i in range(len(row)) if (s := Source(True, i)) not in saved]
    places = [saved.index(Source(True, i)) for i in range(len(row))]
    needs = [one.needs for one in captured.inputs]
    live = tuple(o.index for o in captured.outputs if o.differentiable and o.index is not None)
    silent = silent_among(captured, range(count))
    with torch.no_grad():
        outputs = recipe.run(row[: _argument_count(recipe)])[0]
    cotangents = tuple(_contiguous(outputs[place]) for place in live)

    def general(
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool] = tuple(needs),
    ) -> Any:
        call = Call(
            recipe,
            numbers,
            Inputs(places),
            lambda: _kinds(recipe, row_of(kept)),
            (),
            None,
            is_bare=True,
        )
        return tuple(nodes.derived.pull(call, kept, cotangents, wanted))

    def row_of(kept: Sequence[Any]) -> list[Tensor]:
        return [kept[place] for place in places][: _argument_count(recipe)]

    return NodeSpec(
        name=nodes.name,
        module=nodes.module,
        demands=demands,
        inputs=tuple(Layout.of(x, needs=need) for x, need in zip(row, needs, strict=True)),
        forward=forward,
        outputs=tuple(sources[:count]),
        saved=tuple(saved),
        read=recipe.saved_count,
        numbers=tuple(numbers) or tuple(sources[end:]),
        silent=tuple(silent),
        live=live,
        cotangents=cotangents,
        backward=backward,
        general=general,
        kept=tuple(Layout.of(x, needs=False) for x in kept),
    )


def _argument_count(recipe: Recipe) -> int:
    return sum(one.kind == "argument" for one in recipe.captured.inputs)


def _kinds(recipe: Recipe, tensors: Sequence[Tensor]) -> list[Any]:
    """Shape, dtype and device of each output that carries a gradient."""
    with torch.no_grad():
        outputs = recipe.run(tensors)[0]
    live = [o.index for o in recipe.captured.outputs if o.differentiable and o.index is not None]
    return [(outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in live]


def _contiguous(output: Tensor) -> Layout:
    like = torch.empty(output.shape, dtype=output.dtype, device="meta")
    return Layout(tuple(like.shape), like.stride(), like.dtype, output.device, False)


# ---- compiled graphs ----


def _specialised(
    backend: Any,
    one: Lean,
    row: Sequence[Any],
    name: str,
    *,
    is_open: bool,
    donated: Sequence[int] = (),
) -> Compiled:
    """A lean graph, compiled by a backend for arguments like `row`."""
    if not one.made_count:
        return whole(one, lambda row: ())
    more = {"donated": donated} if donated else {}
    made: Compiled = backend.specialise(one.graph, row, name=name, free_sizes=is_open, **more)
    complete: Callable[[Lean, Compiled], Compiled] = getattr(backend, "whole", whole)
    return complete(one, made)


def _made(one: Lean) -> tuple[Source, ...]:
    """What a lean graph itself returns."""
    return tuple(Source(False, i) for i in range(one.made_count))


def _text(one: Lean, name: str, recipe: Recipe) -> Compiled:
    """A lean graph as Python."""
    if not one.made_count:
        return whole(one, lambda row: ())
    program, names = recipe.captured.name, recipe.parts.names
    return whole(one, eager.specialise(one.graph, name=name, program=program, names=names))


def _donates(backend: Any, forward: Compiled) -> bool:
    """Whether the backend's node gives the compiled backward tensors to write over."""
    donates: Callable[[Compiled], bool] = getattr(backend, "donates", lambda forward: False)
    return donates(forward)


def _unshared(recipe: Recipe, sources: Sequence[Any], made: Sequence[Any]) -> list[int]:
    """Places of saved tensors that forward made for backward alone, each with its own memory."""
    count = recipe.captured.joint.output_count
    outputs, saved = sources[:count], sources[count : count + recipe.saved_count]
    memory = [x.untyped_storage() if isinstance(x, Tensor) else None for x in made]
    begins = [one and one.data_ptr() for one in memory]
    places = []
    for place, source in enumerate(saved):
        if source.is_input or source in outputs or saved.count(source) > 1:
            continue
        x, own = made[source.place], memory[source.place]
        is_whole = own is not None and own.nbytes() == x.numel() * x.element_size() > 0
        if is_whole and begins.count(begins[source.place]) == 1:
            places.append(place)
    return places


def _require_own_memory(
    recipe: Recipe, sources: Sequence[Any], row: Sequence[Tensor], made: Sequence[Any]
) -> None:
    """Raise if an output shares memory with another value: nobody would see it changed in place."""
    count = recipe.captured.joint.output_count
    outputs = [one for one in sources[:count] if isinstance(one, Source)]
    tensors = [(Source(True, i), x) for i, x in enumerate(row)]
    tensors += [(Source(False, i), x) for i, x in enumerate(made) if isinstance(x, Tensor)]
    at = {source: x.untyped_storage().data_ptr() for source, x in tensors if x.numel()}
    for one in outputs:
        if one in at and sum(place == at[one] for place in at.values()) > 1:
            raise CaptureError(
                f"the outputs of `{recipe.captured.name}` must not share memory to be compiled",
                got="an output that is a view of an input or of another value",
            )
