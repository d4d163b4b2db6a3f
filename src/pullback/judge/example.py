"""The arguments of one call, copied so faithfully that layout and aliasing survive.

A check never calls the user's function with the user's own tensors: each run gets copies, so that
a function which writes where it must not cannot spoil the next run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pullback.function.isolation import SEED

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""What Python says of where an object lies, which is another place in each process."""


@dataclass(frozen=True, slots=True)
class Tie:
    """An argument that is a parameter or buffer of a module which is an argument, or in one."""

    module: int
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments to call with, in order; `label` says in words how they differ from those given.

    `needs` holds the positions of the arguments that require grad. `kind` says what was done to
    them, where a rule asks for that. Every run of it draws random numbers from `seed`. Modules are
    called with as they are, but for the parameters in `ties`: those are the tensors of the call.
    """

    args: tuple[Any, ...]
    needs: frozenset[int]
    label: str = ""
    kind: Enum | None = None
    seed: int = SEED
    ties: tuple[Tie, ...] = ()

    @property
    def tensors(self) -> tuple[int, ...]:
        """The positions of the direct tensor arguments."""
        return tuple(i for i, arg in enumerate(self.args) if isinstance(arg, Tensor))

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The positions of the direct arguments that can have a gradient."""
        return tuple(i for i in self.tensors if can_differ(self.args[i]))

    @property
    def size(self) -> int:
        """How many elements the tensors have together."""
        return sum(self.args[i].numel() for i in self.tensors)

    def fresh(
        self, *, needs: frozenset[int] | None = None, owners: dict[int, Any] | None = None
    ) -> tuple[Any, ...]:
        """New arguments: copies of the tensors with the same layout, grad required where asked.

        With `owners`, the copies of modules are kept there and used again, for calls of which one
        is over before the next begins.
        """
        needs = self.needs if needs is None else needs
        seen: dict[int, Tensor] = {}
        args = tuple(mapped(arg, lambda t: exact_copy(t, seen)) for arg in self.args)
        for i in self.differentiable:
            args[i].requires_grad_(i in needs)
        if not self.ties:
            return args
        return _tied(args, self.ties) if owners is None else _bound(args, self.ties, owners)

    def map(self, change: Callable[[Tensor], Tensor], label: str) -> Example:
        """The example with every tensor changed, also those in containers."""
        args = tuple(mapped(arg, change) for arg in self.args)
        return replace(self, args=args, label=label)

    def put(self, position: int, value: Any, label: str, kind: Enum | None = None) -> Example:
        """The example with another argument at `position`."""
        args = (*self.args[:position], value, *self.args[position + 1 :])
        return replace(self, args=args, label=label, kind=kind)

    def to(self, dtype: torch.dtype, label: str = "") -> Example:
        """The example with every floating tensor as `dtype` (complex ones in the like width)."""
        return self.map(lambda t: cast_tensor(t, dtype), label or self._origin())

    def _origin(self) -> str:
        """What a conversion started from, in words."""
        dtypes = dict.fromkeys(dtype_name(t.dtype) for t in tensors_in(self.args) if can_differ(t))
        given = f"given as {' and '.join(dtypes)}"
        return f"{self.label}, {given}" if self.label else given

    def double(self) -> Example:
        """The example in float64, with the same values; itself where it is so already."""
        wide = (torch.float64, torch.complex128)
        tensors = [t for t in tensors_in(self.args) if can_differ(t)]
        return self if all(t.dtype in wide for t in tensors) else self.to(torch.float64)

    def need(self, needs: frozenset[int], label: str = "") -> Example:
        """The example with grad required at other positions."""
        return replace(self, needs=needs, label=label or self.label)

    def words(self, names: tuple[str, ...]) -> str:
        """The arguments in words: names, shapes, dtypes and layouts, never whole tensors."""
        parts = [
            f"{name}: {describe_value(arg)}" for name, arg in zip(names, self.args, strict=False)
        ]
        words = ", ".join(parts)
        return f"{words} ({self.label})" if self.label else words


def example_of(args: tuple[Any, ...]) -> Example:
    """The example that the user's own arguments are.

    Where none of them requires grad, all that can are taken to: an author who gives plain tensors
    wants their gradients checked.
    """
    able = [i for i, arg in enumerate(args) if can_differ(arg)]
    needs = [i for i in able if args[i].requires_grad] or able
    plain = tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in args)
    return Example(plain, frozenset(needs), ties=tuple(ties_of(args)))


def ties_of(args: tuple[Any, ...]) -> Iterator[Tie]:
    """The arguments that are parameters or buffers of modules among them."""
    for module, owner in enumerate(args):
        owned = owned_tensors(owner)
        for position, arg in enumerate(args if owned else ()):
            names = [name for name, tensor in owned.items() if tensor is arg]
            if names:
                yield Tie(module, names[0], position)


