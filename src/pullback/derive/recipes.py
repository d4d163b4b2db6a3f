"""The recipes of one program: captured when a call of a new kind comes, and kept.

They are kept by everything that a capture depends on, the *kind* of a call: its plain values, what
its tensors are, the modes it is made under, and what the program reads from outside it. Sizes are
symbols in a capture, so a call with other sizes usually finds a recipe that serves it; what is not
served is captured again, out of sight of all hooks and modes around the call. Calls that come again
do not come here: they are looked up in a table (`call_table.py`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from pullback.capture.environment import Environment, State, environment_of
from pullback.capture.joint import Capture, capture
from pullback.capture.modes import autocast_now, one_at_a_time
from pullback.capture.names import argument_names, parameter_names
from pullback.capture.trees import Spec, flatten, kept, map_leaves, tensor_leaves
from pullback.capture.watch import shielded, versions_of
from pullback.derive.recipe import Recipe, recipe_of
from pullback.errors import CaptureError
from pullback.function.isolation import isolated, keeping_random_state
from pullback.judge.capture_check import verify

_UNDIFFERENTIABLE = "is not differentiable with respect to argument"  # as PyTorch says it
MOST_KINDS = 64  # how many kinds of calls are kept
_FIXED = (bool, int, str, bytes, type(None), Enum, torch.dtype, torch.device)


class Recipes:
    """The recipes of `program` under one policy of saving; safe to use from several threads.

    Where `is_strict`, a program that reads what can change unseen is refused; where `opaque`,
    Functions in it that cannot be traced run as they are.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        save: str | int,
        *,
        is_strict: bool = False,
        opaque: bool = False,
    ) -> None:
        self.program = program
        self.save = save
        self.opaque = opaque
        self.is_strict = is_strict
        self.environment = Environment(program)
        self._kinds: OrderedDict[Any, list[Recipe]] = OrderedDict()
        self._forgot: Callable[[], Any] = lambda: None

    def find(
        self, args: Sequence[Any], keywords: tuple[str, ...] = ()
    ) -> tuple[Recipe, list[Tensor]]:
        """The recipe for a call with `args`, and the tensors among them.

        The last of `args` go to the parameters called `keywords`.
        """
        kind, layouts, tensors = self.key(args, keywords)
        recipe = _serving(self._kinds.get(kind, ()), tensors, layouts)
        if recipe is None or len(self._kinds) > MOST_KINDS // 2:
            # Another lock beside it could be taken in the other order.
            with one_at_a_time():
                known = self._keep(kind)
                recipe = _serving(known, tensors, layouts)
                if recipe is None:
                    recipe = self._make(args, keywords)
                    known.append(recipe)
        return recipe, tensors

    def key(
        self, args: Sequence[Any], keywords: tuple[str, ...] = ()
    ) -> tuple[Any, Any, list[Tensor]]:
        """The kind of a call, what distinguishes calls of one kind, and the tensors of the call."""
        leaves, spec = flatten(tuple(args))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        kind = self._kind(leaves, spec, keywords, [t.requires_grad for t in tensors])
        return kind, tuple((t.shape, t.stride()) for t in tensors), tensors

    def general(self, args: Sequence[Any]) -> Recipe:
        """A recipe with a gradient for every input of `args` that can have one."""
        leaves, spec = flatten(tuple(args))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        smooth = [t.is_floating_point() or t.is_complex() for t in tensors]
        needs, recipe = self._widest(args, smooth)
        with one_at_a_time():
            self._keep(self._kind(leaves, spec, (), needs)).append(recipe)
        return recipe

    def _widest(self, args: Sequence[Any], smooth: Sequence[bool]) -> tuple[Sequence[bool], Recipe]:
        """The recipe with a gradient for all `smooth` inputs, or for those that PyTorch has one."""
        try:
            return smooth, self._make(args, (), smooth)
        except CaptureError as error:
            if _UNDIFFERENTIABLE not in str(error):
                raise
        alone = [[i == place for i in range(len(smooth))] for place in range(len(smooth))]
        needs = [flag and self._has_gradient(args, alone[i]) for i, flag in enumerate(smooth)]
        return needs, self._make(args, (), needs)

    def _has_gradient(self, args: Sequence[Any], needs: Sequence[bool]) -> bool:
        try:
            with shielded():
                capture(self.program, args, needs=needs, opaque=self.opaque)
        except CaptureError as error:
            return _UNDIFFERENTIABLE not in str(error)
        return True

    def fresh(self, args: Sequence[Any], keywords: tuple[str, ...] = ()) -> Recipe:
        """A recipe that was captured with `args` themselves, at their sizes."""
        return self._make(args, keywords)

    def program_with(self, keywords: tuple[str, ...], count: int) -> Callable[..., Any]:
        """The program with `count` positional arguments, of which the last are its `keywords`."""
        if not keywords:
            return self.program
        return _positional(self.program, keywords, count)

    def is_current(self, recipe: Recipe) -> bool:
        """Whether the program still reads from outside it what it read for `recipe`."""
        return bool(recipe.state == self.environment.state()[0])

    # ---- looking up ----

    def _kind(
        self, leaves: Sequence[Any], spec: Spec, keywords: tuple[str, ...], needs: Sequence[bool]
    ) -> Any:
        flags = iter(needs)
        row = tuple(
            (leaf.dtype, leaf.device, leaf.dim(), next(flags))
            if isinstance(leaf, Tensor)
            else _key(leaf)
            for leaf in leaves
        )
        # What fits into a number of bytes does so at one size; and a leaf costs nothing to keep.
        sizes = [(leaf.shape, leaf.is_leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        fixed = tuple(sizes) if isinstance(self.save, int) else ()
        surroundings = (torch.get_default_dtype(), autocast_now(), self._state())
        return (spec, keywords, row, fixed, *surroundings)

    def _keep(self, kind: Any) -> list[Recipe]:
        """The recipes of a kind, the youngest now; the oldest go."""
        known = self._kinds.setdefault(kind, [])
        self._kinds.move_to_end(kind)
        while len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
            self._forgot()
        return known

    def when_forgotten(self, forgot: Callable[[], Any]) -> None:
        """Call `forgot` when recipes go: who keeps some of them by other keys lets them go, too."""
        self._forgot = forgot

    # ---- capturing ----

    def _make(
        self, args: Sequence[Any], keywords: tuple[str, ...], needs: Sequence[bool] | None = None
    ) -> Recipe:
        program = self.program_with(keywords, len(args))
        with shielded():
            _warm_up(program, args)
            before = self._state()
            self.require_seen(args)
            captured = _captured(program, args, needs, opaque=self.opaque)
            changed = [captured.inputs[place].name for place, _ in captured.mutated]
            _require_unchanged(captured.name, changed)
            _require_nothing_kept(captured.name, before, self._state())
            verify(captured, program, args)
            return recipe_of(captured, self.save, program, self._state())

    def require_seen(self, args: Sequence[Any]) -> None:
        """Raise if the program, or an argument, holds what no call can compare with an earlier."""
        leaves = [leaf for leaf in flatten(tuple(args))[0] if not isinstance(leaf, Tensor)]
        for state in (self.environment.state()[0], *map(environment_of, leaves)):
            if state.unseen:
                raise self._unseen(state.unseen)

    def _state(self) -> State:
        """What the program reads from outside it, if that is all that it depends on."""
        state = self.environment.state()[0]
        if self.is_strict and not state.is_whole:
            raise self._unseen("something that can change unseen")
        return state

    def _unseen(self, what: str) -> CaptureError:
        return CaptureError(
            f"`{_name(self.program)}` must read from outside it only what can be looked at",
            got=what,
            fix="pass it as an argument; many numbers as a tensor",
        )


def _key(leaf: Any) -> Any:
    """A plain value, such that what is equal is also the same to a program."""
    if isinstance(leaf, (float, complex)):
        return type(leaf), repr(leaf)  # 0.0 and -0.0 are equal, and not the same; NaN is not equal
    if isinstance(leaf, slice):
        return slice, _key(leaf.start), _key(leaf.stop), _key(leaf.step)
    return type(leaf), leaf if isinstance(leaf, _FIXED) else environment_of(leaf)


def _is_as_it_was(captured: Capture) -> bool:
    """Whether tensors from outside the program need gradients as when it was captured."""
    return all(
        one.tensor is None or one.tensor.requires_grad == one.needs for one in captured.closures
    )


def _serving(recipes: Sequence[Recipe], tensors: Sequence[Tensor], layouts: Any) -> Recipe | None:
    """The first of several recipes of one kind that serves these tensors."""
    fits = (one for one in recipes if _is_as_it_was(one.captured))
    return next((one for one in fits if one.serves(tensors, layouts)), None)


# ---- the program itself ----


def _positional(
    program: Callable[..., Any], keywords: tuple[str, ...], count: int
) -> Callable[..., Any]:
    first = count - len(keywords)

    def call(*args: Any) -> Any:
        return program(*args[:first], **dict(zip(keywords, args[first:], strict=True)))

    names = [*parameter_names(program, first), *keywords]
    kind = inspect.Parameter.POSITIONAL_ONLY
    plain = [name if name.isidentifier() else f"arg{i}" for i, name in enumerate(names)]
    named: Any = call
    named.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in plain])
    named.__name__ = _name(program)
    named.__doc__ = getattr(program, "__doc__", None)
    named.__wrapped__ = program
    return call


