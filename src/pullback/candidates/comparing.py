"""Whether what a candidate gave is right, and in what way it is not.

The truth is the reference in float64. How far a result may be from it follows from the dtype, from
the length of the sums that may stand in it, from how strongly it reacts to its inputs (measured, by
moving them a little), and from how far the reference itself is off in the same dtype.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pullback.candidates.calling import Called, call_once
from pullback.judge.example import Example, can_differ, dtype_name, tensors_in, wide_of
from pullback.judge.mismatch import index_of

MOVE = 1e-6  # of each input, in float64: how the truth reacts
ROUNDINGS, SUMMED, OWN = 4.0, 8.0, 4.0  # what is allowed, in multiples of each part
SPREAD = 0.3  # of all entries are off, where numbers are rounded: not some few
ROUNDED = 0.8  # of the error is left, at most, beside a truth for rounded inputs
SYSTEMATIC = 0.7  # of the error is left beside a factor, where it is one
COARSE = {"bfloat16": 2.0**-8, "float16 or TF32": 2.0**-11}
MOST = 0.1  # an error beyond this share is no rounding
MANY = 1 << 16  # numbers from which on they are summed up where they are
ODD_NUMBER = 0x9E3779B97F4A7C15 - (1 << 64)  # of which multiples look random


class EntryPattern(str, Enum):
    """What the wrong entries of a result look like."""

    ZEROS = "zeros"
    NOT_FINITE = "not finite"
    ROUNDED_INPUTS = "rounded inputs"
    ROUNDED = "rounded"
    OTHER = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """What one result is beside the truth; `status` is "right", "wrong", "shape" or "absent".

    `error` is how far the worst entry is off, as a share of the numbers that it is made of;
    `pattern` says what the wrong entries look like, `rounded_to` which format they or the inputs
    were rounded to.
    """

    status: str
    what: str = ""
    at: str = ""
    expected: str = ""
    got: str = ""
    share: float = 0.0  # of the entries that are wrong
    error: float = 0.0
    pattern: EntryPattern = EntryPattern.OTHER
    rounded_to: str = ""
    is_gradient: bool = False
    digest: str = ""  # of all results
    outputs: str = ""  # the same, without gradients
    has_nan: bool = False  # among the entries that are wrong

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The right results at one example, in float64, and how far each entry may be from it."""

    names: tuple[str, ...]
    plain: tuple[Tensor | None, ...]
    wide: tuple[Tensor | None, ...]
    scale: tuple[Tensor | None, ...]
    allowed: tuple[Tensor | None, ...]
    digest: str
    is_finite: bool
    count: int  # of outputs, which come first

    def compare(self, got: Sequence[Tensor | None], rounded: Callable[[], Any]) -> Compared:
        """The first result that is wrong, or that all are right.

        `rounded` gives, by the name of a format, what the truth is at inputs rounded to it.
        """
        digest = digest_of(got)
        outputs = digest_of(got[: self.count])
        if len(got) != len(self.wide):
            found = f"{len(got)} tensors"
            return Compared("shape", "results", "", f"{len(self.wide)} tensors", found)
        for place, name in enumerate(self.names):
            one = self._one(place, name, got[place], rounded)
            if one.status != "right":
                is_gradient = place >= self.count
                return replace(one, digest=digest, outputs=outputs, is_gradient=is_gradient)
        return Compared("right", digest=digest, outputs=outputs)

    def _one(
        self, place: int, name: str, got: Tensor | None, rounded: Callable[[], Any]
    ) -> Compared:
        plain, wide = self.plain[place], self.wide[place]
        if plain is None or wide is None:
            is_zero = got is None or not bool((got != 0).any())
            return Compared("right") if is_zero else _other("absent", name, "no gradient", got)
        if got is None:
            is_zero = not bool((wide != 0).any())
            return Compared("right") if is_zero else _other("absent", name, plain, None)
        if got.shape != plain.shape or got.dtype != plain.dtype:
            return _other("shape", name, plain, got)
        return self._numbers(place, name, got.to(plain.device), rounded)

    def _numbers(self, place: int, name: str, got: Tensor, rounded: Callable[[], Any]) -> Compared:
        want, allowed, scale = self.wide[place], self.allowed[place], self.scale[place]
        assert want is not None
        assert allowed is not None
        assert scale is not None
        have = wide_of(got)
        known = torch.isfinite(want.abs())
        off = (have - want).abs()
        off = torch.where(torch.isfinite(off), off, math.inf)
        wrong = known & (off > allowed)
        if not bool(wrong.any()):
            return Compared("right")
        relative = torch.where(known, off / (scale + scale.mean() + 1e-300), 0.0)
        worst = int(torch.where(wrong, relative, -1.0).argmax())
        count, total = int(wrong.sum()), wrong.numel()
        error = float(relative.flatten()[worst])
        pattern, rounded_to = self._pattern(place, have, wrong, relative, rounded)
        return Compared(
            "wrong",
            name,
            f"{name}[{', '.join(str(i) for i in index_of(worst, got.shape))}]",
            f"{_number(want, worst)}",
            f"{_number(have, worst)}, {count} of {total} entries are off",
            count / total,
            error if math.isfinite(error) else 1e300,
            pattern,
            rounded_to,
            has_nan=bool(have[wrong].isnan().any()),
        )

    def _pattern(
        self, place: int, have: Tensor, wrong: Tensor, relative: Tensor, rounded: Callable[[], Any]
    ) -> tuple[EntryPattern, str]:
        """What the wrong entries look like, and the format that they were rounded to."""
        values = have[wrong]
        if not bool(torch.isfinite(values.abs()).any()):
            return EntryPattern.NOT_FINITE, ""
        if not bool((values != 0).any()):
            return EntryPattern.ZEROS, ""
        plain, want, allowed = self.plain[place], self.wide[place], self.allowed[place]
        assert plain is not None
        assert want is not None
        assert allowed is not None
        finite = torch.isfinite(relative)
        off = torch.where(finite, (have - want).abs(), 0.0)
        if not bool(finite.all()) or float(relative.max()) > MOST or not plain.is_floating_point():
            return EntryPattern.OTHER, ""
        away = float(off.square().mean().sqrt())
        if _is_factor(have - want, want, away):
            return EntryPattern.OTHER, ""
        for name, other in rounded().items():
            beside = other[place]
            if beside is None or beside.shape != have.shape:
                continue
            if float((have - beside).square().mean().sqrt()) < ROUNDED * away:
                return EntryPattern.ROUNDED_INPUTS, name
        scale = self.scale[place]
        assert scale is not None
        counts = scale >= scale.mean()  # entries that are made of large enough numbers
        touched = float((off > allowed / 8)[counts].double().mean())
        if touched < SPREAD:
            return EntryPattern.OTHER, ""
        eps = torch.finfo(plain.dtype).eps
        usual = float(relative[counts].square().mean().sqrt())
        fitting = [n for n, e in COARSE.items() if eps < e / 4 and e / 32 < usual < 4 * e]
        if not fitting:
            return EntryPattern.OTHER, ""
        # Numbers rounded to a format are off by a quarter of its last place, as a rule.
        nearest = min(fitting, key=lambda n: abs(math.log(4 * usual / COARSE[n])))
        return EntryPattern.ROUNDED, nearest


