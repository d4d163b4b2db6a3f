"""What a finding is about, as data: words are made of these, and nothing reads the words back.

A rule gives them to `Subject.finding` in the places of text. The reports show their text; repros,
the folding of what has one cause, and other programs (`Finding.about`) use the data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pullback.judge.mismatch import Mismatch
from pullback.judge.run import Raised

Value = complex | float | None

CELLS, WIDEST = 1024, 64  # of a gradient that is shown as a whole: numbers, and in a row


# ---- things of a call ----


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of an input, by the name of that."""

    name: str

    def __str__(self) -> str:
        return f"gradient of `{self.name}`"


@dataclass(frozen=True, slots=True)
class Input:
    """An input, by its name."""

    name: str

    def __str__(self) -> str:
        return f"input `{self.name}`"


@dataclass(frozen=True, slots=True)
class Output:
    """An output, by its number among the tensors that forward returns."""

    number: int

    def __str__(self) -> str:
        return f"output {self.number}"


@dataclass(frozen=True, slots=True)
class Cotangent:
    """The cotangent of an output, by its number."""

    number: int

    def __str__(self) -> str:
        return f"cotangent of output {self.number}"


@dataclass(frozen=True, slots=True)
class Both:
    """The gradient of one tensor that stands in the places of two inputs, by their names."""

    one: str
    two: str

    def __str__(self) -> str:
        return f"gradient of the tensor that is both `{self.one}` and `{self.two}`"


@dataclass(frozen=True, slots=True)
class Second:
    """The second derivative with respect to an input or to a cotangent."""

    of: Input | Cotangent
    is_only: bool = False  # whether there is but one output, whose number need not be said

    @property
    def source(self) -> str:
        """What it is with respect to, in words."""
        if isinstance(self.of, Input):
            return f"`{self.of.name}`"
        return "the cotangent" if self.is_only else f"the {self.of}"

    def __str__(self) -> str:
        return f"second derivative with respect to {self.source}"


Thing = Gradient | Input | Output | Cotangent | Both | Second | str  # words, for anything else


@dataclass(frozen=True, slots=True)
class At:
    """A place: a thing of the call, perhaps an entry of it, and under which circumstances.

    `wrong` of `total` entries are, where that is counted; `rest` ends the sentence.
    """

    thing: Thing
    index: tuple[int, ...] | None = None
    rest: str = ""
    wrong: int = 0
    total: int = 0

    def then(self, rest: str) -> At:
        """The same place, with something said of the circumstances."""
        return replace(self, rest=self.rest + rest)

    @property
    def brief(self) -> str:
        """The same in a list of gradients, where each needs no more than its name."""
        if isinstance(self.thing, Gradient):
            return str(replace(self, thing=f"`{self.thing.name}`"))
        if isinstance(self.thing, Both):
            both = f"the tensor that is both `{self.thing.one}` and `{self.thing.two}`"
            return str(replace(self, thing=both))
        return str(self)

    def __str__(self) -> str:
        where = f" at {list(self.index)}" if self.index is not None else ""
        share = f", wrong in {self.wrong} of {self.total} entries" if self.total > 1 else ""
        return f"{self.thing}{where}{share}{self.rest}"


def at_worst(mismatch: Mismatch) -> At:
    """`gradient of `x` at [0, 3], wrong in 12 of 32 entries`."""
    if mismatch.index is None:
        return At(Gradient(mismatch.name))
    return At(
        Gradient(mismatch.name),
        mismatch.index or None,
        wrong=mismatch.wrong,
        total=mismatch.total,
    )


# ---- what came, or must come ----


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is shown, and what is said of it besides; None where there is no gradient."""

    value: Value
    rest: str = ""
    digits: int = 6

    def then(self, rest: str) -> Number:
        """The same number, with something said of it."""
        return replace(self, rest=rest)

    def __str__(self) -> str:
        return f"{number(self.value, self.digits)}{self.rest}"


@dataclass(frozen=True, slots=True)
class Words:
    """What is no number: a shape, that memory is gone."""

    text: str
    rest: str = ""

    def then(self, rest: str) -> Words:
        """The same, with something said of it."""
        return replace(self, rest=rest)

    def __str__(self) -> str:
        return f"{self.text}{self.rest}"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Two tensors side by side, as rows of numbers: what was expected, and what came.

    `shape` is that of the tensors; all dimensions but the last are rows. Large ones have none.
    """

    shape: tuple[int, ...]
    expected: tuple[tuple[float, ...], ...]
    got: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class About:
    """What a finding is about, as far as it is data and not words.

    `used` are the outputs with a cotangent and `needed` the inputs that required grad, where the
    finding needs these and no others; None where all do. `remedy` tells the repairs of a rule
    apart, where one does not serve all that it finds of a kind. `sheet` holds the whole of a wrong
    gradient, where it is small enough to look at. `detail` is what a rule knows besides, of a type
    of its own, for its repros and for what it explains.
    """

    at: At | None = None
    expected: Number | None = None
    got: Number | Raised | None = None
    used: tuple[int, ...] | None = None
    needed: tuple[str, ...] | None = None
    is_explained: bool = False  # whether a reason is known
    remedy: str = ""
    detail: Any = None
    sheet: Sheet | None = None

    @property
    def thing(self) -> Thing:
        """What it is about; empty where that is not known."""
        return "" if self.at is None else self.at.thing

    @property
    def raised(self) -> Raised | None:
        """What the call raised, where that is the defect."""
        return self.got if isinstance(self.got, Raised) else None

    @property
    def name(self) -> str:
        """The input whose gradient is wrong; empty where none is named."""
        return self.thing.name if isinstance(self.thing, Gradient) else ""

    @property
    def index(self) -> tuple[int, ...] | None:
        """The entry that is named."""
        return None if self.at is None else self.at.index


def sheet_of(mismatch: Mismatch) -> Sheet | None:
    """The whole of a wrong gradient, where it is of real numbers and small enough to look at."""
    want, have = mismatch.want, mismatch.have
    if have is None or want.shape != have.shape or want.is_complex() or have.is_complex():
        return None
    if not 1 < want.numel() <= CELLS or want.shape[-1] > WIDEST:
        return None
    rows = [tensor.detach().double().reshape(-1, want.shape[-1]) for tensor in (want, have)]
    expected, got = (tuple(tuple(row) for row in one.tolist()) for one in rows)
    return Sheet(tuple(want.shape), expected, got)


# ---- numbers as text ----


def number(value: Value, digits: int = 6) -> str:
    """A number as it is shown: six digits, `none` where there is no gradient."""
    if value is None:
        return "None"
    if isinstance(value, complex):
        return f"{value.real:.{digits}g}{value.imag:+.{digits}g}j"
    return f"{value:.{digits}g}"


def numbers(one: Value, two: Value) -> tuple[Number, Number]:
    """Two numbers as they are shown: with so many digits that they are not the same text."""
    for digits in (6, 9, 12, 17):
        if number(one, digits) != number(two, digits):
            break
    return Number(one, digits=digits), Number(two, digits=digits)


def shapes(one: Any, two: Any) -> tuple[Words, Words]:
    """The shapes of two tensors, where that is what differs."""
    return Words(f"shape {list(one.shape)}"), Words(f"shape {list(two.shape)}")
