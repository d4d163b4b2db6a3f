"""The Inductor backend: a graph as fused code, compiled for arguments laid out in one way.

What is compiled checks nothing: for arguments of other strides, dtypes or devices it returns
rubbish. Whoever calls it has compared them with those that it was compiled for, and has switched
autocast off.

Code depends on more than layouts: on the number of threads (`torch.get_num_threads`) and on whether
deterministic algorithms are asked for. Compiled for others of these, it is right, but not what was
asked for.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import Stage
from pullback.capture.modes import one_at_a_time
from pullback.errors import CaptureError
from pullback.graph.cost import base_of, is_opaque
from pullback.graph.parts import calls
from pullback.graph.values import narrowed_to
from pullback.run.backend import Backend, SizedCode
from pullback.run.disk.cache import Entry, entry
from pullback.run.lowering.fusible import FORMS, fusible, merge_sums
from pullback.run.lowering.lower import (
    SETTINGS,
    decompositions,
    device_absence,
    load_lowered,
    lower,
)
from pullback.run.lowering.retrace import retrace
from pullback.run.nodes.node import Compiled

NODES = 3000
"""How many ops a graph may have: compiling takes some 20 ms for each."""

_ALIGNMENT = 16  # bytes; GPU code reads that many at once


class InductorBackend(Backend):
    """Compiles for arguments that are laid out exactly like a row, or for all of its sizes."""

    def absence(self) -> str | None:
        """Why nothing can be compiled here."""
        return device_absence()

    def specialise(
        self, graph: fx.Graph, row: Sequence[Any], *, name: str, donated: Sequence[int] = ()
    ) -> Compiled:
        """See `Backend`."""
        return realigned(aligned_code(graph, row, name=name, donated=donated), row)

    def specialise_all_sizes(self, graph: fx.Graph, row: Sequence[Any], *, name: str) -> SizedCode:
        """See `Backend`."""
        if any(isinstance(value, float) for value in row):
            raise CaptureError(f"the {name} graph must have no numbers but sizes", got="a float")
        call, conditions = _made(graph, row, name, free_sizes=True)
        return _AnySize(realigned(call, row), conditions)


BACKEND = InductorBackend()


def aligned_code(
    graph: fx.Graph, row: Sequence[Any], *, name: str, donated: Sequence[int] = ()
) -> Compiled:
    """As `specialise` for one layout, for arguments whose memory begins at a multiple of 16."""
    return _made(graph, row, name, donated=donated)[0]


def _made(
    graph: fx.Graph,
    row: Sequence[Any],
    name: str,
    *,
    free_sizes: bool = False,
    donated: Sequence[int] = (),
) -> tuple[Compiled, str]:
    """The compiled graph, and what it demands of sizes."""
    _require_what_it_takes(graph, row, name)
    origin = text_of_origin(graph, row, f"{name} {list(donated)}" if donated else name, free_sizes)
    try:
        with one_at_a_time(), entry(origin) as place:
            return _loaded(place) or _built(place, graph, row, name, free_sizes, donated)
    except (OSError, NotImplementedError) as error:  # no lock can be had on some file systems
        raise CaptureError(
            "the cache must be a folder that you, and no other user, can write to",
            got=_in_one_line(error),
            fix="correct its owner and mode, or set PULLBACK_CACHE_DIR to another folder",
        ) from error


def _require_what_it_takes(graph: fx.Graph, row: Sequence[Any], name: str) -> None:
    for device in sorted({v.device.type for v in row if isinstance(v, Tensor)} or {"cpu"}):
        reason = device_absence(device)
        if reason is not None:
            raise CaptureError("Inductor must be able to compile here", got=reason)
    if len(graph.nodes) > NODES:
        raise CaptureError(
            f"the {name} graph must be small enough to compile in a minute or so",
            expected=f"at most {NODES} ops",
            got=f"{len(graph.nodes)} ops",
        )


def _built(
    place: Entry,
    graph: fx.Graph,
    row: Sequence[Any],
    name: str,
    free_sizes: bool,
    donated: Sequence[int],
) -> tuple[Compiled, str]:
    place.empty()
    try:
        parts = {**decompositions(), **fusible(row)}
        retraced = retrace(graph, row, parts, free_sizes=free_sizes)
        merge_sums(retraced)
        spent = _unreturned(retraced.module.graph, donated)
        is_backward = name == "backward"
        lowered = lower(
            retraced,
            place.folder,
            is_backward=is_backward,
            donated=spent,
            keeps_casts=_has_casts(graph),
        )
        conditions = retraced.stage.conditions(retraced.arguments) if free_sizes else ""
    except Exception as error:
        place.empty()
        raise CaptureError(
            f"the {name} graph must be one that Inductor compiles", got=_in_one_line(error)
        ) from error
    if not lowered.module:
        return lowered.call, conditions
    facts = {
        "module": lowered.module,
        "constants": _packed(lowered.constants),
        "trusted": lowered.trusted,
        "instructions": lowered.instructions,
        "conditions": conditions,
    }
    place.seal(facts)
    return _loaded(place) or (lowered.call, conditions)


def _has_casts(graph: fx.Graph) -> bool:
    """Whether the program itself rounds numbers that it goes on with: `x.bfloat16().float()`."""
    return any(narrowed_to(node) and _is_read(node) for node in calls(graph))


def _is_read(node: fx.Node) -> bool:
    return any(user.op != "output" for user in node.users)


def _unreturned(graph: fx.Graph, places: Sequence[int]) -> list[int]:
    """Those of the arguments at `places` whose memory is in no result."""
    returned: Any = graph.output_node().args[0]
    bases = {base_of(one) for one in returned if isinstance(one, fx.Node)}
    inputs = graph.find_nodes(op="placeholder")
    return [place for place in places if inputs[place] not in bases]


def _loaded(place: Entry) -> tuple[Compiled, str] | None:
    """What the cache holds, if that can be run."""
    facts = place.facts()
    if facts is None:
        return None
    try:
        call = load_lowered(
            place.folder,
            facts["module"],
            _unpacked(facts["constants"]),
            trusted=facts["trusted"],
            instructions=facts["instructions"],
        )
    except Exception:
        return None  # made with a compiler or for a processor that has changed meanwhile
    if place.has_grown():
        place.seal(facts)  # a kernel was not in the folder: this process had it from elsewhere
    return call, facts["conditions"]


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# ---- what an entry depends on ----


def text_of_origin(graph: fx.Graph, row: Sequence[Any], name: str, free_sizes: bool) -> str:
    """All that the compiled code depends on, besides torch and the machine."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    lines = [f"{name} {free_sizes} {threads} {strict} {sorted(SETTINGS.items())} {FORMS}"]
    lines += [_layout(value) for value in row]
    lines += [f"{n.op} {n.name} {_target(n)} {n.args} {n.kwargs}" for n in graph.nodes]
    lines += [f"{n.name} {_kind(n.meta['val'])}" for n in graph.nodes if is_opaque(n)]
    return "\n".join(lines)


