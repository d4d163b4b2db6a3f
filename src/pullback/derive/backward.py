"""`derive`: a function of tensors becomes a Function with a derived backward.

The derivatives are PyTorch's own: the program is captured with the backward that the engine runs
for it, and split into a forward that saves as little as the policy says and a backward that reads
it. Hand-written Functions inside the program keep their backwards as written.

- Forward and first backward run the printed text of these graphs.
- Differentiated again, backward runs the program once more with recording on (`second.py`), so that
  every further derivative is right; where an input is gone, the text is differentiated instead, and
  an intermediate without history is an error (`DoubleBackwardError`).
- Under `torch.func` and in forward mode the program itself runs: its ops are plain, and every
  transform knows them.
- `torch.compile` takes a derived Function as one opaque node.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.capture.joint import Capture, Input
from pullback.capture.trees import flatten, tensors_in, unflatten
from pullback.derive.recipes import Recipes
from pullback.derive.second import pull_again
from pullback.derive.source import module_source
from pullback.errors import CaptureError
from pullback.function import dispatch
from pullback.function.function import Function
from pullback.function.slots import has_tangent, new_class, transforms_active, version_of
from pullback.graph.cost import is_random
from pullback.graph.cut import require_policy
from pullback.graph.parts import calls


def derive(program: Callable[..., Any], *examples: Any, save: str | int = "auto") -> Any:
    """A `Function` that computes `program`, with a derived backward.

    Arguments:
        program: takes tensors (also inside lists and tuples) and plain values; returns a tensor,
            or a tuple of tensors and plain values. It leaves its inputs as they are.
        examples: arguments to capture it with; calls of other kinds are captured when they come.
        save: what forward keeps for backward: "auto", "inputs", "everything", or how many bytes.

    Returns a subclass of `Function` with `source()`, the text of a module that needs only torch.
    Law: `apply` gives what `program` gives, and every derivative that autograd gives through it.

    >>> import torch
    >>> D = derive(lambda x: x.sin() ** 2, torch.zeros(3, requires_grad=True))
    >>> x = torch.tensor([0.5], requires_grad=True)
    >>> D.apply(x).backward()
    >>> bool(torch.allclose(x.grad, (2 * x).sin()))
    True
    """
    require_policy(save)
    if not examples:
        raise CaptureError(
            f"`{_name(program)}` must be derived with examples of its arguments",
            expected="derive(program, *examples)",
            got="no example",
            fix="pass tensors like those it will be called with, and its other arguments",
        )
    derived = _Derived(program, examples, save)
    name = "".join(part.capitalize() or "_" for part in _name(program).split("_"))
    nested = any(isinstance(arg, (list, tuple)) and tensors_in(arg) for arg in examples)
    space: dict[str, Any] = {
        "forward": staticmethod(derived.make_forward()),
        "backward": staticmethod(derived.make_backward()),
        "apply": classmethod(derived.make_apply()),
        "source": staticmethod(lambda: derived.source(name)),
        "program": staticmethod(program),
        "traverse_lists": nested,
        # The text fits the kind of one call: a compiler that traced it would serve others wrongly.
        "is_traceable": False,
        "__doc__": inspect.getdoc(program),
        "__module__": getattr(program, "__module__", __name__),
    }
    return new_class(name, Function, space)


def _name(program: Callable[..., Any]) -> str:
    name = getattr(program, "__name__", type(program).__name__)
    return name if name.isidentifier() else "derived"


class _Derived:
    """What a derived class knows: its program, its recipes, and the general one for `source`."""

    def __init__(self, program: Callable[..., Any], examples: Sequence[Any], save: str | int):
        self.program = program
        self.examples = tuple(examples)
        self.save = save
        self.recipes = Recipes(program, save)
        self.general = self.recipes.general(examples)
        _require_simple(self.general.captured)
        _require_flat(self.general.captured)
        self.closures = [
            one.tensor for one in self.general.captured.inputs if one.kind == "closure"
        ]

    def source(self, name: str) -> str:
        """The module of the Function, as text."""
        return module_source(self.general.captured, self.save, name, self.program)

    # ---- calls ----

    def make_apply(self) -> Any:
        """`apply`: the user's arguments, and behind them the closures, which are inputs too."""
        signature = _signature(self.program)

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs and signature is not None:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                args = bound.args
                _require_positional(self.program, kwargs, bound.kwargs)
            if transforms_active() or has_tangent(args):
                return self.program(*args)
            return dispatch.apply.__get__(None, cls)(*args, *self.closures)

        return apply

    def make_forward(self) -> Any:
        """`forward`: the text, and what it saves."""
        closures = len(self.closures)

        def forward(ctx: Any, *args: Any) -> Any:
            own = args[: len(args) - closures]
            recipe, tensors = self.recipes.find(own)
            captured = recipe.captured
            self.require_closures(captured)
            outputs, saved, numbers = recipe.run(tensors)
            ctx.save_for_backward(*saved)
            ctx.recipe, ctx.numbers = recipe, numbers
            ctx.inputs = _Inputs(captured.row(tensors), saved)
            ctx.mark_non_differentiable(*_silent(captured, outputs))
            return captured.give(outputs)

        return forward

    def require_closures(self, captured: Capture) -> None:
        """Raise unless a capture reaches for the same tensors from around as the examples did."""
        held = [one.tensor for one in captured.inputs if one.kind == "closure"]
        if len(held) != len(self.closures) or any(
            a is not b for a, b in zip(held, self.closures, strict=True)
        ):
            raise CaptureError(
                f"`{captured.name}` must use the same tensors from around it in every call",
                expected=f"{len(self.closures)} that require grad, as with the examples",
                got=f"{len(held)}, or others",
                fix="pass them as arguments",
            )

    def make_backward(self) -> Any:
        """`backward`: the text, or the program again where it is to be differentiated."""

        def backward(ctx: Any, *cotangents: Any) -> Any:
            recipe, saved = ctx.recipe, ctx.saved_tensors
            captured = recipe.captured
            wanted = _of_differentiable(captured, cotangents)
            again = torch.is_grad_enabled() and not _draws(captured)
            row = ctx.inputs.find(saved) if again else None
            if row is None:
                gradients = recipe.pull(saved, ctx.numbers, wanted)
            else:
                closures = [i for i, one in enumerate(captured.inputs) if one.kind != "argument"]
                program = _on_row(self.program, captured)
                gradients = pull_again(program, row, wanted, closures=closures)
            return _as_arguments(captured, gradients)

        return backward


