"""The specs of nodes: what a recipe becomes for one layout, for open sizes, or as it is.

- `exact` is compiled for tensors of one layout. Its backward is compiled for the cotangents that
  the recipe was captured with, and for others where that is faster than a copy.
- `open_sizes` is compiled for tensors of every size whose dimensions lie in memory as in a row.
- `eager` is the recipe's text, for everything that the recipe serves.
- `forward_only` is a function that gives the outputs, where nobody asks for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import is_dense
from pullback.derive.backward import silent_among
from pullback.derive.call import Call, Inputs
from pullback.derive.recipe import Recipe
from pullback.errors import CaptureError
from pullback.function.slots import is_batched
from pullback.graph.split import split
from pullback.run import eager as text_backend
from pullback.run.choosing import quickest
from pullback.run.lean import Lean, lean, whole
from pullback.run.node import ANY, EXACT, OPEN, Compiled, Layout, NodeSpec, Pull, Source
from pullback.run.paths import ABSENT, BATCHED, HOOKED, TWICE, Reason
from pullback.run.verify import graph_difference

WAYS = 4  # how many layouts of cotangents get code of their own


@dataclass(frozen=True, slots=True, eq=False)
class Maker:
    """What all specs of one composition share.

    `uncompiled` is told why a backward runs without compiled code, `refused` why something cannot
    be compiled, and `differs` of compiled code that computes something else. Where `verifies`,
    backwards that are compiled later on are compared with their text.
    """

    name: str
    module: str
    derived: Any
    uncompiled: Callable[[Reason], None]
    refused: Callable[[CaptureError], None]
    differs: Callable[[object], None]
    verifies: bool


# ---- nodes ----


def eager(maker: Maker, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that runs the text."""
    parts = recipe.parts
    forward = lean(parts.forward)

    def some(wanted: tuple[bool, ...]) -> Compiled:
        needed = tuple(place for place, want in enumerate(wanted) if want)
        graph = split(parts.joint, replace(parts.cut, needed=needed))[1]
        return text_of(lean(graph), "backward", recipe)

    run = text_of(Lean(forward.graph, made_by(forward)), "forward", recipe)
    spec = _Spec(maker, recipe, row, forward.sources, run)
    return replace(spec.finish(ANY, lambda _: spec.text()), some=some)


