"""What is checked: a Function class, a callable or a custom op, with its names, places and intent.

Declared intent stands on the class, as an attribute `declares` that needs no import of pullback:

    declares = {"surrogate": "x"}          # this gradient is not forward's, on purpose
    declares = {"surrogate": True}         # none of the gradients is
    declares = {"donates": ("logits",)}    # this input may be overwritten
    declares = {"once_differentiable": True}
    declares = {"nondeterministic": 1e-6}  # results may differ by this much between runs
    declares = {"domain": {"x": (0, 1)}}   # this input is never below or above
    declares = {"placements": {"x": "replicate", "out": "shard"}}  # across ranks
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from torch.autograd.function import Function as TorchFunction
from torch.nn import Module

from pullback.capture.names import function_class
from pullback.check.inputs.relations import Relation
from pullback.check.target.naming import load
from pullback.check.target.registration import has_vmap_rule, place_of, place_of_op, schema_of
from pullback.errors import DeclarationError, TargetError
from pullback.function.function import Function
from pullback.function.plain import is_derived, plain_program
from pullback.function.signature import has_setup_context
from pullback.judge.reference import Reference

ATTRIBUTE = "declares"
DECORATORS = os.path.join("torch", "autograd", "function.py")
METHODS = ("forward", "setup_context", "backward", "vjp")
BREAKING = ("data_ptr", "item", "numpy", "tolist")  # methods of tensors that leave the graph
OPS = ("OpOverload", "OpOverloadPacket", "CustomOpDef")
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
LOW_PRECISION = ("autocast", "custom_fwd", "float16", "half", "mixed precision")
PLAIN_DEFAULTS = (bool, int, float, str, type(None))


@dataclass(frozen=True, slots=True)
class Intent:
    """What the author declared: each entry silences exactly what it says."""

    surrogate: frozenset[str] | bool = False
    donates: frozenset[str] | bool = False
    once_differentiable: bool = False
    nondeterministic: float = 0.0
    domain: Any = None  # what the arguments may be: see `inputs.stated`
    placements: Mapping[str, Any] = field(default_factory=dict)

    def is_surrogate(self, name: str) -> bool:
        """Whether the gradient of input `name` is declared to be another than forward's."""
        return name in self.surrogate if isinstance(self.surrogate, frozenset) else self.surrogate

    def is_donated(self, name: str) -> bool:
        """Whether input `name` may be overwritten."""
        return name in self.donates if isinstance(self.donates, frozenset) else self.donates

    @property
    def is_drawn(self) -> bool:
        """Whether gradients are random estimates."""
        return self.nondeterministic == math.inf

    @property
    def has_surrogate(self) -> bool:
        """Whether any gradient is a surrogate."""
        return bool(self.surrogate)