def _signature(program: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(program)
    except (TypeError, ValueError):
        return None


def _require_positional(
    program: Callable[..., Any], given: dict[str, Any], keyword_only: dict[str, Any]
) -> None:
    """Raise if a keyword-only argument was given: the inputs of a Function are positional."""
    names = [name for name in given if name in keyword_only]
    if names:
        raise CaptureError(
            f"a derived `{_name(program)}` must be called with its positional parameters",
            got=f"the keyword-only `{names[0]}`",
            fix=f"derive a function in which `{names[0]}` is fixed, or make it positional",
        )


def _require_simple(captured: Capture) -> None:
    """Raise unless the program returns tensors and changes no input."""
    if captured.mutated:
        names = ", ".join(captured.inputs[place].name for place, _ in captured.mutated)
        raise CaptureError(
            f"`{captured.name}` must leave its inputs as they are to be derived",
            got=f"`{names}` changed in place",
            fix=f"work on a clone of `{names}`, and return it",
        )


def _require_flat(captured: Capture) -> None:
    """Raise unless the program returns a tensor, or a tuple or list of tensors and values."""
    spec = captured.out_spec
    flat = spec.is_leaf() or (
        spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children())
    )
    if not flat:
        raise CaptureError(
            f"`{captured.name}` must return a tensor or a tuple of tensors to be derived",
            got=f"a nested {spec.type.__name__}",
            fix="return the tensors in one tuple, and nest them outside",
        )


def _draws(captured: Capture) -> bool:
    """Whether the program draws random numbers: run again, it would draw others."""
    return any(is_random(node) for node in calls(captured.joint.graph))


def _silent(captured: Capture, outputs: Sequence[Any]) -> list[Tensor]:
    """The outputs that carry no gradient."""
    return [
        outputs[o.index]
        for o in captured.outputs
        if o.index is not None and o.kind == "tensor" and not o.differentiable
    ]


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
            tensor = ref() if place is None or not saved else saved[place]
            if tensor is None or (place is None and version_of(tensor) != version):
                return None
            row.append(tensor)
        return row


def _of_differentiable(captured: Capture, cotangents: Sequence[Any]) -> list[Any]:
    returned = [output for output in captured.outputs if output.returned]
    return [c for output, c in zip(returned, cotangents, strict=True) if output.differentiable]


def _on_row(
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
    leaves = [next(rest) if isinstance(leaf, Input) else None for leaf in captured.leaves]
    kinds = [one.kind for one in captured.inputs]
    closures = [g for g, kind in zip(gradients, kinds, strict=True) if kind == "closure"]
    return (*unflatten(leaves, captured.in_spec), *closures)
