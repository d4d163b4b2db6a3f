"""Units as a Python function: one line for each call, values released after their last use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pullback.capture.trees import tensor_leaves
from pullback.capture.units import Ref, Unit, refs_in, with_values
from pullback.capture.watch import FUNCTION
from pullback.function.generated import run_text


@dataclass(frozen=True, slots=True)
class NodeCall:
    """A call of `function` with the values numbered `inputs`; it gives those of `outputs`."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class UnitWriter:
    """The text of one function, growing, and the things that it calls by name."""

    lines: list[str] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=lambda: {"_one": _one, "_all": tensor_leaves})

    def name(self, thing: Any) -> str:
        """A name for a constant of the text."""
        name = f"_{len(self.space)}"
        self.space[name] = thing
        return name

    # ---- calls ----

    def add(self, step: Unit | NodeCall) -> None:
        """One call."""
        if isinstance(step, NodeCall):
            given = ", ".join(_row(step.inputs))
            line = f"{self.name(step.function)}({given})"
            self.lines.append(f"{''.join(f'{v}, ' for v in _row(step.outputs))}= {line}")
            return
        indent = ""
        if step.modes is not None:
            inside, outside = map(self.name, step.modes)
            self.lines.append(f"with {inside}.entered({outside}):")
            indent = "    "
        if step.changed:
            self.lines.append(indent + self._changing(step))
            return
        call = self._call(step)
        # A unit may give back what it was given: that stays what it is.
        names = ["_" if number in step.needs else f"v{number}" for number in step.outputs]
        if len(names) == 1:
            self.lines.append(f"{indent}{names[0]} = _one({call})")
        else:
            self.lines.append(f"{indent}{', '.join(names)} = _all({call})")

    def _call(self, unit: Unit) -> str:
        called = self.name(unit.target.apply if unit.kind == FUNCTION else unit.target)
        args = [self._value(arg) for arg in unit.args]
        args += [f"{key}={self._value(value)}" for key, value in unit.kwargs.items()]
        return f"{called}({', '.join(args)})"

    def _value(self, value: Any) -> str:
        if isinstance(value, Ref):
            return f"v{value.number}"
        refs = refs_in(value)
        if type(value) in (list, tuple) and refs:
            inside = "".join(f"{self._value(item)}, " for item in value)
            return f"[{inside}]" if type(value) is list else f"({inside})"
        if not refs:
            return self.name(value)

        def filled(*tensors: Tensor) -> Any:
            return with_values(value, dict(zip(refs, tensors, strict=True)))

        return f"{self.name(filled)}({', '.join(_row(refs))})"

    def _changing(self, unit: Unit) -> str:
        """A call that changes values in place: they go on under new numbers."""

        plain = replace(unit, modes=None)

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = dict(zip(unit.needs, tensors, strict=True))
            plain.run(values)
            return tuple(values[number] for number in unit.outputs)

        left = "".join(f"v{number}, " for number in unit.outputs)
        return f"{left}= {self.name(run)}({', '.join(_row(unit.needs))})"

    # ---- the whole ----

    def function(self, name: str, inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        """The function: takes the values `inputs`, returns a tuple of those of `outputs`."""
        given, gives = ", ".join(_row(inputs)), "".join(f"{v}, " for v in _row(outputs))
        text = "\n    ".join([f"def {name}({given}):", *self.lines, f"return ({gives})"])
        run_text(text, name, self.space)
        return self.space[name]


def units_function(
    name: str,
    steps: Sequence[Unit | NodeCall],
    inputs: Sequence[int],
    outputs: Sequence[int],
    constants: dict[int, Tensor] | None = None,
    module: str = "__main__",
) -> Any:
    """A function of the values `inputs` that makes `steps` and returns the values `outputs`.

    `constants` are values that it has by itself; `module` is where it is said to be written.
    """
    writer = UnitWriter()
    writer.space["__name__"] = module
    writer.space |= {f"v{number}": tensor for number, tensor in (constants or {}).items()}
    kept = {*outputs, *(constants or {})}
    last = {n: place for place, step in enumerate(steps) for n in _touched(step)}
    for place, step in enumerate(steps):
        writer.add(step)
        over = [n for n in _touched(step) if last[n] == place and n not in kept]
        if over:
            writer.lines.append(f"del {', '.join(_row(over))}")
    return writer.function(name, inputs, outputs)


def _touched(step: Unit | NodeCall) -> list[int]:
    needs = step.needs if isinstance(step, Unit) else step.inputs
    return list(dict.fromkeys((*needs, *step.outputs)))


def _row(numbers: Sequence[int]) -> Iterator[str]:
    return (f"v{number}" for number in numbers)


def _one(result: Any) -> Tensor:
    return result if isinstance(result, Tensor) else tensor_leaves(result)[0]
