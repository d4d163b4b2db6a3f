"""Trials: a hand-written backward beside PyTorch's own derivative of the same forward.

Each trial runs both on the same inputs and cotangents, in double precision where the Function can:
first on the examples, then on values near them or drawn from them, also of other sizes. If the
examples are large the other trials are small. What came out is kept: the gradient that was
expected, and the one that was got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback.capture.joint import Capture
from pullback.capture.names import argument_names
from pullback.capture.seeds import normal
from pullback.capture.trees import flatten, is_tensor, unflatten
from pullback.derive.plain import program_of
from pullback.diagnose.fitting import make_fitted, zeros
from pullback.diagnose.measured import PRECISE, Trial
from pullback.diagnose.samples import (
    Shapes,
    drawn,
    near,
    other_shapes,
    small_sizes,
    unlike_shapes,
)
from pullback.errors import PullbackError

DOUBLE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

HELD_OUT = 50
"""The number of the first trial that no edit is searched with."""

STEEP = 90
"""The number of the one among them that has large cotangents."""


class UntriedError(Exception):
    """A Function that cannot be tried; the text says why."""


class Trials:
    """The trials of one Function, in order: the first is that of the examples themselves.

    `refusals` are the reasons why a program could not be captured, for those who capture it.
    """

    def __init__(self, target: Any, examples: Sequence[Any]) -> None:
        self.target = target
        self.program = program_of(target)
        leaves, self.spec = flatten(tuple(examples))
        names = argument_names(target.apply, examples)
        own = [(n, leaf) for n, leaf in zip(names, leaves, strict=True) if is_tensor(leaf)]
        self.input_names = [name for name, _ in own]
        self.needs = _needs([tensor for _, tensor in own])
        self.places = [i for i, needed in enumerate(self.needs) if needed]
        self.used: tuple[int, ...] = ()  # the outputs, by leaf, that have a cotangent
        self.is_rough = False
        self.refusals: list[PullbackError] = []
        self.all: list[Trial] = []
        self.leaves = [_doubled(leaf) for leaf in leaves]
        precision = _Precision()
        try:
            with precision:
                first = self._run(self._own(), 0)
        except Exception:  # some Functions take single precision only
            self.leaves, self.used = list(leaves), ()
            first = self._run(self._own(), 0)
        self.is_rough = precision.is_lost
        self.all.append(replace(first, is_rough=self.is_rough))
        self._require_same_outputs()

    def _require_same_outputs(self) -> None:
        """A forward that gives other outputs each time has no gradients to compare."""
        own = self.all[0].tensors
        apply = make_fitted(self.target, zeros)
        (_, once), (_, again) = (self.forward(f, own, 0) for f in (self.program, apply))
        pairs = zip(_tensors(once), _tensors(again), strict=False)
        if not all(a.shape == b.shape and _is_close(a, b) for a, b in pairs):
            raise UntriedError("its forward gives other outputs each time it runs")

    @property
    def names(self) -> list[str]:
        """The user's names of the inputs that need a gradient."""
        return [self.input_names[place] for place in self.places]

    @property
    def examples(self) -> tuple[Any, ...]:
        """The arguments of the first trial: tensors that are no leaves where they need gradients.

        A Function may change those in place.
        """
        return self.fill(self._given(self._own())[1])

    def _own(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if is_tensor(leaf)]

    def fill(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments, with these tensors in them."""
        rest = iter(tensors)
        leaves = [next(rest) if is_tensor(leaf) else leaf for leaf in self.leaves]
        return tuple(unflatten(leaves, self.spec))

    # ---- fresh inputs ----

    def add_fresh(self, captured: Capture | None) -> None:
        """Add trials with fresh values, also of other sizes that the graph `captured` serves."""
        own = self.all[0].tensors
        if captured is not None and self.all[0].is_large and self._add_small(captured):
            return
        self._add([near(tensor, _seed(1, i)) for i, tensor in enumerate(own)])
        self._add([drawn(t, t.shape, _seed(2, i)) for i, t in enumerate(own)])
        if captured is None:
            return
        for grow in (lambda size: size + 1, lambda size: 2 * size):
            if self._add_sized(captured, other_shapes(captured, own, grow), 3):
                break
        self._add_sized(captured, unlike_shapes(captured, own), 4)

    def _add_small(self, captured: Capture) -> bool:
        """Add small trials; False if there are no such sizes."""
        own = self.all[0].tensors
        for shrink in small_sizes(captured):
            shapes = other_shapes(captured, own, shrink)
            if self._add_sized(captured, shapes, 1):
                self._add_sized(captured, shapes, 2)
                grow = lambda size, to=shrink: to(size) + 1  # noqa: E731
                self._add_sized(captured, other_shapes(captured, own, grow), 3)
                self._add_sized(captured, unlike_shapes(captured, self.all[-1].tensors), 4)
                return True
        return False

    def _add_sized(self, captured: Capture, shapes: Shapes | None, seed: int) -> bool:
        """Add a trial of these shapes, if the forward takes such; False if not."""
        row = self._row(captured, shapes, seed)
        return row is not None and self._add(row)

    def _row(self, captured: Capture, shapes: Shapes | None, seed: int) -> list[Tensor] | None:
        """Tensors of these shapes, if there are any and the graph serves them."""
        own = self.all[0].tensors
        if shapes is None:
            return None
        pairs = enumerate(zip(own, shapes, strict=True))
        row = [drawn(tensor, shape, _seed(seed, i)) for i, (tensor, shape) in pairs]
        return row if captured.serves(row) else None

    def _add(self, tensors: Sequence[Tensor]) -> bool:
        """Add a trial; False when one of both cannot run on `tensors`."""
        trial = self._tried(tensors, len(self.all))
        if trial is not None:
            self.all.append(trial)
        return trial is not None

    def held_out(self, captured: Capture) -> list[Trial]:
        """Further trials, which no edit has seen: other values, in the sizes of these trials and
        in larger ones, and large cotangents, since what is right for all of them is linear."""
        shapes = dict.fromkeys(trial.shapes for trial in self.all if not trial.is_large)
        wishes: list[Shapes | None] = [list(row) for row in shapes]
        if not self.all[0].is_large:
            wishes.append(other_shapes(captured, self.all[0].tensors, lambda size: size + 2))
        found = []
        for number, wish in enumerate(wishes or [list(self.all[0].shapes)], start=HELD_OUT):
            row = self._row(captured, wish, number)
            trial = None if row is None else self._tried(row, number)
            found += [] if trial is None else [trial]
        if found:
            trial = self._tried(found[0].tensors, STEEP)
            found += [] if trial is None else [trial]
        return found

    # ---- runs ----

    def _tried(self, tensors: Sequence[Tensor], number: int) -> Trial | None:
        """A run of both, or None where one of them raises, or returns what has no right shape."""
        try:
            trial = self._run(tensors, number)
        except Exception:
            return None
        # As good as raising, for sizes that backward was not written for.
        return None if trial.misfits - self.all[0].misfits else trial

    def _run(self, tensors: Sequence[Tensor], number: int) -> Trial:
        with _told("it raises on these arguments"):
            cotangents = self.cotangents(tensors, number)
        with _told("PyTorch cannot differentiate its forward"):
            expected = self.derived(tensors, cotangents, number)
        with _told("its backward raises"):
            got = self.written(tensors, cotangents, number)
        rows = (tuple(tensors), tuple(cotangents), tuple(expected), tuple(got))
        return Trial(number, *rows, is_rough=self.is_rough)

    def cotangents(self, tensors: Sequence[Tensor], number: int) -> list[Tensor]:
        """Cotangents for the outputs of a run: normal numbers, no two alike."""
        fitted = make_fitted(self.target, zeros)
        _, outputs = self.forward(fitted, tensors, number)
        used = [i for i, out in enumerate(outputs) if is_tensor(out) and out.requires_grad]
        self.used = self.used or tuple(used)
        scale = 64 if number == STEEP else 1
        return [scale * normal(outputs[i], 100 * number + i) for i in used]

    def derived(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
    ) -> list[Tensor | None]:
        """The gradients that autograd finds through the forward itself."""
        leaves, outputs = self.forward(self.program, tensors, number)
        used = [outputs[i] for i in self.used]
        pairs = [(o, c) for o, c in zip(used, cotangents, strict=True) if o.requires_grad]
        return _pull(leaves, [o for o, _ in pairs], [c for _, c in pairs], number)

    def written(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
    ) -> list[Tensor | None]:
        """The gradients that the user's backward returns."""
        misfits: dict[int, Tensor] = {}

        def fit(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
            misfits[position] = gradient.detach()
            return zeros(position, gradient, shape)

        leaves, outputs = self.forward(make_fitted(self.target, fit), tensors, number)
        gradients = _pull(leaves, [outputs[i] for i in self.used], cotangents, number)
        return self._with_misfits(gradients, misfits)

    def kept(self) -> list[Tensor]:
        """The tensors that the forward of the examples keeps for backward."""
        found: list[Tensor] = []

        def note(ctx: Any) -> None:
            values = (*ctx.saved_tensors, *vars(ctx).values())
            found.extend(value.detach() for value in values if is_tensor(value))

        trial = self.all[0]
        apply = make_fitted(self.target, zeros, note=note)
        leaves, outputs = self.forward(apply, trial.tensors, trial.number)
        with suppress(RuntimeError):  # saved tensors that can be looked at once
            _pull(leaves, [outputs[i] for i in self.used], trial.cotangents, trial.number)
        return found

    def forward(
        self, function: Callable[..., Any], tensors: Sequence[Tensor], number: int
    ) -> tuple[list[Tensor], list[Any]]:
        """The inputs that need a gradient, as leaves, and the outputs of `function` on them."""
        leaves, given = self._given(tensors)
        with torch.random.fork_rng():
            torch.manual_seed(number)
            returned = function(*self.fill(given))
        wanted = [leaf for leaf, needed in zip(leaves, self.needs, strict=True) if needed]
        return wanted, flatten(returned)[0]

    def _given(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Fresh leaves, and what a call is given of them."""
        pairs = list(zip(tensors, self.needs, strict=True))
        with torch.enable_grad():
            leaves = [t.detach().clone().requires_grad_(needed) for t, needed in pairs]
            return leaves, [leaf.clone() for leaf in leaves]

    def _with_misfits(
        self, gradients: list[Tensor | None], misfits: Mapping[int, Tensor]
    ) -> list[Tensor | None]:
        """`gradients`, with those of unfit shape as they were returned."""
        starts = self._positions()
        return [
            misfits.get(starts.get(place, -1), gradient)
            for place, gradient in zip(self.places, gradients, strict=True)
        ]

    def position(self, place: int) -> int:
        """The position among the arguments of the input at `place`, or -1 inside a container."""
        return self._positions().get(self.places[place], -1)

    def _positions(self) -> dict[int, int]:
        """The position among the arguments of each tensor that is an argument itself."""
        found: dict[int, int] = {}
        seen = 0
        arguments = unflatten(self.leaves, self.spec)
        for position, argument in enumerate(arguments):
            tensors = [leaf for leaf in flatten(argument)[0] if is_tensor(leaf)]
            if is_tensor(argument):
                found[seen] = position
            seen += len(tensors)
        return found


def _pull(
    leaves: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
) -> list[Tensor | None]:
    if not outputs or not leaves:
        return [None] * len(leaves)
    with torch.random.fork_rng():
        torch.manual_seed(1000 + number)
        return list(torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True))


# ---- parts ----


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say what was under way when something raised."""
    try:
        yield
    except UntriedError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise UntriedError(f"{what}: {type(error).__name__}{': ' if said else ''}{said}") from error


class _Precision(TorchFunctionMode):
    """Notes whether a number of double precision was made one of less."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.dtype in DOUBLE:
            given = (leaf for leaf in flatten(args)[0] if isinstance(leaf, Tensor))
            self.is_lost |= any(tensor.dtype in PRECISE for tensor in given)
        return result


def _seed(seed: int, position: int) -> int:
    """Another seed for each input: two that are equal in the examples are not in other trials."""
    return 1000 * seed + position


def _tensors(leaves: Sequence[Any]) -> list[Tensor]:
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]


def _is_close(one: Tensor, two: Tensor) -> bool:
    wide = torch.complex128 if one.is_complex() else torch.float64
    return torch.allclose(one.to(wide), two.to(wide), rtol=1e-3, atol=1e-6, equal_nan=True)


def _needs(tensors: Sequence[Tensor]) -> list[bool]:
    """Which tensors need a gradient: those that require one, or, if none does, all that can."""
    if any(tensor.requires_grad for tensor in tensors):
        return [tensor.requires_grad for tensor in tensors]
    return [tensor.is_floating_point() or tensor.is_complex() for tensor in tensors]


def _doubled(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to(DOUBLE.get(leaf.dtype, leaf.dtype))