def open_sizes(maker: Maker, backend: Any, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that is compiled once for tensors of every size."""
    forward = lean(recipe.parts.forward)
    bare = Lean(forward.graph, made_by(forward))
    run = _Sizes(
        compiled(backend, bare, row, "forward", is_open=True),
        text_of(bare, "forward", recipe),
        maker.refused,
    )
    with torch.no_grad():
        made = run(list(row))
    require_own_memory(recipe, forward.sources, row, made)
    spec = _Spec(maker, recipe, row, forward.sources, run, made)
    pull = lean(recipe.parts.backward)

    def backward(given: Sequence[Any]) -> Pull:
        try:
            code = compiled(backend, pull, given, "backward", is_open=True)
        except CaptureError as error:
            maker.refused(error)
            return spec.text()
        text = text_of(pull, "backward", recipe)
        return Pull(_Sizes(code, text, maker.refused), spec.cotangents)

    return spec.finish(OPEN, backward)


def exact(maker: Maker, backend: Any, recipe: Recipe, row: Sequence[Tensor]) -> NodeSpec:
    """The node that is compiled for tensors of one layout."""
    count = recipe.captured.joint.output_count + recipe.saved_count
    forward = lean(recipe.parts.forward, count)
    bare = Lean(forward.graph, made_by(forward))
    run = compiled(backend, bare, row, "forward", is_open=False)
    with torch.no_grad():
        made = run(list(row))
    require_own_memory(recipe, forward.sources, row, made)
    spec = _Spec(maker, recipe, row, forward.sources, run, made)
    pulls = _Pulls(spec, backend, _donated(spec, backend))
    made_numbers = tuple(spec.numbers)
    return replace(spec.finish(EXACT, pulls), numbers=made_numbers, donated=tuple(pulls.donated))


class _Spec:
    """What a spec is made of: the recipe, a row of inputs, and the compiled forward."""

    def __init__(
        self,
        maker: Maker,
        recipe: Recipe,
        row: Sequence[Tensor],
        sources: Sequence[Any],
        forward: Compiled,
        made: Sequence[Any] | None = None,
    ) -> None:
        self.maker, self.recipe, self.sources, self.forward = maker, recipe, sources, forward
        captured = recipe.captured
        self.inputs = [
            Layout.of(x, needs=one.needs) for x, one in zip(row, captured.inputs, strict=True)
        ]
        count = captured.joint.output_count
        self.end = count + recipe.saved_count
        saved = list(sources[count : self.end])
        self.made = made
        self.kept = (
            ()
            if made is None
            else tuple(
                Layout.of((row if s.is_input else made)[s.place], needs=False) for s in saved
            )
        )
        saved += [s for i in range(len(row)) if (s := Source(True, i)) not in saved]
        self.saved = saved
        self.places = [saved.index(Source(True, i)) for i in range(len(row))]
        self.live = tuple(
            o.index for o in captured.outputs if o.differentiable and o.index is not None
        )
        with torch.no_grad():
            outputs, _, self.numbers = recipe.run_row([x.detach() for x in row])
        self.cotangents = tuple(
            _dense(outputs[place], order)
            for place, order in zip(self.live, recipe.orders, strict=True)
        )

    def text(self) -> Pull:
        """The backward as Python."""
        pull = lean(self.recipe.parts.backward)
        return Pull(text_of(pull, "backward", self.recipe), self.cotangents)

    def finish(self, demands: str, backward: Callable[[Sequence[Any]], Pull]) -> NodeSpec:
        """The spec."""
        count = self.recipe.captured.joint.output_count
        return NodeSpec(
            name=self.maker.name,
            module=self.maker.module,
            demands=demands,
            inputs=tuple(self.inputs),
            forward=self.forward,
            outputs=tuple(self.sources[:count]),
            saved=tuple(self.saved),
            read=self.recipe.saved_count,
            numbers=tuple(self.sources[self.end :]),
            silent=tuple(silent_among(self.recipe.captured, range(count))),
            live=self.live,
            cotangents=self.cotangents,
            backward=backward,
            general=_General(self, backward, demands),
            kept=self.kept,
        )


class _General:
    """The gradients of a call that the compiled backward does not serve as it is."""

    def __init__(
        self, spec: _Spec, backward: Callable[[Sequence[Any]], Pull], demands: str
    ) -> None:
        self.spec, self.backward, self.demands = spec, backward, demands

    def __call__(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool] | None = None,
    ) -> Any:
        spec = self.spec
        wanted = [one.needs for one in spec.inputs] if wanted is None else wanted
        reason = self._reason(kept, cotangents)
        if reason is None:
            return self._with_zeros(kept, numbers, cotangents, wanted)
        if self.demands != ANY:
            spec.maker.uncompiled(reason)
        call = Call(
            spec.recipe,
            numbers,
            Inputs(spec.places),
            lambda: self._kinds(kept),
            spec.recipe.autocast,
            None,
            is_bare=True,
        )
        return tuple(spec.maker.derived.pull(call, kept, cotangents, wanted))

    def _reason(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Reason | None:
        """Why the compiled backward cannot serve; None if it can, with zeros for what is absent."""
        present = [c for c in cotangents if c is not None]
        if torch.is_grad_enabled():
            return TWICE
        if any(map(is_batched, (*kept, *present))):
            return BATCHED
        if self.demands != EXACT or not self._are_as_saved(kept):
            return HOOKED
        if len(present) < len(cotangents) and self.spec.recipe.captured.is_handwritten:
            return ABSENT
        return None

    def _are_as_saved(self, kept: Sequence[Any]) -> bool:
        pairs = zip(kept, self.spec.kept, strict=False)
        return all(Layout.of(x, needs=False) == like and not _is_lazy(x) for x, like in pairs)

    def _with_zeros(
        self,
        kept: Sequence[Any],
        numbers: Sequence[Any],
        cotangents: Sequence[Any],
        wanted: Sequence[bool],
    ) -> tuple[Any, ...]:
        """The gradients with zeros for absent cotangents, and none where only these lead."""
        spec, recipe = self.spec, self.spec.recipe
        absent = {place for place, c in enumerate(cotangents) if c is None}
        pairs = zip(cotangents, spec.cotangents, strict=True)
        laid = [like.empty().zero_() if c is None else like.empty().copy_(c) for c, like in pairs]
        # The compiled backward may write over what is saved: it gets copies here.
        read = [x.clone() for x in kept[: recipe.saved_count]]
        row = [*read, *numbers, *laid]
        made = iter(self.backward(row).run(list(row)))
        pulled = [next(made) if one.needs else None for one in recipe.captured.inputs]
        flows = zip(pulled, wanted, recipe.sources, strict=True)
        return tuple(
            g if want and not (flow and flow <= absent) else None for g, want, flow in flows
        )

    def _kinds(self, kept: Sequence[Any]) -> list[Any]:
        """Shape, dtype and device of each output that carries a gradient."""
        spec = self.spec
        if self.demands == EXACT:
            return [(one.shape, one.dtype, one.device) for one in spec.cotangents]
        with torch.no_grad():
            outputs = spec.recipe.run_row([kept[place] for place in spec.places])[0]
        return [(outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in spec.live]


def _is_lazy(x: Tensor) -> bool:
    return x.is_neg() or x.is_conj()


def _dense(output: Tensor, order: Sequence[int]) -> Layout:
    """The layout of a cotangent without gaps, its dimensions in this order in memory."""
    like = torch.empty_permuted(output.shape, list(order), device="meta")
    return Layout(tuple(output.shape), like.stride(), output.dtype, output.device, False)


# ---- backwards for one layout of inputs ----


class _Pulls:
    """The backwards of an exact node, by the layouts of the cotangents that they are given."""

    def __init__(self, spec: _Spec, backend: Any, donated: Sequence[int]) -> None:
        self.spec, self.backend, self.donated = spec, backend, donated
        self.lean = lean(spec.recipe.parts.backward)
        self.made: dict[Any, Pull] = {}

    def __call__(self, given: Sequence[Any]) -> Pull:
        usual = self.spec.cotangents
        first = len(given) - len(usual)
        layouts = tuple(Layout.of(x, needs=False) for x in given[first:])
        if _steps(layouts) == _steps(usual):
            return self._usual(given)
        key = _steps(layouts)
        if key not in self.made:
            is_free = sum(pull.cotangents != usual for pull in self.made.values()) < WAYS
            own = self._own(given, layouts) if is_free else None
            self.made[key] = own or self._usual(_laid(given, first, usual))
        return self.made[key]

    def _usual(self, given: Sequence[Any]) -> Pull:
        usual = self.spec.cotangents
        key = _steps(usual)
        if key not in self.made:
            try:
                self.made[key] = Pull(self._compiled(given), usual)
            except CaptureError as error:
                self.spec.maker.refused(error)
                self.made[key] = self.spec.text()
        return self.made[key]

    def _own(self, given: Sequence[Any], layouts: tuple[Layout, ...]) -> Pull | None:
        """Code for these very layouts, if it is right, and faster than a copy."""
        spec, first = self.spec, len(given) - len(layouts)
        usual = self._usual(_laid(given, first, spec.cotangents))
        try:
            run = self._compiled(given)
        except CaptureError as error:
            spec.maker.refused(error)
            return None
        if spec.maker.verifies:
            text = text_of(self.lean, "backward", spec.recipe)
            names = [f"the gradient of `{o.name}`" for o in spec.recipe.captured.inputs if o.needs]
            graph = spec.recipe.parts.backward

            def spared(row: list[Any]) -> Sequence[Any]:
                return run(self._spared(row))

            found = graph_difference(spared, text, graph, given, names)
            if found is not None:
                spec.maker.differs(found)
                return None
        times: dict[str, Callable[[], Any]] = {
            "own": lambda: run(self._spared(given)),
            "copy": lambda: usual.run(_laid(self._spared(given), first, spec.cotangents)),
        }
        with torch.no_grad():
            is_own = quickest(times, given) == "own"
        return Pull(run, layouts) if is_own else None

    def _compiled(self, given: Sequence[Any]) -> Compiled:
        return compiled(
            self.backend, self.lean, given, "backward", is_open=False, donated=self.donated
        )

    def _spared(self, given: Sequence[Any]) -> list[Any]:
        """The row, with copies of what the code may write over."""
        pairs = enumerate(given)
        return [Layout.of(x).empty().copy_(x) if i in self.donated else x for i, x in pairs]


def _steps(layouts: Sequence[Layout]) -> tuple[tuple[int, ...], ...]:
    return tuple(one.steps for one in layouts)


def _laid(given: Sequence[Any], first: int, layouts: Sequence[Layout]) -> list[Any]:
    """The row with its cotangents copied into these layouts."""
    pairs = zip(given[first:], layouts, strict=True)
    laid = [x if Layout.of(x).steps == o.steps else o.empty().copy_(x) for x, o in pairs]
    return [*given[:first], *laid]


def _donated(spec: _Spec, backend: Any) -> list[int]:
    """The places of saved tensors that the compiled backward may write over."""
    donates: Callable[[Compiled], bool] = getattr(backend, "donates", lambda forward: False)
    if not donates(spec.forward):
        return []
    pull = lean(spec.recipe.parts.backward)
    places = _unshared(spec.recipe, spec.sources, spec.made or ())
    return [place for place in places if Source(True, place) not in pull.sources]


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


# ---- code for open sizes ----


class _Sizes:
    """Code with open sizes, and the text for sizes and strides that it does not serve."""

    def __init__(self, code: Any, text: Compiled, refused: Callable[[CaptureError], None]) -> None:
        self.code, self.text, self.refused = code, text, refused
        self.found: dict[Any, Compiled] = {}

    def __call__(self, row: list[Any]) -> Sequence[Any]:
        key = tuple([(v.shape, v.stride()) if isinstance(v, Tensor) else v for v in row])
        run = self.found.get(key)
        if run is None:
            run = self._look(row)
            if len(self.found) >= _SIZES:
                self.found.clear()
            self.found[key] = run
        return run(row)

    def _look(self, row: Sequence[Any]) -> Compiled:
        meets: Callable[[Sequence[Any]], bool] = getattr(self.code, "meets", lambda row: True)
        if meets(row):
            code: Compiled = self.code
            return code
        shapes = ", ".join(str(list(v.shape)) for v in row if isinstance(v, Tensor))
        self.refused(CaptureError("code for open sizes must serve the sizes of a call", got=shapes))
        return self.text


_SIZES = 4096  # how many are remembered


def pattern_of(row: Sequence[Tensor]) -> tuple[Any, ...]:
    """How tensors lie in memory, whatever their sizes: code for open sizes serves one pattern."""
    return tuple(_pattern(x) for x in row)


def _pattern(x: Tensor) -> tuple[Any, ...]:
    if x.is_contiguous():
        return ()
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
    return (*order, is_dense(x), *(step == 0 for step in strides))


# ---- outputs alone ----


def forward_only(
    backend: Any, recipe: Recipe, row: Sequence[Tensor]
) -> tuple[Callable[..., Any], Compiled, Lean]:
    """A function of the row that gives the outputs: one as it is, several as a tuple.

    With it come the compiled graph, and the graph.
    """
    forward = lean(recipe.parts.forward, recipe.captured.joint.output_count)
    bare = Lean(forward.graph, made_by(forward))
    code = compiled(backend, bare, row, "forward", is_open=False)
    with torch.no_grad():
        made = code(list(row))
    require_own_memory(recipe, forward.sources, row, made)
    run = whole(forward, code)

    def outputs(*row: Any) -> Any:
        with torch.no_grad():
            made = run(list(row))
        return made[0] if len(forward.sources) == 1 else tuple(made)

    return outputs, code, bare


# ---- compiled graphs ----


def compiled(
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
    found = complete(one, made)
    if is_open and found is not made:
        found = _meeting(found, made)
    return found


def _meeting(run: Compiled, code: Any) -> Compiled:
    """`run`, which serves what `code` serves."""

    def call(row: list[Any]) -> Sequence[Any]:
        return run(row)

    call.meets = code.meets  # type: ignore[attr-defined]
    return call


def made_by(one: Lean) -> tuple[Source, ...]:
    """What a lean graph itself returns."""
    return tuple(Source(False, i) for i in range(one.made_count))


def text_of(one: Lean, name: str, recipe: Recipe) -> Compiled:
    """A lean graph as Python."""
    if not one.made_count:
        return whole(one, lambda row: ())
    program, names = recipe.captured.name, recipe.parts.names
    return whole(one, text_backend.specialise(one.graph, name=name, program=program, names=names))


def require_own_memory(
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
                fix="clone it before it is returned",
            )
