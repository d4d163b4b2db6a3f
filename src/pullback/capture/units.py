"""A program as units: what it calls, in which order, and what flows from one call to the next.

A *unit* is one call that a plain Python function makes: `apply` of a Function (pullback's or
PyTorch's), an ordinary torch op, or a custom op. Values are numbered: the inputs first, then each
tensor as it appears. A Function that calls Functions inside is one unit, and so is an op.

The program runs once, in eager mode, on the examples. Decisions that it makes on sizes and plain
arguments are made as for the examples; decisions on values are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.fake import Overhearing, apart
from pullback.capture.modes import Modes, modes_now
from pullback.capture.names import argument_names, closure_names, late_bound, program_name
from pullback.capture.places import call_user, frames_above
from pullback.capture.refuse import (
    asked_beginning,
    hidden_call,
    reads_values,
    refusing,
    require_backward_free,
    require_hook_free,
    require_kept,
    require_transform_free,
    unreadable,
    unseen_apply,
)
from pullback.capture.trees import Spec, flatten, is_tensor, map_leaves, tensor_leaves, unflatten
from pullback.capture.watch import FUNCTION, WatchedCall, is_unit, versions_of, watched
from pullback.function.slots import no_torch_function


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program, by its number, in the arguments of a unit."""

    number: int


def refs_in(tree: Any) -> list[int]:
    """The numbers of the values in the arguments of a unit, in order."""
    return [leaf.number for leaf in flatten(tree)[0] if isinstance(leaf, Ref)]


def with_values(tree: Any, values: Mapping[int, Any]) -> Any:
    """The arguments of a unit, with `values` by their numbers in them."""
    return map_leaves(lambda leaf: values[leaf.number] if isinstance(leaf, Ref) else leaf, tree)


@dataclass(frozen=True, slots=True)
class Unit:
    """One call of a program.

    `inputs` and `outputs` are the numbers of the tensors that go in and come out. A tensor that is
    changed in place comes out under a new number, and so does every other that shares its memory:
    `changed` pairs the old numbers with the new ones. `target` is what is called (the class of a
    Function, or the op) with `args` and `kwargs`, in which each tensor is a `Ref`. `modes` is None,
    or the modes that the program had switched to (`no_grad`, autocast), and those around it.
    """

    number: int
    name: str
    kind: str
    place: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    changed: tuple[tuple[int, int], ...]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modes: tuple[Modes, Modes] | None

    @property
    def needs(self) -> tuple[int, ...]:
        """The values that must be there before the call: its inputs, and what it changes."""
        return tuple(dict.fromkeys((*self.inputs, *(old for old, _ in self.changed))))

    @property
    def makes(self) -> tuple[int, ...]:
        """The values that the call makes: what it gives back as it got it is not among them."""
        return tuple(number for number in self.outputs if number not in self.needs)

    def run(self, values: dict[int, Tensor]) -> None:
        """Make the call on `values`, and put what comes out of it there."""
        args, kwargs = with_values((self.args, self.kwargs), values)
        call = self.target.apply if self.kind == FUNCTION else self.target
        with nullcontext() if self.modes is None else self.modes[0].entered(self.modes[1]):
            result = tensor_leaves(call(*args, **kwargs))
        fresh = self.outputs[: len(result)]
        values.update(zip(fresh, result, strict=True))
        values.update({new: values[old] for old, new in self.changed})


