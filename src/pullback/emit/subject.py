"""What is emitted: whatever the user passed, as one capture with its names."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.capture.joint import Capture, capture
from pullback.capture.names import class_name, function_class
from pullback.capture.trees import flatten, map_leaves, unflatten
from pullback.compose.flow import Flow, flow_of, recorded_units
from pullback.compose.options import ComposeOptions
from pullback.derive.recipe import Parts, parts_of
from pullback.derive.recipes import InputChangedError, Recipes
from pullback.derive.returned import record_of
from pullback.derive.source import readable_parts
from pullback.errors import ExamplesError, TargetError
from pullback.function.plain import is_derived
from pullback.function.unwritten import lacks_backward
from pullback.judge.capture_check import verify
from pullback.judge.comparison import Comparison
from pullback.judge.tensor_specs import TensorSpec, drawn_like, tensor_spec_of, tensor_specs_of


@dataclass(frozen=True, eq=False)
class EmitSubject:
    """One Function to emit.

    `name` is that of the class, `doc` the first paragraph of what the user wrote about it.
    `captured` is the whole of it as one joint graph. `program` is what was captured: it takes
    the arguments of the examples. `save` says what forward keeps. `specs` says of each input of
    the capture what its example was like. `function` is the hand-written class, where it is one;
    `flow` the nodes and units, where it is run as several. `left` are the parameters of the last
    arguments of the capture, where the examples left these at their defaults. `wanted` says which
    tensors of the examples required grad; it is empty where none did.
    """

    name: str
    doc: str
    captured: Capture
    program: Callable[..., Any]
    save: str | int
    specs: tuple[TensorSpec, ...]
    function: Any = None
    flow: Flow | None = None
    left: tuple[inspect.Parameter, ...] = ()
    wanted: tuple[bool, ...] = ()

    def call(self, *arguments: Any) -> Any:
        """What the program gives for the arguments of the capture."""
        given, keywords = self.given(arguments)
        return self.program(*given, **keywords)

    def given(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, without those that are as by default."""
        start = count = len(arguments) - len(self.left)
        keywords: dict[str, Any] = {}
        for place, parameter in enumerate(self.left, start):
            if _is_default(parameter, arguments[place]):
                continue
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = arguments[place]
            else:
                count = place + 1
        return arguments[:count], keywords

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the capture, with a `CaptureInput` in the place of each tensor."""
        return tuple(unflatten(list(self.captured.leaves), self.captured.in_spec))

    @property
    def needs(self) -> tuple[bool, ...]:
        """Which inputs of the capture have a gradient that was asked for."""
        flags = itertools.chain(self.wanted, itertools.repeat(True))
        return tuple(
            one.needs and flag for one, flag in zip(self.captured.inputs, flags, strict=False)
        )

    def tensors(self) -> list[Tensor]:
        """Tensors for its arguments, like those of the examples."""
        pairs = enumerate(zip(self.specs, self.captured.inputs, strict=True))
        return [drawn_like(like, seed) for seed, (like, one) in pairs if one.kind == "argument"]

    @functools.cached_property
    def comparison(self) -> Comparison:
        """The program, to compare what is written with it."""
        return Comparison(self.captured, self.call, self.specs)

    @functools.cached_property
    def parts(self) -> Parts:
        """Forward and backward, simplified to be read, with the names of values in order."""
        return readable_parts(self.captured, self.save)

    @functools.cached_property
    def exact(self) -> Parts:
        """Forward and backward as eager mode computes them, to the bit."""
        return parts_of(self.captured, self.save)

    @property
    def surrogates(self) -> frozenset[str]:
        """The inputs whose gradients are declared to be others than those of forward."""
        named: set[str] = set()
        for cls in (*self.captured.functions, self.function):
            declared = getattr(cls, "declares", None)
            value = declared.get("surrogate") if isinstance(declared, dict) else None
            if value is True or (value and cls is not self.function):
                return frozenset(one.name for one in self.captured.inputs)
            named |= {value} if isinstance(value, str) else set(value or ())
        return frozenset(named)


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    ours, theirs = flatten(value)[0], flatten(parameter.default)[0]
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def subject_of(thing: Any, examples: Any = None) -> EmitSubject:
    """What `thing` is to be emitted as.

    Arguments:
        thing: a Function class (hand-written, derived, combined, hybrid or nested) or its `apply`,
            something planned, or a function of tensors.
        examples: the arguments to capture it with, as a tuple; by default those that it was made
            with, or those of its own `examples`.
    """
    thing = function_class(thing) or thing
    if hasattr(thing, "best") and not isinstance(thing, type):
        thing = thing.function  # of a plan
    if getattr(thing, "composed", "") == "planned":
        raise TargetError(
            f"`{thing.__name__}` must be planned for one size to be emitted",
            got="a plan that runs it in another way at each of several sizes",
            fix="plan it with the examples of one size, and emit that",
        )
    given = _examples(thing, examples)
    found = _subject_of(thing, given)
    flags = tuple(x.requires_grad for x in flatten(given)[0] if isinstance(x, Tensor))
    return replace(found, wanted=flags if any(flags) else ())


def _subject_of(thing: Any, given: tuple[Any, ...] | None) -> EmitSubject:
    """What `thing` is to be emitted as, for these examples."""
    if not (isinstance(thing, type) and issubclass(thing, TorchFunction)):
        return _of_program(thing, given)
    if getattr(thing, "composed", "") in ("hybrid", "nested"):
        return _of_flow(thing, given)
    if is_derived(thing):
        return _of_derived(thing, given)
    return _of_function(thing, given)


# ---- kinds of things ----


def _of_derived(cls: Any, examples: tuple[Any, ...] | None) -> EmitSubject:
    known = record_of(cls)
    recipe, specs = known.general, known.specs
    if examples is not None:
        recipe, specs = known.recipes.general(examples), tensor_specs_of(examples)
    return _subject(cls.__name__, cls.program, recipe.captured, known.recipes.save, specs)


def _of_program(program: Any, examples: tuple[Any, ...] | None) -> EmitSubject:
    if not callable(program):
        raise TargetError(
            "what is emitted must be a Function class or a function of tensors",
            got=f"{type(program).__name__}",
        )
    given = _required(getattr(program, "__name__", type(program).__name__), examples)
    captured = Recipes(program, "auto").general(given).captured
    return _subject(class_name(program), program, captured, "auto", tensor_specs_of(given))


def _of_function(cls: Any, examples: tuple[Any, ...] | None) -> EmitSubject:
    given = _required(cls.__name__, examples)
    # What the user's backward reads is what is kept; where there is none, as little as will do.
    save = "auto" if lacks_backward(cls) else "everything"
    try:
        captured = Recipes(cls.apply, save).general(given).captured
    except InputChangedError:
        captured = None  # and let go of the error before another may be raised
    captured = _named(captured or _of_changing(cls, given), cls)
    return _subject(cls.__name__, cls.apply, captured, save, tensor_specs_of(given), function=cls)


def _named(captured: Capture, cls: Any) -> Capture:
    """A capture with the names that the module of a class has for tensors from outside it."""
    module = vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}
    known = {id(value): name for name, value in module.items() if isinstance(value, Tensor)}
    taken = {one.name for one in captured.inputs}
    inputs = tuple(
        replace(one, name=known[id(one.tensor)])
        if one.kind == "closure" and id(one.tensor) in known and known[id(one.tensor)] not in taken
        else one
        for one in captured.inputs
    )
    return replace(captured, inputs=inputs)


def _of_changing(cls: Any, examples: tuple[Any, ...]) -> Capture:
    """The capture of a Function that changes inputs in place, which no leaf may be."""

    def inner(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        return leaf.detach().requires_grad_().clone()

    with torch.enable_grad():
        given = map_leaves(inner, examples)
    captured = capture(cls.apply, given)
    verify(captured, cls.apply, given)
    return captured


def _of_flow(cls: Any, examples: tuple[Any, ...] | None) -> EmitSubject:
    """A program in several nodes; its capture is that of the whole."""
    if examples is None and hasattr(cls, "specs"):
        examples = map_leaves(
            lambda leaf: drawn_like(leaf) if isinstance(leaf, TensorSpec) else leaf, cls.specs
        )
    given, program = _required(cls.__name__, examples), cls.program
    captured = Recipes(program, "everything").general(given).captured
    flow = getattr(cls, "flow", None)
    if flow is None:
        call: tuple[Any, Any] = (given, {})
        whole = functools.partial(_called, program)
        units = recorded_units(whole, call)
        flow = flow_of(units, (), call, ComposeOptions("eager", "everything"), cls.__module__)
    return _subject(
        cls.__name__, program, captured, "everything", tensor_specs_of(given), flow=flow
    )


def _called(program: Any, args: Any, kwargs: Any) -> Any:
    return program(*args, **kwargs)


def _subject(
    name: str,
    program: Any,
    captured: Capture,
    save: str | int,
    specs: tuple[TensorSpec, ...],
    *,
    function: Any = None,
    flow: Flow | None = None,
) -> EmitSubject:
    held = tuple(tensor_spec_of(one.tensor) for one in captured.inputs if one.tensor is not None)
    said = vars(function).get("__doc__") if function is not None else inspect.getdoc(program)
    doc = inspect.cleandoc(said or "").split("\n\n")[0]
    return EmitSubject(name, doc, captured, program, save, (*specs, *held), function, flow)


# ---- examples ----


def _examples(thing: Any, examples: Any) -> tuple[Any, ...] | None:
    """The arguments to capture with: those given, else those of `thing.examples`."""
    given = getattr(thing, "examples", None) if examples is None else examples
    given = given() if callable(given) else given
    if given is None:
        return None
    if isinstance(given, Tensor):
        return (given,)
    if isinstance(given, list) and given and all(isinstance(item, tuple) for item in given):
        given = given[0]
    if not isinstance(given, tuple) or not given:
        name = getattr(thing, "__name__", type(thing).__name__)
        raise ExamplesError(
            f"the examples of `{name}` must be arguments to call it with",
            expected="a tuple of arguments, a list of such tuples, or a function that gives one",
            got=type(given).__name__ + (" that is empty" if not given else ""),
            fix="write (x,) for a single argument",
        )
    return given


def _required(name: str, examples: tuple[Any, ...] | None) -> tuple[Any, ...]:
    if examples is not None:
        return examples
    raise ExamplesError(
        f"`{name}` must be emitted with examples of its arguments",
        expected="examples=(x, ...), or `examples()` on the class that gives them",
        got="none",
        fix=f"pb.emit({name}, examples=(torch.randn(3, requires_grad=True),))",
    )