def owned_tensors(owner: Any) -> dict[str, Tensor]:
    """The parameters and buffers of a module, or of the modules in a list, by name."""
    if isinstance(owner, torch.nn.Module):
        return dict([*owner.named_parameters(), *owner.named_buffers()])
    items = owner if isinstance(owner, (list, tuple)) else ()
    return {
        f"{k}.{name}": t for k, item in enumerate(items) for name, t in owned_tensors(item).items()
    }


def _tied(args: tuple[Any, ...], ties: tuple[Tie, ...]) -> tuple[Any, ...]:
    """The arguments with copies of the modules, whose parameters are the tensors among them."""
    made = list(args)
    for module in {tie.module for tie in ties}:
        owner = args[module]
        owned = owned_tensors(owner)
        memo = {id(owned[t.name]): args[t.position] for t in ties if t.module == module}
        made[module] = deepcopy(owner, memo)
    return tuple(made)


def _bound(args: tuple[Any, ...], ties: tuple[Tie, ...], owners: dict[int, Any]) -> tuple[Any, ...]:
    """The same with the copies in `owners`, which are made where they are missing."""
    made = list(args)
    for tie in ties:
        if tie.module not in owners:
            owners[tie.module] = deepcopy(args[tie.module])
        made[tie.module] = owner = owners[tie.module]
        *path, name = tie.name.split(".")
        for step in path:
            owner = owner[int(step)] if isinstance(owner, (list, tuple)) else getattr(owner, step)
        held = owner._parameters if name in owner._parameters else owner._buffers
        held[name] = args[tie.position]
    return tuple(made)


def can_differ(value: Any) -> bool:
    """Whether `value` is a tensor that can require grad."""
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def cast_tensor(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` as `dtype` if it is floating, as the complex dtype of that width if complex."""
    if type(tensor) not in (Tensor, Parameter):
        return tensor  # a subclass may hold its numbers in a dtype of its own
    if tensor.is_complex():
        wide = torch.complex128 if dtype == torch.float64 else torch.complex64
        return tensor.detach().to(wide)
    return tensor.detach().to(dtype) if tensor.is_floating_point() else tensor


def wide_of(tensor: Tensor) -> Tensor:
    """`tensor` in float64, or complex128."""
    return tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)


def dense_of(gradient: Tensor | None) -> Tensor | None:
    """A gradient as an ordinary tensor: that of an embedding may be sparse."""
    if gradient is None or gradient.layout == torch.strided:
        return gradient
    return gradient.to_dense()


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with every tensor in it changed; lists, tuples and dicts are looked into."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list):
        return [mapped(item, change) for item in value]
    if isinstance(value, tuple) and not isinstance(value, torch.Size):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in `value`, in order."""
    found: list[Tensor] = []
    mapped(value, lambda t: found.append(t) or t)  # type: ignore[func-returns-value]
    return found


def exact_copy(tensor: Tensor, seen: dict[int, Tensor] | None = None) -> Tensor:
    """A copy with the same sizes, strides, offset and bits; one tensor twice stays one."""
    if seen is not None and id(tensor) in seen:
        return seen[id(tensor)]
    copy = _copied(tensor.detach())
    if seen is not None:
        seen[id(tensor)] = copy
    return copy


def _copied(tensor: Tensor) -> Tensor:
    if type(tensor) is not Tensor:
        copy = tensor.clone()
        return copy if type(copy) is type(tensor) else tensor  # it may open up where it is copied
    if tensor.layout != torch.strided:
        return tensor.clone()
    if tensor.is_conj():
        return _copied(tensor.conj()).conj()
    if tensor.is_neg():
        return tensor.clone()
    if tensor.is_contiguous() and tensor.storage_offset() == 0:
        return tensor.clone(memory_format=torch.contiguous_format)
    memory = tensor.untyped_storage().clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(memory, tensor.storage_offset(), tensor.size(), tensor.stride())


def describe_value(value: Any) -> str:
    """`value` in a few words."""
    if isinstance(value, Tensor):
        text = f"{dtype_name(value.dtype)}{list(value.shape)}"
        usual = value.layout != torch.strided or value.is_contiguous()
        strides = "" if usual else f" strides {tuple(value.stride())}"
        bits = " conjugated" if value.is_conj() else " negated" if value.is_neg() else ""
        device = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{text}{strides}{bits}{device}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(describe_value(item) for item in value[:4])
        return f"[{inner}{', ...' if len(value) > 4 else ''}]"
    try:
        text = ADDRESS.sub("", repr(value))
    except Exception:  # it cannot say what it is
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`."""
    return str(dtype).removeprefix("torch.")
