"""A node of the fast path: one program for calls of one kind, with nothing left to decide.

A `NodeSpec` says all that a node needs to know about such calls; whoever asks for a node makes sure
that a call fits it: a call finds its node by a key of all this (`derive.call_table`). `make_node`
is the node in Python: a Function of PyTorch's whose forward and backward are written out for this
very spec. backend "native" makes the same in C++, and checks for itself that a call fits.

What backward meets and the spec does not cover goes to `general`: a backward that is to be
differentiated, an output without cotangent or with a batch of them, a saved tensor that hooks gave
back in another layout.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.autograd.function import Function as TorchFunction

from pullback.capture.layouts import Layout, dense_cotangent, memory_order
from pullback.derive.call_table import MISS as MISS
from pullback.function.generated import run_text
from pullback.function.slots import (
    c_apply,
    engine_runs,
    hidden_from_dynamo,
    is_batched,
    new_class,
    set_materialize,
    set_non_differentiable,
    set_to_save,
)

Compiled = Callable[[list[Any]], Sequence[Any]]
"""A compiled graph: takes the row of its arguments, which it may clear, and checks nothing."""


class LayoutDemand(Enum):
    """What the compiled graphs of a node demand of the layout of its tensors."""

    LAYOUT = "that of the first call"
    PATTERN = "any that its code serves, which looks for itself"
    NOTHING = "nothing"


PULLS = 64  # how many layouts of cotangents are remembered


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where a value comes from: the row of inputs, or what forward made; and its place there."""

    is_input: bool
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Pull:
    """A compiled backward graph, and the layouts in which it reads the cotangents.

    A node that demands no layout lays them out itself, whatever their sizes: there are none then.
    Where it `is_kept`, it serves all cotangents that are laid out like those it was asked for with;
    otherwise it serves these, and the node asks again.
    """

    run: Compiled
    cotangents: tuple[Layout, ...] = ()
    is_kept: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class NodeSpec:
    """All that a node knows of the calls that it serves.

    Attributes:
        name: of the Function; its `grad_fn` is called after it.
        module: where the program is written.
        demand: what the compiled graphs demand of layouts. Where that is `LAYOUT`, a call has
            the layouts of `inputs`; otherwise sizes and strides in them are only examples.
        inputs: one per tensor of the row that the node is called with. `needs` says whether it
            requires grad and has a gradient.
        forward: the compiled forward graph; it gives what is *made*.
        outputs: where each output comes from.
        saved: where each tensor comes from that is kept for backward: first those that the backward
            graph reads, then the other inputs, for `general`.
        read: how many of `saved` the backward graph reads.
        numbers: what the backward graph reads besides: a number, or where it comes from.
        silent: the places of the outputs that are tensors and carry no gradient.
        live: the places of the outputs that carry a gradient.
        cotangents: the layouts of their cotangents that the graphs were captured with: without
            gaps, in the order of the output's dimensions in memory.
        backward: makes the compiled backward graph for a first row of its arguments: what is read,
            the numbers, the cotangents. It gives one gradient per input that needs one. Where the
            node demands a `LAYOUT`, it may be asked again for cotangents in another layout.
        general: gives one gradient per input, by whatever way is right, from the saved tensors, the
            numbers, and a cotangent or None for each output that carries a gradient; those of some
            inputs only, if it is told which.
        kept: the layouts of the saved tensors that the backward graph reads, where they are known:
            hooks may give them back in another one, or with another dtype.
        some: makes a backward graph like the compiled one that computes the gradients of some
            inputs only, for which of those that need one it is; None if there is only the whole.
        donated: the places in `saved` of tensors that the compiled backward may write over. The
            node gives it a copy of one that somebody else may still read.
    """

    name: str
    module: str
    demand: LayoutDemand
    inputs: tuple[Layout, ...]
    forward: Compiled
    outputs: tuple[ValueSource, ...]
    saved: tuple[ValueSource, ...]
    read: int
    numbers: tuple[int | float | ValueSource, ...]
    silent: tuple[int, ...]
    live: tuple[int, ...]
    cotangents: tuple[Layout, ...]
    backward: Callable[[Sequence[Any]], Pull]
    general: Callable[..., Sequence[Any]]
    kept: tuple[Layout, ...] = ()
    some: Callable[[tuple[bool, ...]], Compiled] | None = None
    donated: tuple[int, ...] = ()

    @property
    def shadows(self) -> list[int]:
        """The places of outputs without a gradient that are also returned with one: aliases."""
        live = [self.outputs[place] for place in self.live]
        return [place for place in self.silent if self.outputs[place] in live]


