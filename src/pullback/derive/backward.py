"""`derive`: a function of tensors becomes a Function with a derived backward.

The derivatives are PyTorch's own: the program is captured with the backward that the engine runs
for it, and split into a forward that saves as little as the policy says and a backward that reads
it. Hand-written Functions inside the program keep their backwards as written.

- Forward and first backward run the printed text of these graphs.
- Differentiated again, backward runs the program once more with recording on (`second.py`), so that
  every further derivative is right; where an input is gone, the text is differentiated instead, and
  an intermediate without history is an error (`DoubleBackwardError`).
- Under `torch.func` and in forward mode the program itself runs: its ops are plain, and every
  transform knows them. Where it holds a Function that the transform does not know, it runs as one
  that every transform knows (`lifted.py`).
- Inside another capture the program itself runs, as one unit.
- `torch.compile` traces the program itself, too (`traced.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.fake import is_odd
from pullback.capture.joint import Capture
from pullback.capture.modes import autocast_off
from pullback.capture.names import class_name, program_name
from pullback.capture.patch import announce
from pullback.capture.trees import tensor_leaves
from pullback.derive.call import captured_gradients
from pullback.derive.call_table import CallEntry, CallTable, signature_if_known
from pullback.derive.lifted import is_kept_out, run_lifted
from pullback.derive.recipe import DerivedCall, Inputs, Recipe, called_with
from pullback.derive.recipes import Recipes
from pullback.derive.traced import traceable
from pullback.derive.trade import trade_of
from pullback.errors import CaptureError
from pullback.function import dispatch
from pullback.function.function import Function
from pullback.function.isolation import TorchState
from pullback.function.plain import MARKER, forward_of, is_derived
from pullback.function.slots import (
    has_tangent,
    in_forward_mode,
    new_class,
    transforms_active,
)
from pullback.graph.cut import TradePoint, require_policy
from pullback.judge.tensor_specs import tensor_spec_of, tensor_specs_of


def derive_function(
    program: Callable[..., Any],
    *examples: Any,
    save: str | int = "auto",
    name: str | None = None,
) -> Any:
    """As `pullback.derive`, which says what it does."""
    return make_derived(program, examples, save, name=name)


def make_derived(
    program: Callable[..., Any],
    examples: Sequence[Any],
    save: str | int = "auto",
    *,
    name: str | None = None,
    is_strict: bool = False,
    keeps_inputs: bool = False,
    opaque: bool = False,
) -> Any:
    """As `derive`, with more to choose.

    Arguments:
        is_strict: whether a program that reads what can change unseen is refused.
        keeps_inputs: whether the inputs are saved even where no gradient needs them, so that the
            program can always be run again: a second derivative is then never out of reach.
        opaque: whether Functions that cannot be traced run as they are, inside the node.
    """
    require_policy(save)
    if isinstance(program, type) and issubclass(program, TorchFunction):
        made: Any = program
        program = made.program if is_derived(made) else forward_of(made)
    if not examples:
        raise CaptureError(
            f"`{program_name(program)}` must be derived with examples of its arguments",
            expected="derive(program, *examples)",
            got="no example",
            fix="pass tensors like those it will be called with, and its other arguments",
        )
    called = class_name(program, name)
    recipes = Recipes(program, save, is_strict=is_strict, opaque=opaque)
    derived = DerivedRecord(program, examples, recipes, keeps_inputs=keeps_inputs)
    space: dict[str, Any] = {
        "forward": staticmethod(derived.make_forward()),
        "backward": staticmethod(derived.make_backward()),
        "source": staticmethod(lambda: derived.source(called)),
        "frontier": staticmethod(derived.frontier),
        "explain": staticmethod(derived.explain),
        "program": staticmethod(program),
        MARKER: derived,
        # The text fits the kind of one call: compiled autograd would serve others wrongly by it.
        "is_traceable": False,
        "__doc__": inspect.getdoc(program),
        "__module__": getattr(program, "__module__", __name__),
    }
    cls = new_class(called, Function, space)
    table = CallTable(recipes.environment, derived.make_entry(cls), partial(derived.call, cls))
    recipes.when_forgotten(table.forget)
    return traceable(cls, table.make_call())


class DerivedRecord:
    """What a derived class knows: its program, its recipes, and the general one for `source`."""

    def __init__(
        self,
        program: Callable[..., Any],
        examples: Sequence[Any],
        recipes: Recipes,
        *,
        keeps_inputs: bool,
    ) -> None:
        self.program = program
        self.signature = signature_if_known(program)
        self.recipes = recipes
        self.keeps_inputs = keeps_inputs
        self.specs = tensor_specs_of(examples)
        self.general = recipes.general(examples)

    def source(self, name: str) -> str:
        """The module of the Function, as text."""
        from pullback.derive.source import module_source  # heavy, and no call needs it

        captured = self.general.captured
        if captured.opaque:
            raise CaptureError(
                f"`{name}` must be made of what can be traced to be written as text",
                got=f"`{captured.opaque[0]}`, which runs as it is",
            )
        held = [tensor_spec_of(one.tensor) for one in captured.inputs if one.tensor is not None]
        specs = [*self.specs, *held]
        return module_source(captured, self.recipes.save, name, self.program, specs)

    def frontier(self, *args: Any) -> tuple[TradePoint, ...]:
        """The best trades of memory against work for a call with `args`: see `derive.trade`."""
        return trade_of(self.recipes.fresh(args).captured, tensor_leaves(args))

    def explain(self) -> str:
        """What it is, in a line."""
        count = len(self.general.captured.units)
        return f"derived: one node of {count} units, save={self.recipes.save!r}"

    # ---- calls ----

    def make_entry(self, cls: Any) -> Callable[[tuple[Any, ...]], CallEntry]:
        """What makes the entries of the table of calls: the node of `cls`, with one recipe."""
        node, general = dispatch.apply.__get__(None, cls), partial(self.call, cls)

        def make(args: tuple[Any, ...]) -> CallEntry:
            if not torch.is_grad_enabled():
                return CallEntry(self.program, [0])
            if any(map(is_odd, tensor_leaves(args))):
                return CallEntry(general, [0])
            recipe, _ = self.recipes.find(args)
            # Where tensors begin, and whether they are leaves, the table does not look at.
            if recipe.captured.sees_offsets or isinstance(self.recipes.save, int):
                return CallEntry(general, [0])
            run = partial(node, recipe)
            return CallEntry(called_with(run, recipe.captured, args, recipe.closures, general), [0])

        return make

    def call(self, cls: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Any call, without the table: the tensors are inputs, and behind them those from outside.

        One that is watched is announced.
        """
        placed, keywords = placed_call(self.signature, args, kwargs)
        tensors = tensor_leaves(placed)
        if transforms_active() or in_forward_mode():
            closures = [one.tensor for one in self.general.captured.closures]
            tangents = has_tangent([*tensors, *closures])
            return self.transformed(placed, keywords, tangents=tangents)
        program = self.recipes.program_with(keywords, len(placed))
        if not torch.is_grad_enabled():
            return program(*placed)
        if any(map(is_odd, tensors)):
            return announce(cls, program, placed, {})

        def node(*args: Any, **kwargs: Any) -> Any:
            recipe, tensors = self.recipes.find(*placed_call(self.signature, args, kwargs))
            row = recipe.captured.linked(tensors)
            outputs = dispatch.apply.__get__(None, cls)(recipe, *row, *recipe.closures)
            is_single = recipe.captured.joint.output_count == 1
            return recipe.captured.give((outputs,) if is_single else outputs)

        return announce(cls, node, args, kwargs)

    def transformed(self, args: Sequence[Any], keywords: tuple[str, ...], *, tangents: bool) -> Any:
        """The call under transforms of `torch.func`, or with tangents."""
        program = self.recipes.program_with(keywords, len(args))
        if not is_kept_out(self.general.captured.functions, tangents=tangents):
            return program(*args)
        closures = [one.tensor for one in self.general.captured.closures if one.needs]
        return run_lifted(program, args, [tensor for tensor in closures if tensor is not None])

    def make_forward(self) -> Any:
        """`forward`: the text, and what it saves."""

        def forward(ctx: Any, recipe: Recipe, *row: Any) -> Any:
            inputs = recipe.captured.row(row[: recipe.argument_count])
            draws = TorchState() if recipe.is_random else None
            with autocast_off() if recipe.autocast else nullcontext():
                outputs, saved, numbers = recipe.run_row(inputs)
            for place in recipe.silent:
                outputs[place] = _apart(outputs, place, recipe.live)
            if self._needs_inputs(recipe):
                saved += [x for x in inputs if not any(x is one for one in saved)]
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*saved)
            kinds = [(outputs[i].shape, outputs[i].dtype, outputs[i].device) for i in recipe.live]
            found = Inputs.of(inputs, saved)
            ctx.call = DerivedCall(recipe, numbers, found, lambda: kinds, recipe.autocast, draws)
            if recipe.silent:
                ctx.mark_non_differentiable(*[outputs[place] for place in recipe.silent])
            return outputs[0] if len(outputs) == 1 else tuple(outputs)

        return forward

    def _needs_inputs(self, recipe: Recipe) -> bool:
        """Whether backward may have to run the program again, with inputs that are no longer alive.

        A second derivative does where an intermediate is saved, or something is detached.
        "everything" has room for them.
        """
        needs_program = recipe.saves_between or recipe.captured.cuts_history
        if self.keeps_inputs or (self.recipes.save == "everything" and needs_program):
            return True
        return _must_keep_inputs(recipe.captured)

    def make_backward(self) -> Any:
        """`backward`: the text, or the program again where it is to be differentiated."""

        def backward(ctx: Any, *cotangents: Any) -> Any:
            recipe, saved = ctx.call.recipe, ctx.saved_tensors
            given = [cotangents[i] for i in recipe.live]
            gradients = self.pull(ctx.call, saved, given, _wanted(ctx, recipe))
            rest = zip(gradients, recipe.passed, strict=True)
            return (None, *[g for g, place in rest if place is not None])

        return backward

    def pull(
        self, call: DerivedCall, saved: Sequence[Any], given: Sequence[Any], wanted: Sequence[bool]
    ) -> list[Tensor | None]:
        """One gradient per input of the capture, for what a call saved and its cotangents."""
        can_repeat = partial(self.recipes.is_current, call.recipe)
        return captured_gradients(call, saved, given, wanted, can_repeat=can_repeat)


