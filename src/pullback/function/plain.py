"""The forward of a Function as a plain program, so that autograd differentiates it by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.function.signature import has_setup_context
from pullback.function.unwritten import listen, run_plainly

MARKER = "_pb_derived"
"""The class attribute that marks such a class; a hand-written one does not have it.

Of what is one node, it is the record that its class was made with (`backward.DerivedRecord`): the
program, its recipes, and the general capture. Of what runs in several, or as written, it is True.
"""


def is_derived(thing: Any) -> bool:
    """Whether `thing` is a Function that `derive` or a composition made of `thing.program`.

    It is called like that program, and its `forward` is no part of what a user wrote.
    """
    return isinstance(thing, type) and bool(getattr(thing, MARKER, False))


def forward_of(cls: Any) -> Callable[..., Any]:
    """The `forward` of a Function class as a plain program under its name, its marks kept."""

    def program(*args: Any) -> Any:
        return run_plainly(cls, args)

    named: Any = program
    named.__signature__ = signature_of_apply(cls)
    program.__name__ = cls.__name__
    program.__doc__ = cls.__doc__
    program.__module__ = cls.__module__
    return program


def signature_of_apply(cls: Any) -> inspect.Signature:
    """What a Function class is called with: the parameters of its forward without the context."""
    parameters = list(inspect.signature(cls.forward).parameters.values())
    return inspect.Signature(parameters[not has_setup_context(cls) :])


def plain_program(target: Any) -> Callable[..., Any]:
    """What `target` computes, without its hand-written backward.

    For a Function class this is its `forward` with a context that only listens, for a derived one
    the program that it was derived from; any other callable is a program already.
    """
    if not (isinstance(target, type) and issubclass(target, TorchFunction)):
        return target  # type: ignore[no-any-return]
    if is_derived(target):
        return target.program  # type: ignore[attr-defined,no-any-return]
    forward: Any = target.forward

    def program(*args: Any) -> Any:
        return forward(*args) if has_setup_context(target) else listen(target, args)[0]

    program.__name__ = target.__name__
    program.__doc__ = target.__doc__
    return program
