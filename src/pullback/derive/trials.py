"""Trials: a hand-written backward beside PyTorch's own derivative of the same forward.

Each trial runs both on the same inputs and cotangents, in double precision where the Function can:
first on the examples, then on values near them, then on others drawn from them, also of other
sizes. What came out is kept: the gradient that was expected, and the one that was got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import resized
from pullback.capture.joint import Capture
from pullback.capture.names import argument_names
from pullback.capture.trees import flatten, unflatten
from pullback.derive.plain import program_of
from pullback.function.signature import signature_of
from pullback.function.slots import new_class, no_vjp

DOUBLE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

# How far two gradients may be apart: relative to an element, and to the largest one.
_EXACT, _ROUGH = (1e-6, 1e-9), (1e-2, 1e-3)
_PRECISE = (torch.float64, torch.complex128)

Fit = Callable[[int, Tensor, Sequence[Any]], Tensor]
"""What to make of a gradient whose shape does not fit: from its position, itself and the shape."""


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """A gradient that is right, and how far from it another may be.

    Where PyTorch's own derivative is not finite, nothing is `known`, and nothing is judged.
    """

    expected: Tensor
    known: Tensor
    allowed: Tensor

    def differs(self, got: Tensor) -> Tensor:
        """Where a gradient of the same shape is wrong."""
        return self.known & ~((got - self.expected).abs() <= self.allowed)

    def fits(self, got: Any) -> bool:
        """Whether a gradient is right everywhere."""
        has_shape = isinstance(got, Tensor) and got.shape == self.expected.shape
        return has_shape and not bool(self.differs(got).any())


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One run of both: what went in, and the gradients of the inputs that need one.

    `got` is what the user's backward returned, in the shape it has there; `number` is the state
    of the random numbers.
    """

    number: int
    tensors: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]
    expected: tuple[Tensor | None, ...]
    got: tuple[Tensor | None, ...]

    def wrong(self, place: int) -> Tensor:
        """Where the gradient at `place` is wrong, as a mask of the shape of its input."""
        expected, got = self.pair(place)
        return self.differs(expected, got)

    @property
    def misfits(self) -> set[int]:
        """The places of the gradients that have not the shape of their inputs."""
        pairs = enumerate(zip(self.expected, self.got, strict=True))
        both = ((place, e, g) for place, (e, g) in pairs if e is not None and g is not None)
        return {place for place, e, g in both if e.shape != g.shape}

    def pair(self, place: int) -> tuple[Tensor, Tensor]:
        """Both gradients at `place`, with zeros for None; those of unlike shapes stay so."""
        expected, got = self.expected[place], self.got[place]
        like = expected if expected is not None else got
        if like is None:
            return torch.zeros(()), torch.zeros(())
        zeros = torch.zeros_like(like)
        return (zeros if expected is None else expected), (zeros if got is None else got)

    def differs(self, expected: Tensor, got: Tensor) -> Tensor:
        """Where `got` differs from `expected`, by more than rounding."""
        if expected.shape != got.shape:
            return torch.ones(expected.shape, dtype=torch.bool)
        return self.measure(expected).differs(got)

    def measure(self, expected: Tensor) -> Measure:
        """What a gradient is measured by, in this trial."""
        relative, absolute = _EXACT if expected.dtype in _PRECISE else _ROUGH
        size = expected.abs().nan_to_num(0, 0, 0)
        driven = max((float(c.abs().max()) for c in self.cotangents if c.numel()), default=0.0)
        floor = absolute * float(size.max() if size.numel() else 0) + 1e-3 * absolute * driven
        return Measure(expected, torch.isfinite(expected), relative * size + floor)

    def agrees(self, expected: Tensor | None, got: Tensor | None) -> bool:
        """Whether two gradients are the same; None is as good as zeros."""
        if expected is None or got is None:
            known = expected if expected is not None else got
            return known is None or self.agrees(torch.zeros_like(known), known)
        return expected.shape == got.shape and not bool(self.differs(expected, got).any())