def _name(program: Callable[..., Any]) -> str:
    return getattr(program, "__name__", type(program).__name__)


def _copies(args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with leaves of their own for the tensors."""
    copies: tuple[Any, ...] = map_leaves(kept, tuple(args))
    return copies


def _warm_up(program: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run `program` once, so that what it keeps from its first call on is made of real tensors.

    What it raises here it raises again when it is captured. Nothing else is changed by this.
    """
    with contextlib.suppress(Exception), isolated(args, 0):
        program(*_copies(args))


def _require_nothing_kept(name: str, before: State, after: State) -> None:
    """Raise if a capture left tensors without values in the program's surroundings."""
    if before.tensors != after.tensors:
        raise CaptureError(
            f"`{name}` must not keep the tensors of a call for later to be derived",
            got="a tensor from inside it that can be reached from outside it after the call",
            fix="return it as one more output",
        )


def _captured(
    program: Callable[..., Any],
    args: Sequence[Any],
    needs: Sequence[bool] | None,
    *,
    opaque: bool,
) -> Capture:
    """The capture of a program; where it fails because the program does, what the program says."""
    try:
        return capture(program, args, needs=needs, opaque=opaque)
    except CaptureError as error:
        refusal = error
    _run_alone(program, args)  # not inside of the handler: its error is then shown alone
    raise refusal


def _run_alone(program: Callable[..., Any], args: Sequence[Any]) -> None:
    """Run `program` on copies, so that an error of its own is raised as such."""
    copies = _copies(args)
    tensors = tensor_leaves(copies)
    before = versions_of(tensors)
    with keeping_random_state():
        program(*copies)
    changed = [a != b for a, b in zip(before, versions_of(tensors), strict=True)]
    leaves, _ = flatten(tuple(args))
    pairs = zip(argument_names(program, args), leaves, strict=True)
    names = [name for name, leaf in pairs if isinstance(leaf, Tensor)]
    _require_unchanged(
        _name(program),
        [name for name, is_changed in zip(names, changed, strict=True) if is_changed],
    )


class InputChangedError(CaptureError):
    """A program changes its inputs in place."""


def _require_unchanged(name: str, changed: Sequence[str]) -> None:
    """Raise if inputs are changed in place: a derived Function leaves them as they are."""
    if changed:
        names = ", ".join(changed)
        raise InputChangedError(
            f"`{name}` must leave its inputs as they are to be derived",
            got=f"`{names}` changed in place",
            fix=f"work on a clone of `{names}`, and return it",
        )