@dataclass(frozen=True, slots=True)
class Closure:
    """A tensor from outside the program, that it uses without being given it."""

    number: int
    name: str
    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A program as units.

    `inputs` pairs the number of each tensor among the arguments with the user's name for it.
    `outputs` are the leaves of what the program returns: a `Ref` for a tensor, else the value.
    """

    name: str
    units: tuple[Unit, ...]
    inputs: tuple[tuple[int, str], ...]
    closures: tuple[Closure, ...]
    outputs: tuple[Any, ...]
    out_spec: Spec

    def run(self, *args: Any) -> Any:
        """Make every call again: it gives what the program gave on the same arguments."""
        values = self.values(*args)
        leaves = [values[o.number] if isinstance(o, Ref) else o for o in self.outputs]
        return unflatten(leaves, self.out_spec)

    def values(self, *args: Any) -> dict[int, Tensor]:
        """Every value, for these arguments."""
        values = dict(zip((n for n, _ in self.inputs), tensor_leaves(args), strict=True))
        values |= {closure.number: closure.tensor for closure in self.closures}
        for unit in self.units:
            unit.run(values)
        return values


@dataclass(frozen=True, slots=True)
class Part:
    """Some units of a program, as a function of its own.

    `call` takes the values numbered `inputs` and returns a tuple of those numbered `outputs`:
    everything made here that other units or the program's caller need.
    """

    units: tuple[Unit, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def call(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Make the calls of these units."""
        values = dict(zip(self.inputs, tensors, strict=True))
        for unit in self.units:
            unit.run(values)
        return tuple(values[number] for number in self.outputs)


def part_of(program: Program, numbers: Collection[int]) -> Part:
    """The units of `program` with these numbers, as a function of its own."""
    units = tuple(program.units[number] for number in sorted(numbers))
    made = {number for unit in units for number in unit.makes}
    given = [number for unit in units for number in unit.needs if number not in made]
    needed = {output.number for output in program.outputs if isinstance(output, Ref)}
    for unit in program.units:
        if unit.number not in numbers:
            needed |= set(unit.needs)
    return Part(units, tuple(dict.fromkeys(given)), tuple(sorted(made & needed)))


def record(program: Callable[..., Any], *examples: Any) -> Program:
    """Record `program` as it runs on `examples`.

    The program really runs, once: what it changes outside itself is changed. Other threads are not
    recorded.
    """
    with apart(), refusing(program):
        return _Recording(program, examples).run()