class Trials:
    """The trials of one Function, in order: the first is that of the examples themselves."""

    def __init__(self, target: Any, examples: Sequence[Any]) -> None:
        self.target = target
        self.program = program_of(target)
        leaves, self.spec = flatten(tuple(examples))
        names = argument_names(target.apply, examples)
        own = [(n, leaf) for n, leaf in zip(names, leaves, strict=True) if _is_tensor(leaf)]
        self.input_names = [name for name, _ in own]
        self.needs = _needs([tensor for _, tensor in own])
        self.places = [i for i, needed in enumerate(self.needs) if needed]
        self.used: tuple[int, ...] = ()  # the outputs, by leaf, that have a cotangent
        self.all: list[Trial] = []
        self.leaves = [_doubled(leaf) for leaf in leaves]
        if not self._add(self._own()):  # some Functions take single precision only
            self.leaves = list(leaves)
            self._add(self._own(), required=True)
        tensors = self._own()
        self._add([near(tensor, 1) for tensor in tensors])
        self._add([drawn(tensor, tensor.shape, 2) for tensor in tensors])

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
        return [leaf for leaf in self.leaves if _is_tensor(leaf)]

    def fill(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """The arguments, with these tensors in them."""
        rest = iter(tensors)
        leaves = [next(rest) if _is_tensor(leaf) else leaf for leaf in self.leaves]
        return tuple(unflatten(leaves, self.spec))

    def add_other_shapes(self, captured: Capture) -> None:
        """Add a trial with other sizes, if the forward takes such."""
        own = self.all[0].tensors
        for shapes in _other_shapes(captured, own):
            row = [drawn(t, shape, 3) for t, shape in zip(own, shapes, strict=True)]
            if captured.serves(row) and self._add(row):
                return

    # ---- runs ----

    def _add(self, tensors: Sequence[Tensor], *, required: bool = False) -> bool:
        """Run both on `tensors`; False when one of them cannot, unless that is required."""
        number = len(self.all)
        try:
            cotangents = self.cotangents(tensors, number)
            expected = self.derived(tensors, cotangents, number)
            got = self.written(tensors, cotangents, number)
        except Exception:
            if required:
                raise
            return False
        trial = Trial(number, tuple(tensors), tuple(cotangents), tuple(expected), tuple(got))
        if self.all and trial.misfits - self.all[0].misfits:
            return False  # as good as raising, for sizes that backward was not written for
        self.all.append(trial)
        return True

    def cotangents(self, tensors: Sequence[Tensor], number: int) -> list[Tensor]:
        """Cotangents for the outputs of a run: normal numbers, no two alike."""
        fitted = make_fitted(self.target, _zeros)
        _, outputs = self._forward(fitted, tensors, number)
        used = [i for i, out in enumerate(outputs) if _is_tensor(out) and out.requires_grad]
        self.used = self.used or tuple(used)
        return [normal(outputs[i], 100 * number + i) for i in used]

    def derived(
        self, tensors: Sequence[Tensor], cotangents: Sequence[Tensor], number: int
    ) -> list[Tensor | None]:
        """The gradients that autograd finds through the forward itself."""
        leaves, outputs = self._forward(self.program, tensors, number)
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
            return _zeros(position, gradient, shape)

        leaves, outputs = self._forward(make_fitted(self.target, fit), tensors, number)
        gradients = _pull(leaves, [outputs[i] for i in self.used], cotangents, number)
        return self._with_misfits(gradients, misfits)

    def kept(self) -> list[Tensor]:
        """The tensors that the forward of the examples keeps for backward."""
        found: list[Tensor] = []

        def note(ctx: Any) -> None:
            values = (*ctx.saved_tensors, *vars(ctx).values())
            found.extend(value.detach() for value in values if _is_tensor(value))

        trial = self.all[0]
        apply = make_fitted(self.target, _zeros, note)
        leaves, outputs = self._forward(apply, trial.tensors, trial.number)
        with suppress(RuntimeError):  # saved tensors that can be looked at once
            _pull(leaves, [outputs[i] for i in self.used], trial.cotangents, trial.number)
        return found

    def slope(self, trial: Trial, place: int, element: Sequence[int]) -> complex:
        """The derivative by finite differences: what the forward really does there."""
        steps = [1, 1j] if trial.tensors[self.places[place]].is_complex() else [1]
        return sum((step * self._difference(trial, place, element, step) for step in steps), 0j)

    def _difference(self, trial: Trial, place: int, element: Sequence[int], step: complex) -> float:
        ends = []
        position = self.places[place]
        tensor = trial.tensors[position]
        width = 1e-6 * max(1.0, float(tensor[tuple(element)].abs()))
        for sign in (1, -1):
            moved = tensor.clone()
            moved[tuple(element)] += sign * width * (step if tensor.is_complex() else 1)
            row = [*trial.tensors[:position], moved, *trial.tensors[position + 1 :]]
            _, outputs = self._forward(self.program, row, trial.number)
            pairs = zip([outputs[i] for i in self.used], trial.cotangents, strict=True)
            ends.append(sum(float((c.conj() * o.detach()).real.sum()) for o, c in pairs))
        return float(ends[0] - ends[1]) / (2 * width)

    def _forward(
        self, function: Callable[..., Any], tensors: Sequence[Tensor], number: int
    ) -> tuple[list[Tensor], list[Any]]:
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
            tensors = [leaf for leaf in flatten(argument)[0] if _is_tensor(leaf)]
            if _is_tensor(argument):
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


# ---- gradients of unfit shape ----


def make_fitted(
    target: Any, fit: Fit, note: Callable[[Any], None] | None = None
) -> Callable[..., Any]:
    """`target.apply`, with `fit` called for each gradient whose shape the engine would refuse.

    `note` is called with the context of each backward.
    """
    shapes: list[Any] = []
    key = "backward" if target.vjp is no_vjp else "vjp"
    backward = getattr(target, key)

    def fitting(ctx: Any, *cotangents: Any) -> Any:
        if note is not None:
            note(ctx)
        returned = backward(ctx, *cotangents)
        return _fitted(target, returned, partial(_fit_one, fit, shapes))

    fitting.__name__ = key
    space = {key: staticmethod(fitting), "__module__": target.__module__}
    twin = new_class(target.__name__, target, space)

    def apply(*args: Any) -> Any:
        shapes[:] = [arg.shape if _is_tensor(arg) else None for arg in args]
        return twin.apply(*args)

    return apply


def _fitted(target: Any, returned: Any, fit: Callable[[int, Any], Any]) -> Any:
    if isinstance(returned, Mapping):
        names = signature_of(target).names
        return {name: fit(names.index(name), g) for name, g in returned.items() if name in names}
    if isinstance(returned, (tuple, list)):
        return tuple(fit(position, gradient) for position, gradient in enumerate(returned))
    return fit(0, returned)


def _fit_one(fit: Fit, shapes: Sequence[Any], position: int, gradient: Any) -> Any:
    shape = shapes[position] if position < len(shapes) else None
    if shape is None or not _is_tensor(gradient) or fits(gradient.shape, shape):
        return gradient
    return fit(position, gradient, shape)


def fits(shape: Sequence[Any], target: Sequence[Any]) -> bool:
    """Whether the engine takes a gradient of this shape: one that sums down to `target`."""
    if len(shape) < len(target):
        return False
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return all(have == want or want == 1 for have, want in pairs)


def _zeros(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
    return gradient.new_zeros(tuple(shape))


# ---- inputs ----


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _needs(tensors: Sequence[Tensor]) -> list[bool]:
    """Which tensors need a gradient: those that require one, or, if none does, all that can."""
    if any(tensor.requires_grad for tensor in tensors):
        return [tensor.requires_grad for tensor in tensors]
    return [tensor.is_floating_point() or tensor.is_complex() for tensor in tensors]


def _doubled(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to(DOUBLE.get(leaf.dtype, leaf.dtype))


def near(tensor: Tensor, seed: int) -> Tensor:
    """`tensor` with each element moved by up to a tenth of itself: what was valid stays valid.

    A tensor of zeros says nothing about what is valid, and becomes one of normal numbers.
    """
    if not tensor.is_floating_point() and not tensor.is_complex():
        return tensor
    if not bool(tensor.any()):
        return normal(tensor, seed)
    noise = torch.rand(tensor.shape, generator=_generator(tensor, seed), device=tensor.device)
    return (tensor.detach() * (1 + 0.2 * (noise - 0.5))).to(tensor.dtype)


def drawn(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of some shape, its elements drawn from those of `tensor` and moved a little."""
    count = 1
    for size in shape:
        count *= size
    flat = tensor.detach().reshape(-1)
    flat = flat if flat.numel() else tensor.new_ones(1)
    generator = _generator(tensor, seed)
    picks = torch.randint(flat.numel(), (count,), generator=generator, device=tensor.device)
    return near(flat[picks].reshape(tuple(shape)), seed)


def normal(like: Tensor, seed: int) -> Tensor:
    """Normal numbers in the shape of `like`."""
    generator = _generator(like, seed)
    return torch.randn(like.shape, dtype=like.dtype, generator=generator, device=like.device)


def _generator(tensor: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(tensor.device).manual_seed(seed)


def _other_shapes(captured: Capture, own: Sequence[Tensor]) -> Iterator[list[tuple[int, ...]]]:
    """Rows of other shapes that the graph may serve."""
    values = [node.meta["val"].shape for node in captured.joint.inputs]
    arguments, around = values[: len(own)], values[len(own) :]
    ways: list[Callable[[int], int]] = [lambda size: size + 1, lambda size: 2 * size]
    for grow in ways:
        shapes = resized(arguments, around, grow)
        if any(tuple(t.shape) != shape for t, shape in zip(own, shapes, strict=True)):
            yield shapes
