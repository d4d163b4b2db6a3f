"""The Inductor backend: a graph as fused code, compiled for arguments laid out in one way.

What is compiled checks nothing: given arguments of other sizes, strides, dtypes or devices it
returns rubbish. Whoever calls it has compared them with those that it was compiled for.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.joint import ONE_AT_A_TIME
from pullback.errors import CaptureError
from pullback.graph.parts import calls
from pullback.run.cache import Entry, entry
from pullback.run.lower import SETTINGS, Call, absence, decompositions, load, lower
from pullback.run.settle import settle

__all__ = ["absence", "specialise"]

_ALIGNMENT = 16  # bytes; GPU code reads that many at once


def specialise(graph: fx.Graph, row: Sequence[Any], *, name: str, free_sizes: bool = False) -> Call:
    """`graph`, compiled for arguments that are laid out exactly like those of `row`.

    Arguments:
        graph: a forward or a backward graph, as `graph.split` gives it.
        row: one value for each placeholder: a tensor of the sizes, strides, dtype and device that
            all calls will have, or the number itself.
        name: "forward" or "backward".

    Returns a function of one list, which it empties, that returns the results of the graph as a
    tuple or list. It checks nothing. Raises `CaptureError` for what cannot be compiled.
    """
    with ONE_AT_A_TIME, entry(_origin(graph, row, name)) as place:
        call = _loaded(place) or _built(place, graph, row, name)
    return _realigned(call, row)


def _built(place: Entry, graph: fx.Graph, row: Sequence[Any], name: str) -> Call:
    place.empty()
    try:
        settled = settle(graph, row, decompositions())
        lowered = lower(settled, place.folder, is_backward=name == "backward")
    except Exception as error:
        place.empty()
        raise CaptureError(
            f"the {name} graph must be one that Inductor compiles", got=_in_one_line(error)
        ) from error
    if lowered.module:
        constants = _packed(lowered.constants)
        facts = {"module": lowered.module, "constants": constants, "trusted": lowered.trusted}
        place.seal(facts)
    return lowered.call


def _loaded(place: Entry) -> Call | None:
    """What the cache holds, if that can be run."""
    facts = place.facts()
    if facts is None:
        return None
    try:
        constants = _unpacked(facts["constants"])
        return load(place.folder, facts["module"], constants, trusted=facts["trusted"])
    except Exception:
        return None  # made for a torch or compiler that has changed meanwhile


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# ---- what an entry depends on ----


def _origin(graph: fx.Graph, row: Sequence[Any], name: str) -> str:
    """All that the compiled code depends on, besides torch and the machine."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    lines = [f"{name} {threads} {strict} {sorted(SETTINGS.items())}"]
    lines += [_layout(value) for value in row]
    lines += [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs}" for n in graph.nodes]
    lines += [f"{n.name} {_kind(n.meta['val'])}" for n in calls(graph) if _is_opaque(n)]
    return "\n".join(lines)


def _layout(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"{type(value).__name__} {value!r}"
    model = torch.cuda.get_device_properties(value.device) if value.is_cuda else ""
    return f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device} {model}"


def _is_opaque(node: fx.Node) -> bool:
    return getattr(node.target, "namespace", "aten") not in ("aten", "prims")


def _kind(value: Any) -> str:
    values = value if isinstance(value, (tuple, list)) else [value]
    return " ".join(f"{v.dtype} {v.dim()}" for v in values if isinstance(v, Tensor))


def _packed(constants: Mapping[str, Tensor]) -> str:
    """Tensors as text."""
    buffer = io.BytesIO()
    torch.save(dict(constants), buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> dict[str, Tensor]:
    constants: dict[str, Tensor] = torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)
    return constants


# ---- alignment ----


def _realigned(call: Call, row: Sequence[Any]) -> Call:
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