@dataclass
class _Recording:
    """One recording under way."""

    program: Callable[..., Any]
    examples: tuple[Any, ...]
    units: list[Unit] = field(default_factory=list)
    closures: list[Closure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = program_name(self.program)
        self._closure_names: dict[int, str] | None = None
        # Tensors by number; a tensor that was changed stands under several.
        self.tensors: list[Tensor] = []
        self.versions: list[int] = []
        self.numbers: dict[int, int] = {}
        self.forwards = dict(_forwards(TorchFunction))
        self.devices = frozenset({"cpu"} | {t.device.type for t in tensor_leaves(self.examples)})
        self.modes = modes_now(self.devices)
        self.is_busy = False

    def run(self) -> Program:
        names = argument_names(self.program, self.examples)
        leaves, _ = flatten(self.examples)
        pairs = [(leaf, n) for leaf, n in zip(leaves, names, strict=True) if is_tensor(leaf)]
        inputs = tuple((self._add(tensor), name) for tensor, name in pairs)
        with watched(self._listen), Overhearing(self._overhear):
            returned = call_user(late_bound(self.program), *self.examples)
        leaves, spec = flatten(returned)
        outputs = tuple(self._output(leaf) for leaf in leaves)
        units, closures = tuple(self.units), tuple(self.closures)
        return Program(self.name, units, inputs, closures, outputs, spec)

    def _output(self, leaf: Any) -> Any:
        if is_tensor(leaf):
            return Ref(self._number(leaf))
        require_kept(self.name, leaf)
        return leaf

    # ---- calls ----

    def _listen(self, call: WatchedCall) -> Any:
        if call.inner or call.name == "_set_grad_enabled":
            return call.make(*call.args, **call.kwargs)
        with no_torch_function():
            self._require_visible(call)
            _require_plain_slices(self.name, call)
            args, kwargs = map_leaves(self._ref, (call.args, call.kwargs))
            given = tensor_leaves((call.args, call.kwargs))
            before = versions_of(given)
        self.is_busy = True
        try:
            result = call.make(*call.args, **call.kwargs)
        finally:
            self.is_busy = False
        with no_torch_function():
            if is_unit(result, before, versions_of(given)):
                self._add_unit(call, args, kwargs, given, result)
            elif given and reads_values(call.name):
                raise unreadable(self.name, call.name, call.place)
            elif call.name == "storage_offset":
                raise asked_beginning(self.name, call.place)
        return result

    def _add_unit(
        self, call: WatchedCall, args: Any, kwargs: Any, given: list[Tensor], result: Any
    ) -> None:
        inputs = tuple(dict.fromkeys(self.numbers[id(tensor)] for tensor in given))
        changed = tuple(self._changed())
        made = tuple(self._made(tensor) for tensor in tensor_leaves(result))
        outputs = (*made, *(new for _, new in changed if new not in made))
        modes = modes_now(self.devices)
        self.units.append(
            Unit(
                number=len(self.units),
                name=call.name,
                kind=call.kind,
                place=call.place,
                inputs=inputs,
                outputs=outputs,
                changed=changed,
                target=call.owner,
                args=args,
                kwargs=kwargs,
                modes=None if modes == self.modes else (modes, self.modes),
            )
        )

    def _require_visible(self, call: WatchedCall) -> None:
        """Raise for a call that a list of units could not repeat."""
        require_transform_free(self.name, call)
        require_backward_free(self.name, call)
        require_hook_free(self.name, call)
        for frame in frames_above(call.frame):
            if frame.f_code in self.forwards:
                raise unseen_apply(self.name, self.forwards[frame.f_code], call.place)

    def _overhear(self, op: Any, place: str) -> None:
        """Hear of an op that no call was announced for: compiled code made it."""
        if not self.is_busy:
            raise hidden_call(self.name, str(op), place)

    # ---- values ----

    def _ref(self, leaf: Any) -> Any:
        return Ref(self._number(leaf)) if is_tensor(leaf) else leaf

    def _number(self, tensor: Tensor) -> int:
        """The number of `tensor`; one that was never seen comes from outside the program."""
        if id(tensor) not in self.numbers:
            number = self._add(tensor)
            if self._closure_names is None:
                self._closure_names = closure_names(self.program)
            name = self._closure_names.get(id(tensor)) or f"closure_{len(self.closures)}"
            self.closures.append(Closure(number, name, tensor))
        return self.numbers[id(tensor)]

    def _made(self, tensor: Tensor) -> int:
        known = self.numbers.get(id(tensor))
        return self._add(tensor) if known is None else known

    def _add(self, tensor: Tensor) -> int:
        number = len(self.tensors)
        self.tensors.append(tensor)  # kept alive, so that its id stays its own
        self.versions += versions_of([tensor])
        self.numbers[id(tensor)] = number
        return number

    def _changed(self) -> Iterator[tuple[int, int]]:
        """Give new numbers to the tensors that were changed: old and new number of each."""
        for tensor in [self.tensors[number] for number in self.numbers.values()]:
            old = self.numbers[id(tensor)]
            if versions_of([tensor]) != [self.versions[old]]:
                yield old, self._add(tensor)


def _require_plain_slices(name: str, call: WatchedCall) -> None:
    """Raise for a tensor as the bound of a slice: it is read without a recorded call."""
    leaves, _ = flatten((call.args, call.kwargs))
    for leaf in leaves:
        if isinstance(leaf, slice) and any(map(is_tensor, (leaf.start, leaf.stop, leaf.step))):
            raise unreadable(name, "index", call.place)


def _forwards(cls: Any) -> Iterator[tuple[CodeType, str]]:
    """The code of every Function's `forward`, with the name of the Function."""
    for sub in cls.__subclasses__():
        forward = getattr(sub.__dict__.get("forward"), "__wrapped__", None)
        code = getattr(inspect.unwrap(forward) if forward else None, "__code__", None)
        if isinstance(code, CodeType):
            yield code, sub.__name__
        yield from _forwards(sub)
