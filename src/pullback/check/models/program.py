"""A module as a function of its parameters and inputs: called on other values, never changed."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pullback.function.isolation import seeded
from pullback.judge.example import Example, can_differ, cast_tensor, mapped, tensors_in
from pullback.judge.run import cotangents_of

Gradients: TypeAlias = "dict[str, Tensor | None]"


@dataclass(frozen=True)
class ModelProgram:
    """A module at one example; `wanted` are the inputs whose gradients the user asks for."""

    module: nn.Module
    example: Example
    names: tuple[str, ...]
    wanted: frozenset[int] = frozenset()

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are trained, by name; one that stands in two places once."""
        return {n: p.detach() for n, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The inputs that can have a gradient, by name."""
        return {self.names[i]: self.example.args[i] for i in self.example.differentiable}

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of the inputs whose gradients the user asks for."""
        return tuple(self.names[i] for i in sorted(self.wanted))

    @cached_property
    def values(self) -> dict[str, Tensor]:
        """Parameters and inputs by name; an input with the name of a parameter has another key."""
        taken = self.parameters
        return {**taken, **{self.input_key(name): x for name, x in self.inputs.items()}}

    def input_key(self, name: str) -> str:
        """The name of an input among `values`."""
        return f"input {name}" if name in self.parameters else name

    def __call__(self, values: Mapping[str, Tensor], *, wide: bool = False) -> tuple[Tensor, ...]:
        """The outputs with these parameters and inputs; the same random numbers each time."""
        dtype = torch.float64
        state = {n: p.detach() for n, p in self.module.named_parameters()}
        state |= {n: b.detach().clone() for n, b in self.module.named_buffers()}
        seen: dict[int, Tensor] = {}
        args = [mapped(a, lambda t: seen.setdefault(id(t), t.detach())) for a in self.example.args]
        if wide:
            state = {name: cast_tensor(tensor, dtype) for name, tensor in state.items()}
            args = [mapped(arg, lambda t: cast_tensor(t, dtype)) for arg in args]
        state |= {name: values[name] for name in self.parameters}
        for position in self.example.differentiable:
            args[position] = values[self.input_key(self.names[position])]
        with warnings.catch_warnings(), seeded(self.example.seed):
            warnings.simplefilter("ignore")
            result = functional_call(self.module, state, tuple(args))
        return tuple(tensors_in(result))

    def leaves(self, *, wide: bool = False) -> dict[str, Tensor]:
        """New parameters and inputs that require grad."""
        made = self.values
        if wide:
            made = {name: cast_tensor(tensor, torch.float64) for name, tensor in made.items()}
        return {name: tensor.detach().clone().requires_grad_() for name, tensor in made.items()}

    @cached_property
    def live(self) -> tuple[int, ...]:
        """The positions of the outputs through which a gradient flows."""
        outputs = self(self.leaves())
        return tuple(i for i, t in enumerate(outputs) if can_differ(t) and t.requires_grad)

    def weighed(self, outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs with a gradient, and the cotangents that they are pulled with."""
        cotangents = cotangents_of(outputs, 0)
        pairs = [(outputs[i], cotangents[i]) for i in self.live]
        return [o for o, _ in pairs], [c for _, c in pairs if c is not None]

    def pulled(self, outputs: Sequence[Tensor], leaves: dict[str, Tensor]) -> Gradients:
        """The gradient of each leaf by name: None where there is none."""
        live, cotangents = self.weighed(outputs)
        if not any(output.requires_grad for output in live):
            return dict.fromkeys(leaves)
        used = [(o, c) for o, c in zip(live, cotangents, strict=True) if o.requires_grad]
        found = torch.autograd.grad(
            [o for o, _ in used],
            list(leaves.values()),
            [c for _, c in used],
            allow_unused=True,
        )
        return dict(zip(leaves, found, strict=True))
