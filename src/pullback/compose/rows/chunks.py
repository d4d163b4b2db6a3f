"""`chunked`: a program of rows, run a few rows at a time, without its large middle.

A loss head makes of each row of `x` a long row of logits, and of that one number. All logits at
once are the largest tensor of many models, and so is their gradient. Run in chunks of rows, only a
chunk of them is ever there. The captured program, with its backward, says how: what is computed for
each row alone, what is summed over rows, and what is made of the sums (`row_program.py`).

Here it is chosen which arguments have the rows and how many a chunk has, and compared on a few
rows; `chunked_call.py` runs the calls.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import is_odd
from pullback.capture.joint import Capture, capture
from pullback.capture.names import argument_names, program_name
from pullback.capture.trees import flatten, map_leaves, tensor_leaves
from pullback.compose.nested import callable_of, composition
from pullback.compose.options import ComposeOptions
from pullback.compose.rows.call import ChunkedCall
from pullback.derive.backward import placed_call
from pullback.derive.call_table import signature_if_known
from pullback.derive.recipes import Recipes
from pullback.errors import CaptureError, ChunkingError, PullbackError, first_line
from pullback.function.slots import in_forward_mode, transforms_active
from pullback.graph.cost import op_name
from pullback.graph.values import held_value
from pullback.judge.closeness import HalfTheDigits, coarsest_rounding, value_difference
from pullback.run import backends_of
from pullback.run.lowering.retrace import retrace

Rows = int | str | Iterable[int | str] | Mapping[int | str, int]

TRIED = (6, 2)  # rows, and rows of a chunk, with which the loops are compared with the program
CHUNK = {"cpu": 2**24, "cuda": 2**27}  # bytes of the largest tensor of a chunk, at least
SHARE = 2  # of the bytes of sums of products, which are read and written with each chunk
KINDS = 16  # how many kinds of calls are kept


def chunked_program(
    program: Callable[..., Any],
    examples: tuple[Any, ...],
    over: Rows,
    chunks: int | str,
    options: ComposeOptions,
) -> Any:
    """As `pullback.chunked`, which says what it does."""
    program = callable_of(program)
    _require_count(chunks)
    made = ChunkedRecord(program, over, chunks, options.backend)
    cls = composition(program, "chunked", made.call, options.name)
    made.name = cls.__name__
    cls.explain = staticmethod(made.explain)
    if examples:
        made.prepare(examples)
    return cls


def _require_count(chunks: int | str) -> None:
    if chunks != "auto" and not (isinstance(chunks, int) and chunks > 0):
        raise ChunkingError(
            '`chunks` must be a number of chunks, or "auto"', got=repr(chunks), fix='say "auto"'
        )


@dataclass(eq=False)
class ChunkedRecord:
    """What a chunked class knows: its program, and how calls of each kind are run."""

    program: Callable[..., Any]
    over: Rows
    chunks: int | str
    backend: str
    name: str = ""
    kinds: dict[Any, ChunkedCall | None] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.signature = signature_if_known(self.program)
        self.recipes = Recipes(self.program, "inputs")
        self.name = self.name or program_name(self.program)
        backends_of(self.backend)  # raises for what there is not

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Any call."""
        placed, keywords = placed_call(self.signature, args, kwargs)
        tensors = tensor_leaves(placed)
        if transforms_active() or in_forward_mode() or any(map(is_odd, tensors)):
            return self.program(*args, **kwargs)
        found = self._find(placed, keywords)
        return self.program(*args, **kwargs) if found is None else found.call(tensors)

    def prepare(self, examples: Sequence[Any]) -> None:
        """Make it ready for calls like `examples`."""
        self._find(tuple(examples), ())

    def explain(self) -> str:
        """What it does with the calls so far, a line for each kind."""
        lines = dict.fromkeys(
            "chunked: as written, since there are too few rows" if one is None else one.text()
            for one in self.kinds.values()
        )
        return "\n".join(lines) or "chunked: not yet called"

    def _find(self, args: tuple[Any, ...], keywords: tuple[str, ...]) -> ChunkedCall | None:
        kind, layouts, _ = self.recipes.key(args, keywords)
        key = kind, layouts, torch.is_grad_enabled()
        found = self.kinds.get(key, self)
        if found is self or (isinstance(found, ChunkedCall) and not found.is_current()):
            with self.lock:
                found = self._make(args, keywords)
                while len(self.kinds) >= KINDS:
                    self.kinds.pop(next(iter(self.kinds)))
                self.kinds[key] = found
        return found  # type: ignore[return-value]

    def _make(self, args: tuple[Any, ...], keywords: tuple[str, ...]) -> ChunkedCall | None:
        program = self.recipes.program_with(keywords, len(args))
        errors: list[PullbackError] = []
        for dims in self._candidates(program, args):
            maker = _Maker(self, program, args, dims, keywords)
            if maker.rows < 2 * TRIED[0]:
                return None
            try:
                return maker.make()
            except (ChunkingError, CaptureError) as error:
                errors.append(error)
            except Exception as error:  # of the program: these are not all that have the rows
                errors.append(_unrun(self.name, maker, error))
        raise errors[-1]

    def _candidates(
        self, program: Callable[..., Any], args: tuple[Any, ...]
    ) -> Iterator[dict[int, int]]:
        """Which tensors may have the rows, and in which dimension: the fewest first."""
        leaves, _ = flatten(args)
        names = argument_names(program, args)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        known = {names[p]: i for i, p in enumerate(places)}
        known_at = {p: i for i, p in enumerate(places)} if len(leaves) == len(args) else {}
        tensors = [leaves[p] for p in places]
        given = _dims_of(self.over)
        dims: dict[int, int] = {}
        for argument, dim in given.items():
            place = known.get(argument) if isinstance(argument, str) else known_at.get(argument)
            if place is None or not -tensors[place].dim() <= dim < tensors[place].dim():
                raise ChunkingError(
                    f"`over` must name tensors among the arguments of `{self.name}`",
                    expected=", ".join(known),
                    got=repr(argument),
                )
            dims[place] = dim % tensors[place].dim()
        sizes = {tensors[place].shape[dim] for place, dim in dims.items()}
        if len(sizes) != 1:
            raise ChunkingError(
                f"the arguments of `{self.name}` that have the rows must have as many",
                got=" and ".join(map(str, sorted(sizes))),
            )
        if len(dims) > 1:
            yield dims
            return
        ((first, dim),) = dims.items()
        rows = tensors[first].shape[dim]
        others = [
            i
            for i, x in enumerate(tensors)
            if i != first and x.dim() > dim and x.shape[dim] == rows
        ]
        for count in range(len(others) + 1):
            for more in itertools.combinations(others, count):
                yield dict.fromkeys(sorted((first, *more)), dim)


