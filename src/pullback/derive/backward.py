"""`derive`: a function of tensors becomes a Function with a derived backward.

The derivatives are PyTorch's own: the program is captured with the backward that the engine runs for
it, and split into a forward that saves as little as the policy says and a backward that reads it.
Hand-written Functions inside the program keep their backwards as written.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.joint import Capture
from pullback.capture.trees import flatten, unflatten
from pullback.derive.recipe import Recipe
from pullback.derive.recipes import Recipes
from pullback.derive.second import pull_again
from pullback.errors import CaptureError
from pullback.function import dispatch
from pullback.function.function import Function
from pullback.function.slots import new_class, version_of
from pullback.graph.cut import require_policy


def derive(program: Callable[..., Any], *examples: Any, save: str | int = "auto") -> Any:
    """A `Function` that computes `program`, with a derived backward.

    Arguments:
        program: takes tensors (also inside lists and tuples) and plain values; returns a tensor,
            or a tuple of tensors and plain values. It leaves its inputs as they are.
        examples: arguments to capture it with; calls of other kinds are captured when they come.
        save: what forward keeps for backward: "auto", "inputs", "everything", or how many bytes.

    Returns a subclass of `Function`: call its `apply`. Law: `apply` gives what `program` gives, and
    every derivative that autograd gives through `program`.
    """
    require_policy(save)
    recipes = Recipes(program, save)
    if examples:
        recipes.find(examples)
    name = "".join(part.capitalize() or "_" for part in _name(program).split("_"))
    space: dict[str, Any] = {
        "forward": staticmethod(_make_forward(recipes)),
        "backward": staticmethod(_make_backward(recipes)),
        "apply": classmethod(_make_apply(recipes)),
        "traverse_lists": True,
        "__doc__": inspect.getdoc(program),
        "__module__": getattr(program, "__module__", __name__),
    }
    return new_class(name, Function, space)


def _name(program: Callable[..., Any]) -> str:
    name = getattr(program, "__name__", type(program).__name__)
    return name if name.isidentifier() else "derived"


# ---- calls ----


def _make_apply(recipes: Recipes) -> Any:
    signature = _signature(recipes.program)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs and signature is not None:
            bound = signature.bind(*args, **kwargs)
            args = bound.args
        if dispatch.transforms_active():
            return recipes.program(*args)  # plain ops: every transform knows them
        recipe, _ = recipes.find(args)
        closures = [one.tensor for one in recipe.captured.inputs if one.kind == "closure"]
        output = dispatch.apply.__get__(None, cls)(_Call(recipe), *args, *closures)
        return output

    return apply


class _Call:
    """What goes with the arguments of one call: the recipe that fits them."""

    __slots__ = ("recipe",)

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe


def _signature(program: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(program)
    except (TypeError, ValueError):
        return None


def _make_forward(recipes: Recipes) -> Callable[..., Any]:
    def forward(ctx: Any, call: _Call, *args: Any) -> Any:
        recipe = call.recipe
        captured = recipe.captured
        own = args[: len(args) - sum(one.kind == "closure" for one in captured.inputs)]
        _require_simple(captured)
        tensors = [leaf for leaf in flatten(own)[0] if isinstance(leaf, Tensor)]
        outputs, saved, numbers = recipe.run(tensors)
        row = captured.row(tensors)
        ctx.save_for_backward(*saved)
        ctx.recipe, ctx.numbers, ctx.inputs = recipe, numbers, _Inputs(row, saved)
        silent = [
            outputs[o.index]
            for o in captured.outputs
            if o.index is not None and o.kind == "tensor" and not o.differentiable
        ]
        ctx.mark_non_differentiable(*silent)
        return captured.give(outputs)

    return forward


def _require_simple(captured: Capture) -> None:
    """Raise unless the program returns tensors and changes no input."""
    if captured.mutated:
        names = ", ".join(captured.inputs[place].name for place, _ in captured.mutated)
        raise CaptureError(
            f"`{captured.name}` must leave its inputs as they are to be derived",
            got=f"`{names}` changed in place",
            fix=f"work on a clone of `{names}`, and return it",
        )


class _Inputs:
    """The inputs of one call, held by what was saved of them, otherwise by weak references."""

    __slots__ = ("places", "refs", "versions")

    def __init__(self, row: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
        at = {id(tensor): place for place, tensor in enumerate(saved)}
        self.places = [at.get(id(tensor)) for tensor in row]
        self.refs = [weakref.ref(tensor) for tensor in row]
        self.versions = [version_of(tensor) for tensor in row]

    def find(self, saved: Sequence[Any]) -> list[Tensor] | None:
        """The inputs as forward saw them, or None when one is gone or changed."""
        row = []
        for place, ref, version in zip(self.places, self.refs, self.versions, strict=True):
            tensor = ref() if place is None else saved[place]
            if tensor is None or (place is None and version_of(tensor) != version):
                return None
            row.append(tensor)
        return row


# ---- backward ----


def _make_backward(recipes: Recipes) -> Callable[..., Any]:
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        recipe, saved = ctx.recipe, ctx.saved_tensors
        captured = recipe.captured
        wanted = _of_differentiable(captured, cotangents)
        row = ctx.inputs.find(saved) if torch.is_grad_enabled() else None
        if row is not None:
            closures = [i for i, one in enumerate(captured.inputs) if one.kind != "argument"]
            program = _program(recipes.program, captured)
            gradients = pull_again(program, row, wanted, closures=closures)
        else:
            gradients = recipe.pull(saved, ctx.numbers, wanted)
        return (None, *_as_arguments(captured, gradients))

    return backward


def _of_differentiable(captured: Capture, cotangents: Sequence[Any]) -> list[Any]:
    returned = [output for output in captured.outputs if output.returned]
    return [c for output, c in zip(returned, cotangents, strict=True) if output.differentiable]


def _program(
    program: Callable[..., Any], captured: Capture
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The program on the row of a capture's inputs, giving its differentiable outputs."""
    own = [i for i, one in enumerate(captured.inputs) if one.kind == "argument"]

    def run(row: Sequence[Tensor]) -> list[Tensor]:
        leaves = flatten(program(*captured.fill([row[i] for i in own])))[0]
        returned = [output for output in captured.outputs if output.returned]
        return [leaf for leaf, o in zip(leaves, returned, strict=True) if o.differentiable]

    return run


def _as_arguments(captured: Capture, gradients: Sequence[Any]) -> tuple[Any, ...]:
    """The gradients in the form of the arguments, then those of the closures."""
    rest = iter(gradients)
    leaves = [next(rest) if is_input(leaf) else None for leaf in captured.leaves]
    kinds = [one.kind for one in captured.inputs]
    closures = [g for g, kind in zip(gradients, kinds, strict=True) if kind == "closure"]
    return (*unflatten(leaves, captured.in_spec), *closures)


def is_input(leaf: Any) -> bool:
    """Whether a leaf of a capture's arguments stands for a tensor."""
    return type(leaf).__name__ == "Input"