def _layout(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r}"
    model = _model(value.device) if value.is_cuda else ""
    return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device} {model}"


def _model(device: torch.device) -> str:
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} {found.major}.{found.minor} {found.multi_processor_count}"


def _target(node: fx.Node) -> str:
    """What a node calls, in words that are the same in every process."""
    target: Any = node.target
    is_op = isinstance(target, str) or not hasattr(target, "__qualname__")
    return str(target) if is_op else f"{target.__module__}.{target.__qualname__}"


def _kind(value: Any) -> str:
    """What an op that we cannot look into gives."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return " ".join(f"{v.dtype} {v.dim()}" for v in values if isinstance(v, Tensor))


def _packed(constants: Mapping[str, Tensor]) -> str:
    """Tensors as text."""
    buffer = io.BytesIO()
    torch.save(dict(constants), buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> dict[str, Tensor]:
    buffer = io.BytesIO(base64.b64decode(text))
    constants: dict[str, Tensor] = torch.load(buffer, weights_only=True)
    return constants


# ---- alignment ----


def realigned(call: Compiled, row: Sequence[Any]) -> Compiled:
    """`call` for arguments that may begin anywhere in memory.

    On a CPU, code reads from anywhere; on a GPU it reads several numbers at once.
    """
    places = [i for i, v in enumerate(row) if isinstance(v, Tensor) and v.device.type != "cpu"]
    if not places:
        return call

    def run(arguments: list[Any]) -> Sequence[Any]:
        for place in places:
            if arguments[place].data_ptr() % _ALIGNMENT:
                arguments[place] = _moved(arguments[place])
        return call(arguments)

    return run


def _moved(tensor: Tensor) -> Tensor:
    """A copy with the same strides, also where several elements share one place in memory."""
    if not tensor.numel():
        return tensor
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    extent = 1 + sum((size - 1) * stride for size, stride in pairs)
    memory = tensor.as_strided((extent,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride())


# ---- any size ----


class _AnySize:
    """The graph for arguments of any size that meets what the compiler assumed."""

    def __init__(self, call: Compiled, conditions: str) -> None:
        self.call, self.conditions = call, conditions
        self.stage = Stage(dynamic=True)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        return self.call(arguments)

    def meets(self, arguments: Sequence[Any]) -> bool:
        """Whether the code serves these arguments: the compiler may demand more of them."""
        return self.stage.meets(self.conditions, arguments)