def _is_factor(error: Tensor, want: Tensor, away: float) -> bool:
    """Whether errors follow the numbers, as those of a factor do and those of rounding do not."""
    size = float(want.abs().square().sum())
    slope = float((error * want.conj()).sum().real) / size if size else 0.0
    return float((error - slope * want).abs().square().mean().sqrt()) < SYSTEMATIC * away


def truth_of(
    call: Callable[..., Any], example: Example, draw: int, names: Sequence[str], *, gradients: bool
) -> Truth:
    """What the reference says at an example; raises what it raises."""
    plain = call_once(call, example, draw, gradients=gradients)
    wide = _wide(call, example, draw, plain, gradients)
    moved = [
        _wide(call, _moved(example, draw + k), draw, plain, gradients) if wide is not None else None
        for k in range(2)
    ]
    length = _length(example, plain)
    truths: list[Tensor | None] = []
    scales: list[Tensor | None] = []
    allowed: list[Tensor | None] = []
    for place, tensor in enumerate(plain.tensors):
        want = scale = allow = None
        if tensor is not None:
            found = [_at(one, place, tensor) for one in (wide, *moved)]
            want, scale, allow = _allowed(tensor, found, length)
        truths.append(want)
        scales.append(scale)
        allowed.append(allow)
    finite = all(bool(torch.isfinite(t.abs()).all()) for t in truths if t is not None)
    titles = [
        f"output {i}" if len(plain.outputs) > 1 else "output" for i in range(len(plain.outputs))
    ]
    titles += [f"gradient of {name}" for name in names]
    return Truth(
        tuple(titles),
        tuple(plain.tensors),
        tuple(truths),
        tuple(scales),
        tuple(allowed),
        digest_of(plain.tensors),
        finite,
        len(plain.outputs),
    )


def rounded_truths(
    call: Callable[..., Any], example: Example, draw: int, plain: Sequence[Any], *, gradients: bool
) -> dict[str, list[Tensor | None]]:
    """What the truth is at inputs that were rounded to a coarser format first, by its name."""
    found: dict[str, list[Tensor | None]] = {}
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        coarse = example.map(partial(_rounded, dtype), "")
        try:
            called = call_once(call, coarse.double(), draw, gradients=gradients, asked=plain)
        except Exception:  # the reference refuses such numbers: no truth of this kind
            continue
        found[name] = [None if t is None else wide_of(t) for t in called.tensors]
    return found


