"""Placements: what the ranks' values of one input or output are to the author, in DTensor's words.

    shard       each rank's own value
    replicate   one value, which all ranks hold
    partial     parts of one value, which is their sum over the ranks

They say what the loss is, and so what the gradients must be. A sharded output adds `<y_s, g_s>` for
every rank s; a replicated one `<y, g>` once, and its cotangent is the same on all ranks; a partial
one `<y_s, g>` for every rank, with one cotangent. The gradient of a sharded or partial input is the
derivative by that rank's own value. That of a replicated one is the derivative by the one value,
the same on every rank; or, where `x.grad` is declared to be partial, anything whose sum is that.

Two conventions live side by side: after an all-reduce, `torch.distributed.nn` sums the cotangents
(the outputs are sharded), layers in the style of Megatron pass them through (they are replicated).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pullback.check.ranks.blocks import Blocks
from pullback.errors import DeclarationError

OUT = "out"
GRAD = ".grad"
_FORM = re.compile(r"(shard|replicate|partial)(?:\((?:dim=)?(-?\d+)\))?")


class Placement(str, Enum):
    """What the ranks' values are to each other."""

    SHARD = "shard"
    REPLICATE = "replicate"
    PARTIAL = "partial"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement of one input or output, as declared or tried.

    `dim` is the dimension along which shards are joined for a reference; None where they are not.
    `has_shares` says of a replicated input that the gradients are shares of the one gradient.
    `over` are the ranks that hold one value, if these are not all that belong together.
    """

    kind: Placement
    dim: int | None = None
    has_shares: bool = False
    over: Blocks = ()

    @property
    def is_replicated(self) -> bool:
        """Whether all ranks hold one value."""
        return self.kind is Placement.REPLICATE

    @property
    def has_one_cotangent(self) -> bool:
        """Whether the cotangent of such an output is the same on all ranks."""
        return self.kind is not Placement.SHARD

    def __str__(self) -> str:
        text = f"{self.kind}({self.dim})" if self.dim is not None else str(self.kind)
        several = [", ".join(map(str, block)) for block in self.over if len(block) > 1]
        text += f" over ranks {' and '.join(several)}" if several else ""
        return f"{text}, its gradient partial" if self.has_shares else text


SHARD, REPLICATE, PARTIAL = (Placed(kind) for kind in Placement)
TRIED = (SHARD, REPLICATE)  # where nothing is declared


@dataclass(frozen=True, slots=True)
class Assignment:
    """Placements for every input that has a gradient, by name, and for every output."""

    inputs: tuple[tuple[str, Placed], ...]
    outputs: tuple[Placed, ...]

    def of(self, name: str) -> Placed:
        """The placement of an input."""
        return dict(self.inputs)[name]

    def __str__(self) -> str:
        parts = [f"{name}: {placed}" for name, placed in self.inputs]
        many = len(self.outputs)
        parts += [f"{output_name(i, many)}: {placed}" for i, placed in enumerate(self.outputs)]
        return ", ".join(parts)


def output_name(number: int, count: int) -> str:
    """The name of an output in `placements=`."""
    return f"{OUT}{number if count > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Declared:
    """The placements that the author gave, by name; what is not named is not known."""

    inputs: Mapping[str, Placed]
    outputs: Mapping[int, Placed]
    every_output: Placed | None = None

    def of_input(self, name: str) -> Placed | None:
        """That of an input."""
        return self.inputs.get(name)

    def of_output(self, number: int) -> Placed | None:
        """That of an output."""
        return self.outputs.get(number, self.every_output)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is declared."""
        return not (self.inputs or self.outputs or self.every_output)


def declared_of(given: Mapping[str, Any] | None, names: Sequence[str], subject: str) -> Declared:
    """What `placements=` says, or `DeclarationError`."""
    inputs: dict[str, Placed] = {}
    outputs: dict[int, Placed] = {}
    every: Placed | None = None
    words = given if isinstance(given, Mapping) else {} if given is None else {"": given}
    for key, value in words.items():
        name = str(key).removesuffix(GRAD)
        placed = _placed(value)
        number = re.fullmatch(rf"{OUT}(\d*)", name)
        is_known = name in names or number is not None
        if placed is None or not is_known:
            raise _wrong(subject, names, {key: value} if words is given else given)
        if str(key).endswith(GRAD):
            continue
        if name in names:
            inputs[name] = placed
        elif number is not None and number[1]:
            outputs[int(number[1])] = placed
        else:
            every = placed
    for key, value in words.items():
        name = str(key).removesuffix(GRAD)
        if str(key) != name:
            if name not in names:
                raise _wrong(subject, names, {key: value})
            _take_gradient(name, _placed(value), inputs)
    return Declared(inputs, outputs, every)


def require_there(
    declared: Declared, inputs: Mapping[str, int], outputs: Sequence[int], subject: str
) -> None:
    """Raise unless every output, and every dimension, is there: of how many dimensions they are."""
    named = {name: inputs[name] for name in declared.inputs if name in inputs}
    named |= dict(zip((f"{OUT}{i}" for i in range(len(outputs))), outputs, strict=True))
    every = {**declared.inputs, **{f"{OUT}{i}": one for i, one in declared.outputs.items()}}
    if declared.every_output is not None:
        every |= {OUT: declared.every_output}
        named |= {OUT: min(outputs, default=0)}
    for name, placed in every.items():
        rule = f"the placements of `{subject}` must be those of what it takes and gives"
        if name not in named and name not in declared.inputs:
            every_output = ", ".join(f"{OUT}{i}" for i in range(len(outputs)))
            raise DeclarationError(rule, expected=f"{OUT}, {every_output}", got=name)
        most = named.get(name, 0)
        if placed.dim is not None and name in named and not -most <= placed.dim < most:
            raise DeclarationError(
                rule, at=name, expected=f"one of its {most} dimensions", got=str(placed)
            )


def _take_gradient(name: str, placed: Placed | None, inputs: dict[str, Placed]) -> None:
    """Note what is said of the gradient of an input: only that of one value can be partial."""
    if placed is not None and placed.kind is Placement.PARTIAL:
        known = inputs.get(name, REPLICATE)
        inputs[name] = Placed(known.kind, known.dim, has_shares=known.is_replicated)


def _wrong(subject: str, names: Sequence[str], given: Any) -> DeclarationError:
    return DeclarationError(
        f"the placements of `{subject}` must map its inputs and outputs to placements",
        expected=f"keys out of {', '.join([*names, OUT, 'out0', 'NAME.grad'])}, and 'shard', "
        "'shard(dim)', 'replicate' or 'partial'",
        got=repr(given),
        fix='write for example placements={"x": "replicate", "out": "shard"}',
    )


def _placed(value: Any) -> Placed | None:
    """The placement that is meant by a word, or by an object of DTensor's; None for any other."""
    if isinstance(value, Placed):
        return value
    if not isinstance(value, str) and type(value).__module__.startswith("torch.distributed"):
        dim = getattr(value, "dim", None)
        value = type(value).__name__.lstrip("_").lower() + ("" if dim is None else f"({dim})")
    found = _FORM.fullmatch(str(value).strip().lower())
    if found is None or (found[2] is not None and found[1] != "shard"):
        return None
    return Placed(Placement(found[1]), None if found[2] is None else int(found[2]))