def make_node(spec: NodeSpec) -> Callable[..., Any]:
    """A function of the row of inputs that gives the outputs: one as it is, several as a tuple.

    It must be called with gradient recording on, and with tensors that fit the spec.
    """
    space: dict[str, Any] = {
        "run": spec.forward,
        "general": spec.general,
        "pulls": {},
        "some": functools.cache(spec.some) if spec.some else None,
        "asked": WantedGradients(),
        "layouts": tuple((one.shape, one.stride, one.dtype, False, False) for one in spec.kept),
        "dtypes": tuple(one.dtype for one in spec.kept),
        "is_grad_enabled": torch.is_grad_enabled,
        "is_batched": is_batched,
        "laid_out": dense_cotangent,
        "materialize": set_materialize,
        "save": set_to_save,
        "silence": set_non_differentiable,
    }
    space["begin"] = _beginning(spec, space["pulls"])
    space |= {f"order{i}": _order(one) for i, one in enumerate(spec.cotangents)}
    text = "\n".join([*_forward(spec), *_backward(spec)])
    run_text(text, f"node of {spec.name}", space)
    methods = {
        "forward": staticmethod(space["forward"]),
        "backward": staticmethod(hidden_from_dynamo(space["backward"])),
        # PyTorch looks these up at every call, and a failed look-up costs more than a False.
        "boxed_grads_call": False,
        "clear_saved_tensors_on_access": False,
        "__module__": spec.module,
    }
    return c_apply(new_class(spec.name, TorchFunction, methods))


def _beginning(spec: NodeSpec, pulls: dict[Any, Compiled]) -> Callable[[list[Any], Any], Compiled]:
    """What finds the backward for a row whose cotangents have a layout that is new."""

    def begin(row: list[Any], at: Any) -> Compiled:
        pull = spec.backward(row)
        run = fitting_pull(pull, row)
        if pull.is_kept:
            if len(pulls) >= PULLS:
                pulls.clear()
            pulls[at] = run
        return run

    return begin


def fitting_pull(pull: Pull, row: Sequence[Any]) -> Compiled:
    """A backward for rows like `row`, whose cotangents it copies where it reads another layout."""
    first = len(row) - len(pull.cotangents)
    pairs = list(enumerate(pull.cotangents, first))
    other = [(i, like) for i, like in pairs if Layout.of(row[i]).steps != like.steps]
    if not other:
        return pull.run

    def run(row: list[Any]) -> Sequence[Any]:
        for place, like in other:
            row[place] = like.filled(row[place])
        return pull.run(row)

    return run


def _order(layout: Layout) -> list[int] | None:
    """The dimensions as they lie in memory, the outermost first; None if that is their order."""
    order = memory_order(layout.stride)
    return None if order == list(range(len(order))) else order


# ---- what is asked for ----

PATIENCE = 64  # backwards between two questions that are dear and had the usual answer