@dataclass(frozen=True, slots=True)
class Target:
    """The function under test, and what is known of it without running it."""

    thing: Any
    name: str
    call: Callable[..., Any]
    function: Any = None
    intent: Intent = field(default_factory=Intent)
    compare_with: Callable[..., Any] | None = None  # a plain function that gives what is right
    domain: tuple[Relation, ...] = ()  # what its arguments may be, as the user says

    @property
    def is_function(self) -> bool:
        """Whether it is a Function class, whose `forward` and `backward` can be looked at."""
        return self.function is not None

    @property
    def is_ours(self) -> bool:
        """Whether it is a `pullback.Function`, which closes some of the traps by itself."""
        return self.is_function and issubclass(self.function, Function)

    @property
    def is_op(self) -> bool:
        """Whether it is an op of the dispatcher."""
        return type(self.thing).__name__ in OPS

    @property
    def has_setup_context(self) -> bool:
        """Whether the Function is in the style that `torch.func` needs."""
        return self.is_function and bool(has_setup_context(self.function))

    def reference(self) -> Reference:
        """What its gradients are compared with."""
        plain = plain_program(self.function) if self.is_function else None
        return Reference(self.call, plain, is_op=self.is_op)

    def method(self, name: str) -> Any:
        """The user's own method `name`, or None where the class has none of its own."""
        found = getattr(self.function, name, None) if self.is_function else None
        module = getattr(found, "__module__", None) or ""
        return None if module.startswith(("torch.autograd", "pullback.function")) else found

    @property
    def has_jvp(self) -> bool:
        """Whether the user wrote a `jvp`."""
        return self.method("jvp") is not None

    @property
    def has_vmap(self) -> bool:
        """Whether the Function or op has a rule for `vmap`, written or generated."""
        if self.is_op:
            return has_vmap_rule(self.thing)
        return self.method("vmap") is not None or self.generates_vmap

    @property
    def generates_vmap(self) -> bool:
        """Whether PyTorch is asked to generate the rule for `vmap`."""
        return self.is_function and bool(getattr(self.function, "generate_vmap_rule", False))

    @property
    def is_once_differentiable(self) -> bool:
        """Whether second derivatives are refused, by the decorator or by declaration."""
        if self.intent.once_differentiable:
            return True
        layer = self.method("backward") or self.method("vjp")
        while layer is not None:  # another decorator, such as custom_bwd, may stand above it
            code = getattr(layer, "__code__", None)
            if code is not None and code.co_filename.endswith(DECORATORS):
                return True
            layer = getattr(layer, "__wrapped__", None)
        return False

    @property
    def clears_saved(self) -> bool:
        """Whether it is declared, in PyTorch's own way, to be good for a single backward."""
        return self.is_function and bool(
            getattr(self.function, "clear_saved_tensors_on_access", False)
        )

    @property
    def graph_breaks(self) -> tuple[tuple[str, str], ...]:
        """The methods of the user's that call what `torch.compile` cannot follow, each with it."""
        found: list[tuple[str, str]] = []
        for method in METHODS:
            written = self.method(method)
            code = getattr(inspect.unwrap(written), "__code__", None) if written else None
            names = code.co_names if code is not None else ()
            found += [(method, call) for call in BREAKING if call in names]
        return tuple(found)

    def if_meant(self, donated: str | bool) -> dict[str, str]:
        """How to say that an input is overwritten on purpose, or with True all that it gets."""
        return {"if meant": f"declares = {{'donates': {donated!r}}}, in `{self.name}`"}

    def place(self, *methods: str) -> str:
        """`file:line` of the first of `methods` that the user wrote, else of the target itself."""
        for name in methods:
            found = place_of(self.method(name))
            if found:
                return found
        return place_of(self.thing) or place_of_op(self.thing)

    def defaults_after(self, count: int) -> tuple[Any, ...]:
        """The defaults of the parameters behind the first `count`, as far as they are plain."""
        parameters = [p for p in _signature(self) if p.kind in POSITIONAL][count:]
        plain = takewhile(lambda p: type(p.default) in PLAIN_DEFAULTS, parameters)
        return tuple(p.default for p in plain)

    @property
    def optional(self) -> frozenset[str]:
        """The names of the arguments that are None where they are left out."""
        return frozenset(p.name for p in _signature(self) if p.default is None)

    @property
    def words(self) -> frozenset[str]:
        """The words that stand in the code of forward: it may take any of them for an argument."""
        code = getattr(inspect.unwrap(_written(self)), "__code__", None)
        constants = code.co_consts if code is not None else ()
        flat = [item for one in constants for item in (one if isinstance(one, tuple) else (one,))]
        return frozenset(word for word in flat if isinstance(word, str) and word.isidentifier())

    @property
    def serves_low_precision(self) -> bool:
        """Whether its own text, comments too, speaks of autocast or of a dtype below float32."""
        try:
            text = inspect.getsource(self.function if self.is_function else self.thing)
        except (OSError, TypeError):
            return False
        return any(word in text.lower() for word in LOW_PRECISION)

    def names_of(self, count: int) -> tuple[str, ...]:
        """The names of the first `count` arguments, `arg3` where there is no name."""
        names, rest = _parameters(self)
        names = names[:count]
        left = count - len(names)
        extra = [f"{rest}[{i}]" if rest else f"arg{len(names) + i}" for i in range(left)]
        return (*names, *extra)


def target_of(thing: Any, name: str = "") -> Target:
    """What `thing` is as a target, or `TargetError`."""
    if isinstance(thing, Target):
        return thing
    if isinstance(thing, str):
        return target_of(load(thing), name)
    function = None
    call = thing
    if isinstance(thing, type) and issubclass(thing, TorchFunction):
        function, call = thing, thing.apply
    elif function_class(thing) is not None:
        function = function_class(thing)
    elif isinstance(thing, type) and issubclass(thing, Module):
        raise TargetError(
            f"`{name or thing.__qualname__}` must be a module, not the class of one",
            expected="an object that can be called with tensors",
            got=f"the class `{thing.__qualname__}`, a torch.nn.Module",
            fix=f"name a module that is made of it: model = {thing.__name__}(...)",
        )
    elif not callable(thing):
        raise TargetError(
            f"`{name or thing!r}` must be something that can be called",
            expected="a Function class, a callable, a custom op, or 'module:Name'",
            got=f"{type(thing).__name__}",
        )
    if not name and type(thing).__name__ in OPS:
        name = schema_of(thing).name.replace("::", ".")
    if not name and isinstance(thing, Module):
        name = type(thing).__name__
    name = name or getattr(function or thing, "__qualname__", "") or getattr(thing, "__name__", "")
    name = (name or str(thing)).removeprefix("<locals>.")
    name = name.rsplit("<locals>.", 1)[-1]
    target = Target(thing, name, call, function)
    intent = _intent_of(function if function is not None else thing, target)
    return replace(target, intent=intent)


