"""Random programs of several ops: `program_of(seed)` is always the same one, as readable Python.

A program is drawn statement by statement, each tried in eager mode on the inputs at once: one that
raises, or gives numbers that are not finite, is drawn again, and so is a program that PyTorch
cannot differentiate. What is left is a program that a user could have written, with its inputs.
"""

import linecache
import random
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pullback as pb
from tests.upstream import compare, layouts
from tests.upstream.cases import Case
from tests.upstream.statements import DEFINITIONS, RETURNED, STATEMENTS

IMPORTS = {
    "NamedTuple": "from typing import NamedTuple\n",
    "torch": "import torch",
    "F.": "import torch.nn.functional as F",
    "pb.": "\nimport pullback as pb",
}
CONSTANTS = ("0.5", "1.5", "2", "-1", "0.25", "-0.75")
NAMES = ("x", "y", "i")
ATTEMPTS = 20
LARGEST = 400
"""Elements beyond which a variable is not kept."""

BOUND = 50.0
"""Numbers beyond which a variable is not kept: what grows further loses all digits soon."""


@dataclass(frozen=True)
class Program:
    """A program as text, and as a case with its inputs; one tensor may be two of them."""

    seed: int
    text: str
    case: Case

    def __str__(self) -> str:
        return f"{self.text}\n\n{self.inputs()}\n"

    def inputs(self) -> str:
        """The lines that make inputs like those of the case."""
        lines = []
        tensors = self.case.tensors
        for name, tensor, need in zip(NAMES, tensors, self.case.needs, strict=True):
            made = f"torch.randn({list(tensor.shape)}, dtype={tensor.dtype}, requires_grad={need})"
            made = "x" if name == "y" and tensor is tensors[0] else made
            made = f"torch.tensor({tensor.tolist()})" if name == "i" else made
            lines.append(f"{name} = {made}")
        return "\n".join(lines)


def program_of(seed: int) -> Program:
    """The program of a seed."""
    for attempt in range(ATTEMPTS):
        drawn = _Drawing(random.Random(f"{seed} {attempt}"), seed).program()
        if drawn is not None:
            return drawn
    raise RuntimeError(f"nothing that can be differentiated was drawn for seed {seed}")


class _Drawing:
    """A program while it is drawn."""

    def __init__(self, dice: random.Random, seed: int) -> None:
        self.dice = dice
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        dtype = torch.float32 if seed % 3 == 2 else torch.float64
        shape = dice.choice(((4, 6), (3, 4), (6, 6), (5, 4), (2, 3, 4, 4), (3, 4, 4)))
        shapes = [shape, dice.choice((shape, shape[-1:], shape))]
        inputs = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
        self.tensors = [t.to(dtype) for t in inputs]
        self.needs = [True, dice.random() < 0.85, False]
        if shapes[0] == shapes[1] and dice.random() < 0.15:  # one tensor, given twice
            self.tensors[1], self.needs[1] = self.tensors[0], True
        self.tensors.append(torch.randint(0, min(shape), (3,), generator=generator))
        self.space = _definitions()
        self.space |= dict(zip(NAMES, layouts.leaves(self.tensors, self.needs), strict=True))
        self.made: list[str] = []
        self.unread = [*NAMES[:2]]
        self.lines: list[str] = []

    def program(self) -> Program | None:
        """The program, or None where PyTorch cannot differentiate what was drawn."""
        count = self.dice.randint(3, 9)
        kinds = list(STATEMENTS)
        for _ in range(40):
            if len(self.made) >= count:
                break
            self.draw(self.dice.choice(kinds))
        if len(self.made) < 3:
            return None
        for _ in range(10):
            returned = self.filled(self.dice.choice(RETURNED), "", is_last=True)
            text = self.text(returned)
            program = loaded(text, self.seed)
            case = Case(program, tuple(self.tensors), tuple(self.needs))
            found = Program(self.seed, text, case)
            if is_sound(found):
                return found
        return None

    def draw(self, kind: str) -> None:
        """Add a statement of a kind, if it can be run."""
        name = f"t{len(self.made)}"
        statement = self.filled(self.dice.choice(STATEMENTS[kind]), name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                trial = dict(self.space)
                exec(statement, trial)
        except Exception:
            return
        value = trial[name]
        if _is_kept(value):
            self.space[name] = value
            self.made.append(name)
            self.unread = [*(one for one in self.unread if one not in statement), name]
            self.lines += [part.strip() for part in statement.split(";")]

    def filled(self, statement: str, name: str, *, is_last: bool = False) -> str:
        """A statement with its places filled, most often by what nothing has read yet."""
        known = [*NAMES[:2], *self.made]
        a, b = (
            self.dice.choice(self.unread if self.dice.random() < 0.7 else known) for _ in range(2)
        )
        if is_last:
            a, b = self.dice.sample([*self.made, *self.unread * 3], 2)
        return statement.format(
            o=name,
            a=a,
            b=b,
            x=self.dice.choice(NAMES[:2]),
            i="i",
            c=self.dice.choice(CONSTANTS),
            d=self.dice.choice((0, -1)),
        )

    def text(self, returned: str) -> str:
        """The module of the program."""
        body = [*self.lines, returned]
        used = [
            text.strip()
            for name, text in DEFINITIONS.items()
            if any(f"{name}(" in line or f"{name}.apply" in line for line in body)
        ]
        lines = [f"def program({', '.join(NAMES)}):", *(f"    {line}" for line in body)]
        parts = "\n\n\n".join([*used, "\n".join(lines)])
        head = [line for name, line in IMPORTS.items() if name in parts or name == "torch"]
        return "\n".join([*head, "", "", parts])


def _definitions() -> dict[str, Any]:
    space: dict[str, Any] = {"torch": torch, "F": F, "pb": pb}
    exec("from typing import NamedTuple\n" + "\n".join(DEFINITIONS.values()), space)
    return space


def _is_kept(value: Any) -> bool:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    if not 0 < value.numel() <= LARGEST:
        return False
    return bool(value.detach().abs().max() <= BOUND)


def loaded(text: str, seed: int) -> Any:
    """The function `program` of a module, whose lines tracebacks can show."""
    path = f"<program {seed}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    space: dict[str, Any] = {"__name__": f"program_{seed}"}
    exec(compile(text, path, "exec"), space)
    return space["program"]


def is_sound(program: Program) -> bool:
    """Whether PyTorch runs a program, differentiates it, and gives the same twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows = [compare.first(program.case.program, _inputs(program.case)) for _ in range(2)]
        except Exception:
            return False
    tensors = [t for t in rows[0].tensors.values() if t is not None]
    found = [t for name, t in rows[0].tensors.items() if name.startswith("gradient")]
    finite = all(bool(t.detach().isfinite().all()) for t in tensors)
    return finite and any(g is not None for g in found) and not compare.difference(*rows)


def _inputs(case: Case) -> list[Tensor]:
    return layouts.leaves(case.tensors, case.needs)
