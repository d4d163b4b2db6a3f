"""Inputs that a candidate cannot foresee: sizes, values and layouts, drawn for each run.

A trial says how arguments are made from an example: it is made by whoever knows the seed, and sent
to the candidate's process just before the call, so that what comes next is never there to be read.
The same trial gives the same arguments in every process of one machine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import is_index
from pullback.check.inputs.layouts import dense, is_expanded, is_lazy, layouts_of
from pullback.check.inputs.relations import broken_by, relations_of, restored
from pullback.check.inputs.shapes import fits, resized, symbols_of
from pullback.check.inputs.values import resampled
from pullback.judge.example import Example, can_differ, mapped, tensors_in

GIVEN, LIKE, ZEROS, LARGE, SMALL = "as given", "like those given", "zeros", "large", "small"
FACTORS = {LARGE: 8.0, SMALL: 1 / 64}

ODD = (1, 2, 3, 5, 7, 9, 17, 31, 33, 63, 65, 100, 127, 129, 255, 257, 1000, 1025)
MANY = 1 << 16  # numbers of a tensor from which on they are drawn where they are needed
ELEMENTS = 1 << 22  # of all arguments together, at other sizes, unless there are more as given
LONG = 512  # a size from which on another one is a small one, as a rule


@dataclass(frozen=True, slots=True)
class Trial:
    """How the arguments of one call are made; `draw` is where their random numbers come from."""

    draw: int
    values: str = LIKE
    sizes: dict[int, int] = field(default_factory=dict)
    layout: int = 0  # the number of a layout of the first tensor; 0 is the ordinary one
    example: int = 0

    @property
    def is_at_given_sizes(self) -> bool:
        """Whether the sizes are those of the example."""
        return not self.sizes

    @property
    def is_ordinary(self) -> bool:
        """Whether only the numbers differ from those of the example."""
        return self.values == LIKE and not self.sizes and not self.layout

    def label(self) -> str:
        """What was done to the example, in words."""
        words = [f"values {self.values}"]
        words += [f"size {old} as {new}" for old, new in self.sizes.items()]
        words += ["another layout"] if self.layout else []
        return ", ".join(words)


def trials_of(
    symbols: Sequence[Sequence[int]], rng: random.Random, *, other_sizes: int = 4
) -> Iterator[Trial]:
    """Trials for examples whose distinct sizes are `symbols`: what is asked of every candidate."""
    for number, sizes in enumerate(symbols):
        # New numbers come first: what is kept from the first call is then wrong for those given.
        for values in (LIKE, GIVEN, LIKE, LARGE, SMALL, ZEROS):
            yield Trial(_draw(rng), values, example=number)
        for _ in range(other_sizes if sizes else 0):
            yield Trial(_draw(rng), LIKE, _other(sizes, rng), example=number)
        for _ in range(2):
            yield Trial(_draw(rng), LIKE, layout=rng.randrange(1, 1 << 16), example=number)
        # All at once: where sizes and layouts were asked for apart, some rely on that.
        if sizes:
            layout = rng.randrange(1, 1 << 16)
            yield Trial(_draw(rng), LIKE, _other(sizes, rng), layout, number)


def ordinary(rng: random.Random, example: int = 0) -> Trial:
    """A trial with new numbers and nothing else."""
    return Trial(_draw(rng), LIKE, example=example)


def _draw(rng: random.Random) -> int:
    return rng.getrandbits(62)


def _other(sizes: Sequence[int], rng: random.Random) -> dict[int, int]:
    """Some of the sizes as others: next to the old one, or any of those that kernels get wrong."""
    if any(size > LONG for size in sizes) and rng.random() < 0.25:
        size = rng.choice([size for size in sizes if size > LONG])
        return {size: size + rng.choice((1, -1))}
    chosen = rng.sample(list(sizes), rng.randint(1, len(sizes)))
    chosen += [size for size in sizes if size > LONG and size not in chosen]
    near = {size: [size + 1, max(size - 1, 1), 2 * size + 1] for size in chosen if size <= LONG}
    return {size: rng.choice((*ODD, *near.get(size, ()))) for size in chosen}


# ---- arguments ----


class TrialMaker:
    """Makes the arguments of trials from examples, and knows what holds between them."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = tuple(examples)
        self._relations = tuple(relations_of([example]) for example in examples)

    def symbols(self) -> list[list[int]]:
        """The distinct sizes of each example."""
        return [list(symbols_of(example)) for example in self.examples]

    def made(self, trial: Trial) -> Example | None:
        """The example of a trial; None where it would break what the given one shows."""
        example = self.examples[trial.example]
        relations = self._relations[trial.example]
        if trial.values == GIVEN:
            return example
        is_free = not any(relation.positions for relation in relations)
        given = tensors_in(example.args)
        if trial.sizes:
            if not fits(example, trial.sizes, max(ELEMENTS, example.size + example.size // 8)):
                return None
            example = example.map(_shape_alone, "") if is_free else example
            example = resized(example, trial.sizes, "")
        example = _redrawn(example, given if is_free else tensors_in(example.args), trial, is_free)
        example = restored(example, relations)
        if broken_by(example, relations) is not None:
            return None
        if trial.layout:
            example = _laid_out(example, trial.layout)
        return replace(example, label=trial.label())


def _shape_alone(tensor: Tensor) -> Tensor:
    """A tensor of the same shape that is quickly made, where its numbers are drawn again anyway."""
    is_large = can_differ(tensor) and tensor.numel() >= MANY and tensor.layout == torch.strided
    return tensor.flatten()[:1].expand(tensor.shape) if is_large else tensor


def _redrawn(example: Example, given: Sequence[Tensor], trial: Trial, is_free: bool) -> Example:
    """The example with new numbers in every tensor, like those given."""
    numbers = iter(range(len(given)))

    def renew(tensor: Tensor) -> Tensor:
        number = next(numbers)
        draw = (trial.draw + 7919 * number) % (1 << 62)
        if trial.values == ZEROS and can_differ(tensor):
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if is_index(tensor) or tensor.dtype == torch.bool:
            return resampled(tensor, tensor.shape, draw) if is_free else tensor
        like = given[number]
        made = _like(like, tensor.shape, draw) if is_free else resampled(like, tensor.shape, draw)
        return made * FACTORS[trial.values] if trial.values in FACTORS else made

    return replace(example, args=tuple(mapped(arg, renew) for arg in example.args))


def _like(tensor: Tensor, shape: torch.Size, draw: int) -> Tensor:
    """Numbers like those of a tensor, in a shape; many of them are drawn on its own device."""
    is_plain = tensor.is_floating_point() and tensor.dtype.itemsize > 1
    if can_differ(tensor) and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
        return _around(tensor, shape, draw)
    if tensor.numel() < MANY or not is_plain or tensor.layout != torch.strided:
        return resampled(tensor, shape, draw)
    generator = torch.Generator(tensor.device).manual_seed(draw)
    options: dict[str, Any] = {"generator": generator, "device": tensor.device}
    low, high = (float(end) for end in torch.aminmax(tensor))
    if low >= 0:
        made = torch.rand(shape, **options) * (high - low) + low
    else:
        mean, spread = float(tensor.mean(dtype=torch.float64)), float(tensor.double().std())
        made = torch.randn(shape, **options) * spread + mean
    return made.to(tensor.dtype)


def _around(tensor: Tensor, shape: torch.Size, draw: int) -> Tensor:
    """Numbers near the one that all entries of a tensor are: weights of ones may be ignored."""
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(draw))
    first = tensor.flatten()[0]
    step = 0.5 * max(float(first.abs()), 1.0)
    return (first + step * noise.to(tensor.device)).to(tensor.dtype)


def _laid_out(example: Example, number: int) -> Example:
    """The example with one of its tensors in another layout, of those that keep the values."""
    places = [i for i in example.tensors if example.args[i].dim()]
    if not places:
        return example
    place = places[number % len(places)]
    plain = dense(example.args[place])
    kept = [made for label, made in layouts_of(plain) if not is_expanded(label) | is_lazy(label)]
    if not kept:
        return example
    return example.put(place, kept[(number // 7) % len(kept)], example.label)