def _parameters(target: Target) -> tuple[list[str], str]:
    """The names of the positional parameters, and that of `*args` where there is one."""
    schema = schema_of(_written(target))
    if schema is not None:
        return [_spoken(argument.name, i) for i, argument in enumerate(schema.arguments)], ""
    parameters = _signature(target)
    names = [p.name for p in parameters if p.kind in POSITIONAL]
    rest = [p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
    return names, rest[0] if rest else ""


def _written(target: Target) -> Any:
    """What the user wrote that takes the arguments."""
    if is_derived(target.function):
        return target.function.program
    return target.function.forward if target.is_function else target.thing


def _signature(target: Target) -> list[inspect.Parameter]:
    """The parameters of a function, without `ctx`; none where Python cannot tell."""
    try:
        parameters = list(inspect.signature(_written(target)).parameters.values())
    except (TypeError, ValueError):
        return []
    has_ctx = target.is_function and not (is_derived(target.function) or target.has_setup_context)
    return parameters[1:] if has_ctx else parameters


def _spoken(name: str, position: int) -> str:
    """The name of an argument; C++ counts those (`_0`) that were registered without one."""
    return f"arg{position}" if name == f"_{position}" else name


# ---- declared intent ----


def with_options(
    target: Target, declares: Mapping[str, Any] | None, reference: Any = None
) -> Target:
    """The target with what is declared from outside of it, and a reference to compare it with."""
    if declares is not None:
        target = replace(target, intent=_intent_of(SimpleNamespace(declares=declares), target))
    if reference is not None and not callable(reference):
        raise TargetError(
            f"the reference of `{target.name}` must be something that can be called",
            expected="a plain PyTorch function of the same arguments",
            got=repr(reference),
        )
    return replace(target, compare_with=reference)


def declared_with(target: Target, declares: Mapping[str, Any] | None) -> Target:
    """The target with more declared of it than its class does."""
    if not declares:
        return target
    own = getattr(target.function if target.is_function else target.thing, ATTRIBUTE, None)
    known = own if isinstance(own, Mapping) else {}
    return with_options(target, {**known, **declares})


def _intent_of(thing: Any, target: Target) -> Intent:
    declared = getattr(thing, ATTRIBUTE, None)
    if declared is None or callable(declared):
        return Intent()
    known = tuple(Intent.__dataclass_fields__)
    if not isinstance(declared, Mapping) or any(key not in known for key in declared):
        raise DeclarationError(
            f"`{target.name}.{ATTRIBUTE}` must be a mapping from what is declared",
            expected=f"keys out of {', '.join(known)}",
            got=repr(declared),
            fix=f'write for example {ATTRIBUTE} = {{"surrogate": "x"}}',
        )
    values = dict(declared)
    for key in ("surrogate", "donates"):
        if key in values:
            values[key] = _names(values[key], key, target)
    try:
        values["nondeterministic"] = float(values.get("nondeterministic", 0.0))
    except (TypeError, ValueError):
        raise DeclarationError(
            f"`{target.name}.{ATTRIBUTE}['nondeterministic']` must be a bound",
            expected="a number: how far results may differ between runs",
            got=repr(values["nondeterministic"]),
        ) from None
    return Intent(**values)


def _names(value: Any, key: str, target: Target) -> frozenset[str] | bool:
    if isinstance(value, bool):
        return value
    names = [value] if isinstance(value, str) else value
    known, rest = _parameters(target)
    if (
        not isinstance(names, Iterable)
        or not all(isinstance(name, str) for name in names)
        or (known and not rest and not set(names) <= set(known))
    ):
        raise DeclarationError(
            f"`{target.name}.{ATTRIBUTE}[{key!r}]` must be names of inputs, or True for all",
            expected=f"out of {', '.join(known)}",
            got=repr(value),
        )
    return frozenset(names)
