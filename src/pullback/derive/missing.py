"""What a Function leaves unwritten, derived from its `forward`.

- A class without `backward` runs as the Function that `derive` makes of its `forward`: one node
  that saves as little as it can. What cannot be captured (a branch on values, a size that depends
  on them), or reads things from outside it that can change, runs as plain ops with recording on, so
  that autograd derives it as it goes.
- A `backward` that returns `pb.derived` in the place of a gradient has that one derived, by running
  `forward` once more on the inputs, which such a class keeps.

Nothing is derived for a class whose outputs carry no gradient. Where nothing can be derived (an
output made outside autograd, an input changed in place), forward runs as ever, and the backward
raises `MissingBackwardError` with the reason.

This module is the `Derivation` of the function layer, registered when the package is loaded; what
is heavy is imported when something is derived.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pullback.derive.unseen import outputs_without_history, unseen_in
from pullback.errors import PullbackError
from pullback.function.forward import LIST
from pullback.function.info import FunctionInfo
from pullback.function.isolation import RandomState
from pullback.function.plain import forward_of
from pullback.function.slots import has_no_values, has_tangent, no_jvp, version_of
from pullback.function.unwritten import NoDraws, run_plainly

# ---- a class without backward ----


def make_call(info: FunctionInfo, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a class without `backward`, with derivatives derived from its `forward`."""
    return _Calls(info, plain).call


class _Calls:
    """The calls of one class without `backward`, and what was found out about it."""

    def __init__(self, info: FunctionInfo, plain: Callable[..., Any]) -> None:
        self.info = info
        self.plain = plain
        self.program = forward_of(info.cls)
        self.derived: Any = None
        self.is_started = False  # whether an output was ever seen that carries a gradient
        self.is_recorded = False  # whether plain ops run, because capture does not do
        self.cleared: set[int] = set()  # outputs without history that are constants indeed

    def call(self, *args: Any) -> Any:
        """One call."""
        if self.info.why:
            return self.plain(*args)
        if has_tangent(args):
            return self.program(*args) if self.info.cls.jvp is no_jvp else self.plain(*args)
        if has_no_values(_tensors(args)):
            return self.program(*args)
        if not self.is_started:
            output = self._start(args)
            if not self.is_started:
                return output
        by_ops = self.is_recorded or not all(map(_is_plain, args))
        output = self._by_ops(args) if by_ops else self._by_derived(args)
        return self.plain(*args) if self._is_refused(args, _row(output)) else output

    def _start(self, args: Sequence[Any]) -> Any:
        """The call as PyTorch makes it, to see whether there is anything to be derived."""
        random, versions = RandomState(args), _versions(args)
        # What is saved here is thrown away: hooks that are around (checkpoint) must not see it.
        with saved_tensors_hooks(_same, _same):
            output = self.plain(*args)
        changed = [i for i, v in enumerate(_versions(args)) if v != versions[i]]
        if not any(leaf.requires_grad for leaf in _tensors(_row(output))):
            return output
        if changed:
            self.info.why = f"`forward` changes `{self.info.signature.name(changed[0])}` in place"
            return output
        random.restore()
        self.is_started = True
        return output

    def _by_derived(self, args: Sequence[Any]) -> Any:
        """By the derived Function: one node."""
        from pullback.derive.backward import make_derived  # heavy

        try:
            if self.derived is None:
                self.derived = _named(
                    make_derived(self.program, args, is_strict=True), self.info.name
                )
        except Exception:
            # Whatever capture cannot do, or an error of the user's: the plain ops know.
            return self._by_ops(args)
        try:
            return self.derived.apply(*args)
        except PullbackError:  # a call of another kind that cannot be captured
            return self._by_ops(args)

    def _by_ops(self, args: Sequence[Any]) -> Any:
        """By plain ops with recording on."""
        from pullback.derive.second import keeping_history  # heavy

        random = None if self.is_recorded else RandomState(args)
        try:
            with keeping_history() as held:
                output = self.program(*args)
        except Exception as error:
            if random is None:
                raise
            random.restore()
            output = self.plain(*args)  # raises what is the user's own
            self.info.why = f"`forward` does not run with gradient recording on ({error})"
            return output
        _hold(held, _row(output))
        if not self.is_recorded:
            self.is_recorded = True
            self.info.why = unseen_in(self.info.cls, args, _row(output))
        return output

    def _is_refused(self, args: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Whether no gradient could be right, since an output moves that has no history."""
        silent = set(outputs_without_history(outputs)) - self.cleared
        if silent and not self.info.why:
            self.cleared |= silent
            self.info.why = unseen_in(self.info.cls, args, outputs)
        return bool(self.info.why)


def _hold(held: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Let the history of `outputs` keep what it may have to compute from."""
    for leaf in _tensors(outputs) if held else ():
        maker: Any = leaf.grad_fn
        if maker is not None:
            maker.metadata["pullback.held"] = held


def _named(derived: Any, name: str) -> Any:
    derived.__name__, derived._backward_cls.__name__ = name, f"{name}Backward"
    return derived


# ---- some of the gradients ----

_seen: weakref.WeakKeyDictionary[type, set[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def pull(
    info: FunctionInfo, args: Sequence[Any], cotangents: Sequence[Any], places: Sequence[int]
) -> list[Tensor | None]:
    """The gradients of `forward` for the inputs at `places`, and no others."""
    from pullback.derive.second import gradients_of, keeping_history  # heavy

    records = torch.is_grad_enabled()
    row = [_input(arg, i in places, records) for i, arg in enumerate(args)]
    with torch.enable_grad(), keeping_history() as held, NoDraws():
        outputs = _row(run_plainly(info.cls, row))
    _require_seen(info, row, outputs, places)
    pulled = gradients_of(outputs, [row[place] for place in places], cotangents, record=records)
    held.clear()
    return list(pulled)


def _input(arg: Any, is_wanted: bool, records: bool) -> Any:
    """An argument for one more run of `forward`, which records what leads to those wanted."""
    if not isinstance(arg, Tensor):
        return arg
    with torch.enable_grad():
        if is_wanted:  # an alias, so that a tensor given twice has a gradient for each place
            return arg.view_as(arg) if records else arg.detach().requires_grad_()
    return arg if records else arg.detach()


def _require_seen(
    info: FunctionInfo, row: Sequence[Any], outputs: Sequence[Any], places: Sequence[int]
) -> None:
    """Raise unless autograd sees how `forward` uses the inputs at `places`; asked once."""
    known = _seen.setdefault(info.cls, set())
    if tuple(places) in known or has_no_values(_tensors(row)):
        return
    alone = [_input(arg, i in places, False) for i, arg in enumerate(row)]
    reason = unseen_in(info.cls, alone, outputs)
    if reason:
        raise RuntimeError(reason)
    known.add(tuple(places))


# ---- arguments and outputs ----


def _row(output: Any) -> list[Any]:
    leaves = list(output) if isinstance(output, (tuple, list)) else [output]
    return leaves[:-1] if leaves and leaves[-1] is LIST else leaves


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]


def _is_plain(arg: Any) -> bool:
    """Whether an argument is a tensor or a value that cannot change by itself."""
    if isinstance(arg, (tuple, list)):
        return all(_is_plain(item) for item in arg)
    return isinstance(arg, (Tensor, type(None), bool, int, float, complex, str, torch.dtype))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _versions(args: Sequence[Any]) -> list[int]:
    return [version_of(arg) if isinstance(arg, Tensor) else 0 for arg in args]