class WantedGradients:
    """For each input of a node, whether the backward under way wants its gradient.

    To ask costs a microsecond or two, but tens of them for leaves that `autograd.grad` wants. Where
    it was as dear as that and all were wanted, the next backwards are taken to want all, too.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, ctx: Any) -> list[bool]:
        nodes = [node for node, _ in ctx.next_functions]
        if self.left > 0:
            self.left -= 1
            return [node is not None for node in nodes]
        found = [node is not None and engine_runs(node) for node in nodes]
        if None in found and found.count(False) == nodes.count(None):
            self.left = PATIENCE
        return [one is not False for one in found]


# ---- the text of its methods ----


def _forward(spec: NodeSpec) -> list[str]:
    given = [f"x{i}" for i in range(len(spec.inputs))]
    lines = [f"def forward(ctx, {', '.join(given)}):"]
    lines.append(f"    made = run([{', '.join(given)}])")
    lines.append("    materialize(ctx, False)")
    lines += [f"    save(ctx, {_tuple(map(_value, spec.saved))})"] if spec.saved else []
    later = [_value(one) for one in spec.numbers if isinstance(one, ValueSource)]
    lines += [f"    ctx.numbers = {_tuple(later)}"] if later else []
    outputs = [_value(one) for one in spec.outputs]
    for place in spec.silent:
        out, is_shadow = outputs[place], place in spec.shadows
        own = f"{out}.detach()" if is_shadow else f"{out}.detach() if {out}._is_view() else {out}"
        lines.append(f"    shadow{place} = {own}")
        outputs[place] = f"shadow{place}"
    silent = [outputs[place] for place in spec.silent]
    lines += [f"    silence(ctx, {_tuple(silent)})"] if silent else []
    return [*lines, f"    return {outputs[0] if len(outputs) == 1 else _tuple(outputs)}"]


def _backward(spec: NodeSpec) -> list[str]:
    """The text of backward; `compiled` comes with its first run."""
    live = spec.live
    given = [f"g{live.index(i)}" if i in live else f"_{i}" for i in range(len(spec.outputs))]
    cotangents = [f"g{i}" for i in range(len(live))]
    kept = [f"s{i}" for i in range(len(spec.saved))]
    is_later = [isinstance(one, ValueSource) for one in spec.numbers]
    pairs = enumerate(zip(spec.numbers, is_later, strict=True))
    numbers = [f"n{i}" if late else repr(one) for i, (one, late) in pairs]
    later = [number for number, late in zip(numbers, is_later, strict=True) if late]
    lines = [f"def backward(ctx, {', '.join(given)}):"]
    lines += [f"    {_tuple(kept)} = ctx.saved_tensors"] if kept else []
    lines += [f"    {_tuple(later)} = ctx.numbers"] if later else []
    undefined = [f"{g} is None or is_batched({g})" for g in cotangents]
    read = kept[: spec.read]
    unfit = [_unfit(spec, read)] if spec.kept else []
    lines.append(f"    if {' or '.join(['is_grad_enabled()', *undefined, *unfit])}:")
    lines.append(f"        {_to_general(kept, numbers, cotangents)}")
    for g in cotangents:
        lines.append(
            f"    if {g}.is_neg() or {g}.is_conj(): {g} = {g}.resolve_conj().resolve_neg()"
        )
        lines += [f"    {_fitting(spec, g)}"] if spec.demand is not LayoutDemand.LAYOUT else []
    lines.append(f"    row = [{', '.join([*read, *numbers, *cotangents])}]")
    lines += _in_part(spec)
    strides = [f"{g}.stride()" for g in cotangents] if spec.demand is LayoutDemand.LAYOUT else []
    lines.append(f"    at = {_tuple(strides)}")
    lines.append("    pull = pulls.get(at) or begin(row, at)")
    return [*lines, "    made = pull(row)", f"    return {_gradients(spec)}"]


def _to_general(kept: Sequence[str], numbers: Sequence[str], cotangents: Sequence[str]) -> str:
    rows = ", ".join(map(_tuple, (kept, numbers, cotangents)))
    return f"return general({rows}, asked(ctx))"


def _in_part(spec: NodeSpec) -> list[str]:
    """The lines for a backward that wants the gradients of some inputs only.

    One that wants none does not come here, so a single input is always wanted.
    """
    places = [place for place, one in enumerate(spec.inputs) if one.needs]
    if spec.some is None or len(places) < 2:
        return []
    wanted = _tuple(f"asks[{place}]" for place in places)
    lines = ["asks = asked(ctx)", f"if not ({' and '.join(f'asks[{p}]' for p in places)}):"]
    lines += [f"    made = some({wanted})(row)", f"    return {_gradients(spec)}"]
    return [f"    {line}" for line in lines]


def _fitting(spec: NodeSpec, g: str) -> str:
    """A line that brings a cotangent into the memory order that the backward graph reads."""
    place = int(g[1:])
    if _order(spec.cotangents[place]) is None:
        return f"{g} = {g}.contiguous()"
    return f"{g} = laid_out({g}, order{place})"


def _unfit(spec: NodeSpec, read: Sequence[str]) -> str:
    """Whether hooks on saved tensors gave one of them back in another layout, or dtype."""
    if spec.demand is LayoutDemand.PATTERN:
        dtypes = f"{_tuple(f'{s}.dtype' for s in read)} != dtypes"
        return " or ".join([dtypes, *(_is_lazy(s) for s in read)])
    return (
        f"{_tuple(f'({s}.shape, {s}.stride(), {s}.dtype, {_flags(s)})' for s in read)} != layouts"
    )


def _is_lazy(s: str) -> str:
    return f"{s}.is_neg() or {s}.is_conj()"


def _flags(s: str) -> str:
    return f"{s}.is_neg(), {s}.is_conj()"


def _gradients(spec: NodeSpec) -> str:
    needs = [one.needs for one in spec.inputs]
    if all(needs):
        return "made[0]" if len(needs) == 1 else "tuple(made)"
    places = iter(range(sum(needs)))
    return _tuple(f"made[{next(places)}]" if need else "None" for need in needs)


def _value(source: ValueSource) -> str:
    return f"x{source.place}" if source.is_input else f"made[{source.place}]"


def _tuple(values: Any) -> str:
    return "(" + "".join(f"{value}, " for value in values) + ")"