def _dims_of(over: Rows) -> dict[int | str, int]:
    if isinstance(over, (int, str)):
        return {over: 0}
    if isinstance(over, Mapping):
        return dict(over)
    return dict.fromkeys(over, 0)


def _unrun(name: str, maker: _Maker, error: Exception) -> ChunkingError:
    return ChunkingError(
        f"`{name}` must run on a part of its rows",
        got=first_line(error),
        fix=f"name every argument that has the rows in `over`; tried: {maker.names}",
    )


# ---- making ----


@dataclass(eq=False)
class _Maker:
    """What makes the loops for one kind of call, whose tensors `dims` have the rows."""

    record: ChunkedRecord
    program: Callable[..., Any]
    args: tuple[Any, ...]
    dims: dict[int, int]
    keywords: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.tensors = tensor_leaves(self.args)
        place, dim = next(iter(self.dims.items()))
        self.rows = int(self.tensors[place].shape[dim])
        leaves, _ = flatten(self.args)
        every = zip(argument_names(self.program, self.args), leaves, strict=True)
        named = [name for name, leaf in every if isinstance(leaf, Tensor)]
        self.names = " and ".join(f"`{named[place]}`" for place in self.dims)
        self.device = self.tensors[place].device.type
        self.backend = self._backend()

    def _backend(self) -> str:
        names = list(backends_of(self.record.backend))
        return "inductor" if {"inductor", "native"} & set(names) else "eager"

    def make(self) -> ChunkedCall | None:
        """The loops for all rows, after those for a few were compared with the program."""
        rows, part = TRIED
        few = self._with(lambda x, dim: _spread(x, dim, rows))
        # First without values: labels that point at rows would point beyond a few of them.
        trial = self._call(few, rows, part, backend="eager")
        self.record.recipes.fresh(few, self.keywords)  # raises for what no capture can hold
        self._compare(trial, few)
        count = self._chunk_rows(trial)
        if count >= self.rows:
            return None
        return self._call(self.args, self.rows, count, backend=self.backend)

    def _with(self, change: Callable[[Tensor, int], Tensor]) -> tuple[Any, ...]:
        """The arguments, with other tensors in the place of those that have the rows."""
        numbers = itertools.count()

        def leaf(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            place = next(numbers)
            if place not in self.dims:
                return value
            made = change(value.detach(), self.dims[place])
            return made.requires_grad_(value.requires_grad)

        return tuple(map_leaves(leaf, self.args))

    def _chunk_rows(self, trial: ChunkedCall) -> int:
        """How many rows a chunk has."""
        if isinstance(self.record.chunks, int):
            return math.ceil(self.rows / self.record.chunks)
        least = CHUNK.get(self.device, CHUNK["cuda"])
        row, held = trial.costs()
        count = max(least, held // SHARE) // max(row, 1)
        if count >= self.rows:
            return self.rows
        number = math.ceil(self.rows / max(count, 1))
        even = [n for n in range(number, number + number // 4 + 1) if self.rows % n == 0]
        return self.rows // even[0] if even else 8 * math.ceil(self.rows / number / 8)

    # ---- one kind of call ----

    def _call(self, args: Sequence[Any], rows: int, count: int, *, backend: str) -> ChunkedCall:
        sizes = [count] * (rows // count) + ([rows % count] if rows % count else [])
        whole = self._captured(args)
        parts = {}
        for size in dict.fromkeys(sizes):
            some = self._with_of(args, size)
            parts[size] = _decomposed(self._captured(some), tensor_leaves(some))
        graph = _decomposed(whole, tensor_leaves(args))
        _keep_places(graph, whole.joint.graph)
        made = ChunkedCall(self.record.name, self.names, self.program, whole, rows, count, backend)
        made.build(graph, parts, sizes)
        return made

    def _with_of(self, args: Sequence[Any], size: int) -> tuple[Any, ...]:
        other = _Maker(self.record, self.program, tuple(args), self.dims)
        return other._with(lambda x, dim: x.narrow(dim, 0, size))

    def _captured(self, args: Sequence[Any]) -> Capture:
        records = torch.is_grad_enabled()
        needs = [records and x.requires_grad for x in tensor_leaves(args)]
        return capture(self.program, args, needs=needs, dynamic=False)

    def _compare(self, trial: ChunkedCall, args: tuple[Any, ...]) -> None:
        """Raise unless the loops compute what the program computes, on a few rows."""
        expected = _pulled(lambda row: self.program(*trial.captured.fill(row)), args)
        got = _pulled(trial.call, args)
        allowed = HalfTheDigits(eps=coarsest_rounding(trial.captured.joint.graph))
        for number, (mine, known) in enumerate(zip(got, expected, strict=True)):
            difference = value_difference(f"value {number}", mine, known, allowed)
            if difference is not None:
                raise ChunkingError(
                    f"`{self.record.name}` must compute the same in chunks",
                    got=str(difference),
                    fix="report this program; until then, run it as it is",
                )


def _pulled(run: Callable[[list[Tensor]], Any], args: Sequence[Any]) -> list[Any]:
    """Outputs, and gradients for a cotangent that is not one."""
    row = [x.detach().requires_grad_(x.requires_grad) for x in tensor_leaves(args)]
    outputs = tensor_leaves(run(row))
    live = [one for one in outputs if one.requires_grad]
    needing = [x for x in row if x.requires_grad]
    if not live or not needing:
        return outputs
    given = [torch.full_like(one, -1.75) for one in live]
    return [*outputs, *torch.autograd.grad(live, needing, given, allow_unused=True)]


def _spread(x: Tensor, dim: int, rows: int) -> Tensor:
    """Some rows, from the first to the last."""
    places = torch.linspace(0, x.shape[dim] - 1, rows).long().to(x.device)
    return x.index_select(dim, places)


def _decomposed(captured: Capture, tensors: Sequence[Tensor]) -> fx.Graph:
    """The joint graph, in ops of which `row_rules` knows what they do with rows."""
    row = [x.detach() for x in captured.row(tensors)]
    for node in captured.joint.cotangents:
        like = held_value(node)
        kind = {"dtype": like.dtype, "device": like.device}
        row.append(torch.empty_strided(like.shape, like.stride(), **kind))
    return retrace(captured.joint.graph, row, _core_ops()).module.graph


@functools.cache
def _core_ops() -> Mapping[Any, Callable[..., Any]]:
    """How PyTorch writes its ops in those of its core set."""
    return dict(torch.export.default_decompositions())


def _keep_places(graph: fx.Graph, captured: fx.Graph) -> None:
    """Give nodes the user's lines: those of the same ops, in their order."""
    places: dict[str, list[str]] = {}
    for node in captured.nodes:
        if node.meta.get("place"):
            places.setdefault(op_name(node), []).append(node.meta["place"])
    for node in graph.nodes:
        found = places.get(op_name(node))
        if found:
            node.meta["place"] = found.pop(0) if len(found) > 1 else found[0]
