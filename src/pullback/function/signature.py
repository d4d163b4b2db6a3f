"""What `forward` is called with: the parameters of a Function, by name and position.

The signature is read once per class. It gives inputs the user's own names in every message, binds
keyword arguments and defaults to positions, and says which of the two styles the class is written
in: `forward(ctx, ...)`, or `forward(...)` with `setup_context(ctx, inputs, output)`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pullback.errors import ApplyArgumentsError
from pullback.function.generated import codes_in
from pullback.function.slots import no_setup_context

METHODS = ("forward", "setup_context", "backward", "vjp", "jvp")
REQUIRED: Any = inspect.Parameter.empty


def has_setup_context(cls: type) -> bool:
    """Whether `cls` is written with `setup_context`."""
    return getattr(cls, "setup_context", None) is not no_setup_context


def is_translated(cls: type) -> bool:
    """Whether foreign callers see methods of `cls` that are not the user's own."""
    return any(own_method(getattr(cls, name)) is not getattr(cls, name) for name in METHODS)


def own_method(method: Any) -> Any:
    """The user's own method, also where a base class has it translated already."""
    return getattr(method, "_pullback_user", method)


def source_place(function: Any) -> str:
    """`file.py:line` where `function` was written, or "" when that is unknown."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    return f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}" if code else ""


def written_function(function: Any) -> Any:
    """The function that the user wrote, under decorators that say what they wrap."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def codes_of(function: Any) -> Iterator[types.CodeType]:
    """The code of `function`, and of the functions inside it."""
    code = getattr(function, "__code__", None)
    return codes_in(code) if code is not None else iter(())


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of `forward` without `ctx`, and the style of the class."""

    owner: str
    place: str
    has_setup: bool
    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    variadic: str
    keyword_only: tuple[str, ...]
    keyword_defaults: tuple[Any, ...]

    @property
    def fixed(self) -> int:
        """How many arguments a complete positional call has, or -1 when that is open."""
        return -1 if self.variadic else len(self.names)

    def name(self, position: int) -> str:
        """The user's name of the input at `position`."""
        if position < len(self.names):
            return self.names[position]
        return f"{self.variadic or 'extra'}[{position - len(self.names)}]"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The positional arguments for one call: keywords placed, defaults filled in.

        In the `forward(ctx, ...)` style trailing defaults that the call leaves out stay out, as in
        PyTorch: an argument that was not passed is not an input and has no gradient.
        """
        bound = list(args)
        if len(bound) > len(self.names) and not self.variadic:
            raise self.unfit(args, kwargs, f"too many positional arguments: {len(bound)}")
        for name in kwargs:
            if name not in self.names:
                raise self.unfit(args, kwargs, f"got an unexpected keyword argument '{name}'")
            if self.names.index(name) < len(args):
                raise self.unfit(args, kwargs, f"got multiple values for argument '{name}'")
        for position in range(len(args), self._last(kwargs)):
            name, default = self.names[position], self.defaults[position]
            if name in kwargs:
                bound.append(kwargs[name])
            elif default is not REQUIRED:
                bound.append(default)
            else:
                raise self.unfit(args, kwargs, f"missing a required argument: '{name}'")
        return tuple(bound)

    def keywords(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword-only arguments of a call, taken out of `kwargs`.

        Empty when none was given. With `setup_context` the defaults of the others are filled in.
        """
        given = {name: kwargs.pop(name) for name in self.keyword_only if name in kwargs}
        for name, default in zip(self.keyword_only, self.keyword_defaults, strict=True):
            if name not in given and default is REQUIRED:
                raise self.unfit((), given, f"missing a required argument: '{name}'")
            if self.has_setup:
                given.setdefault(name, default)
        return given

    def _last(self, kwargs: dict[str, Any]) -> int:
        """One past the last position that a call has to fill."""
        if self.has_setup:
            return len(self.names)
        required = [i for i, default in enumerate(self.defaults) if default is REQUIRED]
        named = [self.names.index(name) for name in kwargs]
        return max(required + named, default=-1) + 1

    def unfit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], fault: str
    ) -> ApplyArgumentsError:
        """The error for arguments that do not fit."""
        given = [_kind(arg) for arg in args]
        given += [f"{name}={_kind(arg)}" for name, arg in kwargs.items()]
        return ApplyArgumentsError(
            f"`{self.owner}.apply` must be called with the arguments of `forward`",
            at=self.place,
            expected=f"({self.text()})",
            got=f"({', '.join(given)}): {fault}",
            torch=f"forward() {fault.replace('missing a', 'missing')}",
        )

    def text(self) -> str:
        """The parameters as they are written, values of defaults included."""
        parts = [_written(n, d) for n, d in zip(self.names, self.defaults, strict=True)]
        parts += [f"*{self.variadic}"] if self.variadic else ["*"] if self.keyword_only else []
        pairs = zip(self.keyword_only, self.keyword_defaults, strict=True)
        return ", ".join(parts + [_written(n, d) for n, d in pairs])


def forward_signature(cls: type) -> Signature:
    """Read the signature of a Function class from its `forward`.

    PyTorch binds by `inspect.signature` with `setup_context`, by the code object without: so here.
    """
    forward = cls.forward  # type: ignore[attr-defined]
    has_setup = has_setup_context(cls)
    parameters = _parameters(forward, by_code=not has_setup)
    if not has_setup and parameters and parameters[0].kind is not parameters[0].VAR_POSITIONAL:
        parameters = parameters[1:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keyword_only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    variadic = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]
    return Signature(
        owner=cls.__name__,
        place=source_place(forward),
        has_setup=has_setup,
        names=tuple(p.name for p in named),
        defaults=tuple(p.default for p in named),
        variadic="".join(variadic),
        keyword_only=tuple(p.name for p in keyword_only),
        keyword_defaults=tuple(p.default for p in keyword_only),
    )


def _parameters(forward: Any, *, by_code: bool) -> list[inspect.Parameter]:
    """The parameters of `forward`; any number of any kind where they cannot be read."""
    function = getattr(forward, "__func__", forward)
    if by_code and isinstance(function, types.FunctionType):
        bare = types.FunctionType(
            function.__code__, {}, "forward", function.__defaults__, function.__closure__
        )
        bare.__kwdefaults__ = function.__kwdefaults__
        found = list(inspect.signature(bare).parameters.values())
        found = found[1:] if function is not forward else found
        if any(p.kind is p.POSITIONAL_OR_KEYWORD for p in found[1:]):
            return found
        # A decorator that takes `*args` says nothing: look at what it wraps.
    try:
        return list(inspect.signature(forward).parameters.values())
    except (TypeError, ValueError):
        kinds = inspect.Parameter
        return [kinds("args", kinds.VAR_POSITIONAL), kinds("kwargs", kinds.VAR_KEYWORD)]


def state_of(cls: Any) -> tuple[Any, ...]:
    """What the signature of `cls` was read from, to notice when it is replaced."""
    state = [cls.setup_context]
    function = cls.forward
    while function is not None:
        names = ("__defaults__", "__kwdefaults__", "__signature__")
        state += [function, *(getattr(function, name, None) for name in names)]
        inner = ("__func__", "__wrapped__", "func")
        function = next((f for n in inner if (f := getattr(function, n, None)) is not None), None)
    return tuple(state)


def _written(name: str, default: Any) -> str:
    return name if default is REQUIRED else f"{name}={_kind(default)}"


def _kind(value: Any) -> str:
    """A short text of one argument: tensors by shape and dtype, the rest by value."""
    if isinstance(value, torch.Tensor):
        return f"Tensor{tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 30 else f"{type(value).__name__}(...)"
