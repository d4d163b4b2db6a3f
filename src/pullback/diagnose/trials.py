"""Trials: a hand-written backward beside PyTorch's own derivative of the same forward.

Each trial runs both on the same inputs and cotangents, in double precision where the Function can:
first on the examples, then on values near them or drawn from them, also of other sizes. If the
examples are large the other trials are small. What came out is kept: the gradient that was
expected, and the one that the user's backward returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.joint import Capture
from pullback.capture.names import argument_names
from pullback.capture.seeds import normal
from pullback.capture.trees import flatten, is_tensor, unflatten
from pullback.diagnose.fresh_inputs import (
    Shapes,
    drawn_anew,
    moved,
    shapes_resized,
    small_sizes,
    unlike_shapes,
)
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.shape_fitting import make_fitted, zeros
from pullback.errors import PullbackError
from pullback.function.isolation import seeded
from pullback.function.plain import plain_program
from pullback.judge.example import Example, example_of
from pullback.judge.mismatch import Mismatch, flat_of
from pullback.judge.reference import FINEST, PrecisionWatcher, Reference
from pullback.judge.run import BackwardFailedError, ForwardRefusedError, Run, describe, run
from pullback.judge.tolerances import REPEATED, are_near
from pullback.judge.verdict import JudgedGradient

HELD_OUT = 50
"""The number of the first trial that no edit is searched with."""

STEEP_TRIAL = 90
"""The number of the one among them that has large cotangents."""

BACKWARD = 1000
"""What a backward draws random numbers from, beyond the number of the trial."""


class UntriedError(Exception):
    """A Function that cannot be tried; the text says why."""


class Trials:
    """The trials of one Function, in order: the first is that of the examples themselves.

    Inside, it is called with the leaves of its arguments, each of which can have a gradient.
    `refusals` are the reasons why a program could not be captured, for those who capture it.
    """

    def __init__(self, target: Any, examples: Sequence[Any]) -> None:
        self.target = target
        self.program = plain_program(target)
        leaves, self.spec = flatten(tuple(examples))
        self.leaf_names = tuple(argument_names(target.apply, examples))
        self.given = example_of(tuple(leaves))
        self.positions = sorted(self.given.needs)  # of the leaves that need a gradient
        self.reference = Reference(self._of_leaves(target.apply), self._of_leaves(self.program))
        self.used: tuple[int, ...] = ()  # the outputs, by leaf, that have a cotangent
        self._outputs: tuple[int, ...] = ()  # those that are tensors
        self.is_rough = False
        self.refusals: list[PullbackError] = []
        self.all = [self._first()]
        self._require_same_outputs()

    def _first(self) -> GradientTrial:
        """The trial of the examples: in double precision, if the Function takes that."""
        given, precision = self.given, PrecisionWatcher()
        self.given = given.double()
        try:
            with precision:
                first = self._run(self._own(), 0)
            gradients = [g for g in (*first.expected, *first.got) if g is not None]
            self.is_rough = precision.of(gradients) > FINEST
            return replace(first, is_rough=self.is_rough)
        except Exception:  # it does not serve float64: as it was given then
            self.given, self.used = given, ()
            return self._run(self._own(), 0)

    def _require_same_outputs(self) -> None:
        """Refuse a forward that gives other outputs each time: it has no gradients to compare."""
        own = self.all[0].tensors
        once, again = (
            self._called(f, own, 0).outputs for f in (self.program, make_fitted(self.target, zeros))
        )
        for one, two in zip(once, again, strict=False):
            if one.shape != two.shape or not are_near(one, two, REPEATED):
                raise UntriedError("its forward gives other outputs each time it runs")

    @property
    def needs(self) -> list[bool]:
        """Which of the tensors need a gradient."""
        return [i in self.given.needs for i in self.given.tensors]

    @property
    def input_names(self) -> list[str]:
        """The user's names of the tensors."""
        return [self.leaf_names[i] for i in self.given.tensors]

    @property
    def names(self) -> list[str]:
        """The user's names of the inputs that need a gradient."""
        return [self.leaf_names[i] for i in self.positions]

    @property
    def examples(self) -> tuple[Any, ...]:
        """The arguments of the first trial: tensors that are no leaves where they need gradients.

        A Function may change those in place.
        """
        with torch.enable_grad():
            leaves = [leaf.clone() if is_tensor(leaf) else leaf for leaf in self.given.fresh()]
        return tuple(unflatten(leaves, self.spec))

    def _own(self) -> list[Tensor]:
        return [self.given.args[i] for i in self.given.tensors]

    def _example(self, tensors: Sequence[Tensor], number: int) -> Example:
        """The leaves of the arguments, with these tensors in them."""
        rest = iter(tensors)
        leaves = tuple(next(rest) if is_tensor(leaf) else leaf for leaf in self.given.args)
        return replace(self.given, args=leaves, seed=number)

    def _of_leaves(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, called with the leaves of its arguments."""
        return lambda *leaves: function(*unflatten(leaves, self.spec))

    # ---- fresh inputs ----

    def add_fresh(self, captured: Capture | None) -> None:
        """Add trials with fresh values, also of other sizes that the graph `captured` serves."""
        own = self.all[0].tensors
        if captured is not None and self.all[0].is_large and self._add_small(captured):
            return
        self._add([moved(tensor, _seed(1, i)) for i, tensor in enumerate(own)])
        self._add([drawn_anew(t, t.shape, _seed(2, i)) for i, t in enumerate(own)])
        if captured is None:
            return
        for grow in (lambda size: size + 1, lambda size: 2 * size):
            if self._add_sized(captured, shapes_resized(captured, own, grow), 3):
                break
        self._add_sized(captured, unlike_shapes(captured, own), 4)

    def _add_small(self, captured: Capture) -> bool:
        """Add small trials; False if there are no such sizes."""
        own = self.all[0].tensors
        for shrink in small_sizes(captured):
            shapes = shapes_resized(captured, own, shrink)
            if self._add_sized(captured, shapes, 1):
                self._add_sized(captured, shapes, 2)
                grow = lambda size, to=shrink: to(size) + 1  # noqa: E731
                self._add_sized(captured, shapes_resized(captured, own, grow), 3)
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
        row = [drawn_anew(tensor, shape, _seed(seed, i)) for i, (tensor, shape) in pairs]
        return row if captured.serves(row) else None

    def _add(self, tensors: Sequence[Tensor]) -> bool:
        """Add a trial; False when one of both cannot run on `tensors`."""
        trial = self._tried(tensors, len(self.all))
        if trial is not None:
            self.all.append(trial)
        return trial is not None

    def held_out(self, captured: Capture) -> list[GradientTrial]:
        """Further trials, which no edit has seen: other values, in the sizes of these trials and
        in larger ones, and large cotangents, since what is right for all of them is linear."""
        shapes = dict.fromkeys(trial.shapes for trial in self.all if not trial.is_large)
        wishes: list[Shapes | None] = [list(row) for row in shapes]
        if not self.all[0].is_large:
            wishes.append(shapes_resized(captured, self.all[0].tensors, lambda size: size + 2))
        found = []
        for number, wish in enumerate(wishes or [list(self.all[0].shapes)], start=HELD_OUT):
            row = self._row(captured, wish, number)
            trial = None if row is None else self._tried(row, number)
            found += [] if trial is None else [trial]
        if found:
            trial = self._tried(found[0].tensors, STEEP_TRIAL)
            found += [] if trial is None else [trial]
        return found

    # ---- runs ----

    def _tried(self, tensors: Sequence[Tensor], number: int) -> GradientTrial | None:
        """A run of both, or None where one of them raises, or returns what has no right shape."""
        try:
            trial = self._run(tensors, number)
        except Exception:  # the refusal of either is the answer
            return None
        # As good as raising, for sizes that backward was not written for.
        return None if trial.misfits - self.all[0].misfits else trial

    def _run(self, tensors: Sequence[Tensor], number: int) -> GradientTrial:
        with _described("it raises on these arguments"):
            cotangents = self.cotangents(tensors, number)
        with _described("PyTorch cannot differentiate its forward"):
            expected = self.derived(tensors, cotangents, number)
        with _described("its backward raises"):
            got = self.written(tensors, cotangents, number)
        rows = (tuple(tensors), tuple(cotangents), tuple(expected), tuple(got))
        return GradientTrial(number, *rows, is_rough=self.is_rough)

    def cotangents(self, tensors: Sequence[Tensor], number: int) -> list[Tensor]:
        """Cotangents for the outputs of a run: normal numbers, no two alike."""
        called = self._called(make_fitted(self.target, zeros), tensors, number)
        outputs = flatten(called.result)[0]
        used = [i for i, out in enumerate(outputs) if is_tensor(out) and out.requires_grad]
        self.used = self.used or tuple(used)
        self._outputs = tuple(i for i, out in enumerate(outputs) if is_tensor(out))
        scale = 64 if number == STEEP_TRIAL else 1
        return [scale * normal(outputs[i], 100 * number + i) for i in used]

    def derived(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
    ) -> list[Tensor | None]:
        """The gradients that autograd finds through the forward itself."""
        example = self._example(tensors, number)
        found = self.reference.derived(example, self._by_output(cotangents), self.positions)
        return [found.get(position) for position in self.positions]

    def written(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
    ) -> list[Tensor | None]:
        """The gradients that the user's backward returns, also those of the wrong shape."""
        misfits: dict[int, Tensor] = {}

        def fit(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
            misfits[position] = gradient.detach()
            return zeros(position, gradient, shape)

        called = self._called(make_fitted(self.target, fit), tensors, number)
        with seeded(BACKWARD + number):
            found = called.pull(self._by_output(cotangents))
        return [
            misfits.get(self.position(place), found[name]) for place, name in enumerate(self.names)
        ]

    def judged(self, trial: GradientTrial, place: int) -> Mismatch | None:
        """How the gradient at `place` is wrong, by autograd and by slopes of the forward itself.

        Slopes decide where these differ, and autograd where there is no slope. None where it is
        right.
        """
        example = self._example(trial.tensors, trial.number)
        cotangents = tuple(self._by_output(trial.cotangents))
        of = (self.reference, example, cotangents, self.positions[place])
        case = JudgedGradient(*of, example, self.names[place], trial.got[place])
        expected = trial.pair(place)[0]
        if all(gradient is None for gradient in trial.expected):
            return case.against_differences(trial.tolerance(expected))
        found = case.against(expected, trial.tolerance(expected))
        worst = flat_of(trial.worst(place), expected.shape)
        if found is None and case.entry(worst) is None:
            wrong = int(trial.wrong(place).sum())
            return case.mismatch(expected, worst, expected.flatten()[worst].item(), wrong)
        return found

    def kept(self) -> list[Tensor]:
        """The tensors that the forward of the examples keeps for backward."""
        found: list[Tensor] = []

        def note(ctx: Any) -> None:
            values = (*ctx.saved_tensors, *vars(ctx).values())
            found.extend(value.detach() for value in values if is_tensor(value))

        trial = self.all[0]
        called = self._called(
            make_fitted(self.target, zeros, note=note), trial.tensors, trial.number
        )
        with suppress(BackwardFailedError):  # saved tensors that can be looked at once
            called.pull(self._by_output(trial.cotangents))
        return found

    def _called(self, function: Callable[..., Any], tensors: Sequence[Tensor], number: int) -> Run:
        example = self._example(tensors, number)
        return run(self._of_leaves(function), example, self.leaf_names, through_clone=True)

    def _by_output(self, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """The cotangents by the outputs that are tensors, None for those that have none."""
        given = dict(zip(self.used, cotangents, strict=True))
        return [given.get(i) for i in self._outputs]

    def position(self, place: int) -> int:
        """The position among the arguments of the input at `place`, or -1 inside a container."""
        leaf = self.positions[place]
        arguments = unflatten(range(len(self.leaf_names)), self.spec)
        return next(
            (i for i, argument in enumerate(arguments) if argument == leaf),
            -1,
        )


# ---- parts ----


@contextmanager
def _described(what: str) -> Iterator[None]:
    """Add to an error what was being done."""
    try:
        yield
    except (ForwardRefusedError, BackwardFailedError) as failure:
        raise UntriedError(f"{what}: {failure.raised}") from failure.error
    except Exception as error:
        raise UntriedError(f"{what}: {describe(error)}") from error


def _seed(seed: int, position: int) -> int:
    """Another seed for each input: two that are equal in the examples are not in other trials."""
    return 1000 * seed + position
