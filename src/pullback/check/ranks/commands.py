"""What a rank is asked to do, and its answer: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch import Tensor

from pullback.check.findings.facts import Gradient, Output
from pullback.check.ranks.collectives import Step
from pullback.judge.run import Raised

Values = tuple[Tensor | None, ...]
CHECK = "check"  # the phase of what is raised by the check itself


class CotangentLayout(Enum):
    """How cotangents lie in memory."""

    PLAIN = "as they come"
    TRANSPOSED = "in another order of dimensions"
    EXPANDED = "expanded from one number"


class Around(Enum):
    """What a Function may stand in."""

    DDP = "DistributedDataParallel"
    FSDP = "fully_shard"


# ---- what is asked ----


@dataclass(frozen=True, slots=True)
class Accept:
    """Make the arguments of one example, and say what they are."""

    example: int = 0


@dataclass(frozen=True, slots=True)
class RankPoint:
    """The arguments of one call: those given, but for some that are replaced, by position."""

    values: Mapping[int, Tensor] = field(default_factory=dict)
    is_double: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """Call forward without grad, and give the outputs."""

    point: RankPoint


@dataclass(frozen=True, slots=True)
class MeasureCommand:
    """Call forward, and give the relative rounding error of the coarsest dtype that it uses."""

    point: RankPoint


@dataclass(frozen=True, slots=True)
class Move:
    """Forward at points along some directions: `directions` is None where another rank moves."""

    position: int
    count: int
    steps: tuple[float, ...]
    directions: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every move, one after the other; the answer stacks the outputs of each."""

    point: RankPoint
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class PullCommand:
    """Forward and backward.

    With `seconds`, the cotangents of the gradients by position, backward is differentiated as well.
    With `between`, forward is called once more, with other values, before backward. `needs` are the
    positions that need a gradient, where these are fewer than usual.
    """

    point: RankPoint
    cotangents: Values
    laid: CotangentLayout = CotangentLayout.PLAIN
    delay: float = 0.0
    seconds: Mapping[int, Tensor] | None = None
    between: RankPoint | None = None
    needs: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Wrap:
    """Forward and backward of a module whose parameters are the arguments at `parameters`."""

    point: RankPoint
    cotangents: Values
    around: Around
    parameters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProgramCommand:
    """Run a program in which the function has a name, with random numbers from a seed."""

    text: str
    name: str
    seed: int


Command = Accept | Forward | MeasureCommand | Sweep | PullCommand | Wrap | ProgramCommand


# ---- what is answered ----


@dataclass(frozen=True, slots=True)
class MeshLayout:
    """How a DTensor lies on its mesh, as code: `mesh` makes the mesh, `placements` the list."""

    mesh: str
    placements: str


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a rank: its value where it can have a gradient, else only words.

    `plain` is any other value, where `is_told` says that it can be sent.
    `is_global` says of a DTensor that `value` is the whole of it, and `layout` how it lies, where
    that can be said. `ranks` are those of a group, `numbers` the whole numbers in it, which may be
    sizes.
    """

    words: str
    value: Tensor | None = None
    is_needed: bool = False
    is_global: bool = False
    plain: Any = None
    is_told: bool = True
    ranks: tuple[int, ...] = ()
    numbers: frozenset[int] = frozenset()
    layout: MeshLayout | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What a program made: the numbers that it compares, and whether it failed by its assertion."""

    has_failed: bool
    expected: float
    got: float


@dataclass(frozen=True, slots=True)
class GivenByRank:
    """The arguments of one rank, and how many examples there are."""

    args: tuple[Argument, ...]
    examples: int = 1


@dataclass(frozen=True, slots=True)
class LocalPart:
    """The part of a DTensor that a rank has, where all are said to have the same."""

    value: Tensor
    what: Output | Gradient


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a forward and a backward gave; gradients by position.

    `written` names what a collective wrote: `("input", 0)`, `("cotangent", 1)`, `("saved", -1)`,
    with the step that did.
    """

    outputs: Values
    gradients: Mapping[int, Tensor | None] = field(default_factory=dict)
    seconds: Mapping[str, Mapping[int, Tensor | None]] | None = None
    written: tuple[tuple[str, int, Step], ...] = ()
    locals: tuple[LocalPart, ...] = ()
    live: tuple[bool, ...] = ()  # whether a gradient can flow through each output
    unset: tuple[bool, ...] = ()  # whether an output is undefined here: see `Step.is_left_unset`
    spread: tuple[bool, ...] = ()  # whether an output is a DTensor


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of one rank: a value, or what was raised, in which phase and where."""

    value: Any = None
    raised: Raised | None = None
    phase: str = "forward"
    place: str = ""
    steps: tuple[Step, ...] = ()