def _rounded(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    """A tensor with its numbers rounded to a coarser format, where its own is finer."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize <= dtype.itemsize:
        return tensor
    return tensor.to(dtype).to(tensor.dtype)


def _wide(
    call: Callable[..., Any], example: Example, draw: int, plain: Called, gradients: bool
) -> Called | None:
    """The same call in float64; None where the reference computes in another dtype by itself."""
    try:
        called = call_once(call, example.double(), draw, gradients=gradients, asked=plain.outputs)
    except Exception:  # the reference serves no float64
        return None
    wide = (torch.float64, torch.complex128)
    same = [(a, b) for a, b in zip(called.outputs, plain.outputs, strict=False) if can_differ(b)]
    is_wide = all(a.dtype in wide and a.shape == b.shape for a, b in same)
    return called if is_wide and len(called.outputs) == len(plain.outputs) else None


def _moved(example: Example, draw: int) -> Example:
    """The example in float64 with every number a little larger or smaller."""

    def move(tensor: Tensor) -> Tensor:
        if not can_differ(tensor):
            return tensor
        generator = torch.Generator(tensor.device).manual_seed(draw)
        options: Any = {"generator": generator, "device": tensor.device}
        signs = torch.randint(0, 2, tensor.shape, **options) * 2 - 1
        return tensor * (1 + MOVE * signs)

    return example.double().map(move, "")


def _at(called: Called | None, place: int, like: Tensor) -> Tensor | None:
    tensor = called.tensors[place] if called is not None else None
    return None if tensor is None or tensor.shape != like.shape else wide_of(tensor)


def _allowed(
    plain: Tensor, found: Sequence[Tensor | None], length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The truth of one result, the size of the numbers in it, and how far off one may be."""
    want, *moved = found
    own = wide_of(plain)
    if want is None:
        want, moved = own, []
    scale = want.abs()
    for other in moved:
        if other is not None:
            scale = scale + (other - want).abs() / MOVE / len(moved)
    scale = torch.where(torch.isfinite(scale), scale, 0.0)
    if not (plain.is_floating_point() or plain.is_complex()):
        return want, scale, torch.where(scale > want.abs(), math.inf, 0.0)
    eps = torch.finfo(plain.dtype).eps
    summed = min(eps, torch.finfo(torch.float32).eps)
    typical = scale.mean() if scale.numel() else scale.sum()
    error = torch.where(torch.isfinite(own - want), (own - want).abs(), 0.0)
    usual = error.mean() if error.numel() else error.sum()
    allowed = ROUNDINGS * eps * (scale + typical) + OWN * (error + usual)
    allowed = allowed + SUMMED * summed * math.sqrt(length) * (scale + typical)
    return want, scale, allowed + torch.finfo(plain.dtype).tiny


def _length(example: Example, called: Called) -> int:
    """How long a sum may be at most that stands in a result."""
    sizes = [size for tensor in tensors_in(example.args) for size in tensor.shape]
    most = max((tensor.numel() for tensor in tensors_in(example.args)), default=1)
    least = min((t.numel() for t in called.tensors if t is not None and t.numel()), default=1)
    return max(*sizes, most // least, 1) if sizes else 1


def _other(status: str, name: str, expected: Any, got: Any) -> Compared:
    return Compared(status, name, name, _form(expected), _form(got), 1.0, 1e300)


def _form(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"{dtype_name(thing.dtype)}{list(thing.shape)}"
    return thing if isinstance(thing, str) else "none"


def _number(tensor: Tensor, place: int) -> str:
    return f"{tensor.flatten()[place].item():.6g}"


def digest_of(tensors: Sequence[Tensor | None]) -> str:
    """A short text that is the same for the same numbers in the same shapes."""
    said = hashlib.blake2b(digest_size=12)
    for tensor in tensors:
        if tensor is None:
            said.update(b"none")
            continue
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        said.update(f"{tuple(plain.shape)} {plain.dtype}".encode())
        if plain.numel() > MANY:
            said.update(str(_sums(plain)).encode())
        elif plain.numel():
            plain = plain.cpu()
            size = plain.numel() * plain.element_size()
            said.update(ctypes.string_at(plain.data_ptr(), size))
    return said.hexdigest()


def _sums(tensor: Tensor) -> list[int]:
    """The bits of a tensor, added up with weights that depend on the place; integers wrap."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    bits = tensor.flatten().view(kinds[tensor.element_size()])
    found = []
    for part in bits.split(1 << 24):
        weights = torch.arange(1, part.numel() + 1, device=part.device) * ODD_NUMBER
        found.append(int((part.long() * (weights ^ (weights >> 29))).sum()))
    return found