def placed_call(
    signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """A call by positions: the arguments, the last of which go to the parameters named."""
    if not kwargs:
        return args, ()
    if signature is not None:
        bound = signature.bind(*args, **kwargs)
        args, kwargs = bound.args, bound.kwargs
    names = tuple(sorted(kwargs))
    return (*args, *(kwargs[name] for name in names)), names


def _apart(outputs: Sequence[Tensor], place: int, live: Sequence[int]) -> Tensor:
    """An output without a gradient as a tensor of its own, as after `detach`.

    It may be returned with a gradient as well, or be a view of what has one, which PyTorch would
    not take for marked.
    """
    output = outputs[place]
    is_live = any(output is outputs[other] for other in live)
    return output.detach() if is_live or output._is_view() else output


# ---- inputs ----


def _wanted(ctx: Any, recipe: Recipe) -> list[bool]:
    """For each input of a capture, whether this very backward needs its gradient."""
    needs = ctx.needs_input_grad
    pairs = zip(recipe.captured.inputs, recipe.passed, strict=True)
    return [one.needs and place is not None and needs(place) for one, place in pairs]


def _must_keep_inputs(captured: Capture) -> bool:
    """Whether backward may have to run the program again in a first derivative, too."""
    return captured.is_handwritten and sum(o.differentiable for o in captured.outputs) > 1
