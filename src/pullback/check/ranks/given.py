"""The arguments of one rank: made from what the user gives, and told as values and words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pullback.check.ranks.collectives import group_ranks
from pullback.check.ranks.commands import Argument
from pullback.check.ranks.spread import is_spread, layout_of, whole_of
from pullback.check.recordings.stored import GroupOf
from pullback.check.target.target import Target
from pullback.judge.example import can_differ, describe_value


def rank_inputs(target: Target, inputs: Any, rank: int) -> list[tuple[Any, ...]]:
    """The arguments of one rank, one tuple for each example."""
    if inputs is None:
        inputs = getattr(target.function or target.thing, "examples", None)
        if inputs is None:
            raise TypeError("none are given, and there is no `examples` on the class")
    if callable(inputs):
        inputs = inputs(rank) if takes_rank(inputs) else inputs()
    if isinstance(inputs, RankTuples):
        return list(inputs.of[rank])
    if isinstance(inputs, Tensor):
        return [(inputs,)]
    if isinstance(inputs, list) and inputs and all(isinstance(item, tuple) for item in inputs):
        return inputs
    if isinstance(inputs, tuple):
        return [inputs]
    found = type(inputs).__name__
    raise TypeError(f"they must be a tuple of arguments or a list of such tuples, and not {found}")


@dataclass(frozen=True, slots=True)
class RankTuples:
    """The arguments of every rank: a list of tuples for each."""

    of: tuple[tuple[tuple[Any, ...], ...], ...]


def takes_rank(factory: Any) -> bool:
    """Whether a function must be given the rank."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in kinds and (p.default is p.empty or p.name == "rank") for p in parameters)


_groups: dict[tuple[int, ...], Any] = {}


def group_made(arg: Any) -> Any:
    """A group of the ranks that a recording names, made once; else the argument."""
    if not isinstance(arg, GroupOf):
        return arg
    if arg.ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    if arg.ranks not in _groups:
        _groups[arg.ranks] = dist.new_group(list(arg.ranks), use_local_synchronization=True)
    return _groups[arg.ranks]


def sent_argument(arg: Any, is_needed: bool) -> Argument:
    """An argument as it is told to who asks."""
    if can_differ(arg):
        is_global = is_spread(arg)
        layout = layout_of(arg) if is_global else None
        value = whole_of(arg.detach())
        return Argument(describe_value(arg), value, is_needed, is_global, layout=layout)
    if isinstance(arg, dist.ProcessGroup):
        return Argument("a process group", ranks=group_ranks(arg))
    sent = arg.detach() if isinstance(arg, Tensor) else arg
    is_plain = _is_plain(sent)
    return Argument(
        describe_value(arg),
        plain=sent if is_plain else None,
        is_told=is_plain,
        numbers=frozenset(_numbers(arg)),
    )


def _is_plain(value: Any) -> bool:
    """Whether a value can be told to who asks: numbers, words, tensors, and containers of them."""
    if type(value) in (list, tuple, dict):
        return all(map(_is_plain, value.values() if type(value) is dict else value))
    kinds = (Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.Size)
    return isinstance(value, kinds)


def _numbers(arg: Any) -> Iterator[int]:
    """The whole numbers in an argument: in containers, and in a tensor of one for each rank."""
    if isinstance(arg, Tensor):
        if arg.shape == (dist.get_world_size(),) and not can_differ(arg):
            yield from map(int, arg.tolist())
    elif isinstance(arg, (list, tuple)):
        for item in arg:
            yield from _numbers(item)
    elif isinstance(arg, dict):
        yield from _numbers(list(arg.values()))
    elif isinstance(arg, int) and not isinstance(arg, bool):
        yield arg
