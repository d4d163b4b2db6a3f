"""`combine` of a module: a module that is used like it, and computes `forward` in one node.

What comes back is an object of a subclass of the module's own class, and the two share their
attributes: parameters, buffers, submodules, hooks and modes *are* the module's. So `state_dict`,
optimizers, `train`, `to`, DDP, FSDP2 and `isinstance` see what they saw before, and whatever is
changed on one of the two is changed on both. A copy, or what is unpickled, has a node of its own,
made at its first call.

At each call the tensors are read from the module and given to the node as inputs. Buffers that
`forward` changes in place are written after it. What cannot be combined runs as written, and
`explain()` says why.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from pullback.capture.patch import is_watched
from pullback.capture.trees import tensor_leaves
from pullback.compose import combine
from pullback.compose.functional import (
    ModuleLayout,
    changed_by,
    has_global_hooks,
    module_program,
    odd_tensor,
    require_values,
    with_own_tensors,
)
from pullback.compose.options import AS_WRITTEN, ComposeOptions, require_examples
from pullback.compose.reasons import is_refusal, reason_text
from pullback.function.slots import in_forward_mode, is_jit_tracing, transforms_active
from pullback.run.nodes.paths import META, Paths, UncompiledReason

Make = Callable[..., Any]
_PLAIN = (Tensor, nn.Parameter)


def combine_module(module: nn.Module, examples: tuple[Any, ...], options: ComposeOptions) -> Any:
    """A module that computes what `module` does in one node with one backward.

    Its parameters and buffers stay its own, and are inputs of the node.

    Guarantee: the same outputs and gradients as the module as written, the same changes of its
    buffers, and the same random numbers.

    >>> import torch
    >>> layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
    >>> fast = combine_module(layer, (torch.ones(2, 3),), ComposeOptions("eager"))
    >>> fast(torch.ones(2, 3)).grad_fn.name(), fast[0].weight is layer[0].weight
    ('SequentialBackward', True)
    """
    options.policy()  # raises for one that there is not
    require_examples(module, examples)
    require_values(module)
    made = _recombined(plain_of(module), options)
    module_nodes(made).prepare(examples)
    return made


def _recombined(module: nn.Module, options: ComposeOptions) -> Any:
    """A combined module that captures at its first call: how one is copied and unpickled."""
    paths = Paths(type(module).__name__, warns=options.compiles)

    def make(program: Callable[..., Any], *examples: Any) -> Any:
        return combine(program, *examples, **asdict(options))

    return served(module, ModuleNodes(module, make, paths), options)


def served(module: nn.Module, nodes: ModuleNodes, options: ComposeOptions | None) -> Any:
    """A module that shares everything with `module`, and whose `forward` is that of `nodes`."""
    cls: Any = type(module)
    space = {
        "_pb_nodes": nodes,
        "_pb_options": options,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
    }
    made = object.__new__(type(cls)(cls.__name__, (Combined, cls), space))
    object.__setattr__(made, "__dict__", vars(module))
    return made


def plain_of(module: nn.Module) -> nn.Module:
    """The module as written; for one that is combined, that which it was made of."""
    nodes = module_nodes(module)
    if nodes is None or vars(nodes.module) is vars(module):
        return module if nodes is None else nodes.module
    cls = type(nodes.module)
    plain: nn.Module = object.__new__(cls)
    object.__setattr__(plain, "__dict__", vars(module))
    return plain


def module_nodes(module: nn.Module) -> Any:
    """What serves the calls of a combined module; None for another."""
    return getattr(type(module), "_pb_nodes", None)


class Combined:
    """What a combined module has of its own, in front of the class that it was made of."""

    _pb_nodes: ModuleNodes
    _pb_options: ComposeOptions | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module as written returns, in one node where that can be."""
        nodes = self._pb_nodes
        if (
            is_dynamo_compiling()
            or is_jit_tracing()
            or transforms_active()
            or is_watched()
            or in_forward_mode()
            or vars(self) is not vars(nodes.module)  # a replica that a library made
        ):
            return nodes.written(self, *args, **kwargs)
        return nodes.run(args, kwargs)

    def explain(self) -> str:
        """How it is run, and why, line by line."""
        return self._pb_nodes.explain()

    def __reduce_ex__(self, protocol: Any) -> Any:
        plain: Any = plain_of(self)  # type: ignore[arg-type]
        if self._pb_options is None:  # planned: a copy is as it was written
            return plain.__reduce_ex__(protocol)
        return _recombined, (plain, self._pb_options)


class ModuleNodes:
    """The compositions that serve the calls of one module; safe to use from several threads.

    `make` gives one for a program and its arguments; `paths` reports what runs as written.
    """

    def __init__(self, module: nn.Module, make: Make, paths: Paths | None = None) -> None:
        self.module = module
        self.make = make
        self.paths = paths or Paths(type(module).__name__, warns=False)
        self.written: Any = type(module).forward
        self.reasons: dict[Any, str] = {}
        self._signature = inspect.signature(module.forward)
        self._layout: ModuleLayout | None = None
        self._changing: dict[Any, frozenset[str]] = {}
        self._made: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def prepare(self, examples: Sequence[Any]) -> None:
        """Capture for calls like `examples`, which leaves the module as it is."""
        with torch.enable_grad():
            layout = self._now()
            row = layout.row()
            if not _is_meta((row, examples)) and not self._is_odd(layout, row):
                self._function(layout, row, examples, {})

    def know(self, layout: ModuleLayout, changing: frozenset[str], function: Any) -> None:
        """Let `function` serve the calls that change the buffers `changing`."""
        self._made[layout.names, changing] = function

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call."""
        layout = self._now()
        row = layout.row()
        if self._is_odd(layout, row):
            return self.module.forward(*args, **kwargs)
        if kwargs:
            bound = self._signature.bind(*args, **kwargs)
            args, kwargs = bound.args, bound.kwargs
        function, changing = self._function(layout, row, args, kwargs)
        if function is None:
            return self.module.forward(*args, **kwargs)
        if not changing:
            return with_own_tensors(function, row, args, kwargs)
        # The node keeps its inputs: those that are changed afterwards are copies.
        places = [place for place in layout.buffers if layout.names[place] in changing]
        given = list(row)
        for place in places:
            given[place] = row[place].clone()
        output, values = with_own_tensors(function, given, args, kwargs)
        by_name = dict(zip(sorted(changing), values, strict=False))
        with torch.no_grad():
            for place in places if values else ():
                row[place].copy_(by_name[layout.names[place]])
        return output

    def _now(self) -> ModuleLayout:
        """Where the tensors are."""
        layout = self._layout
        if layout is None or not layout.holds():
            with self._lock:
                layout = self._layout = ModuleLayout(self.module)
                self._changing.clear()
                self._forget_refusals()
        return layout

    def _forget_refusals(self) -> None:
        """Try again what could not be captured: another module may be in its place."""
        self.reasons.clear()
        for key in [key for key, one in self._made.items() if getattr(one, "refusal", "")]:
            del self._made[key]

    def _is_odd(self, layout: ModuleLayout, row: Sequence[Tensor]) -> bool:
        """Whether calls run as written because of what the module is now."""
        if all(type(one) in _PLAIN for one in row) and not has_global_hooks() and not layout.reason:
            return False
        reason = layout.reason or odd_tensor(layout, row) or "a hook for all modules is registered"
        self._refuse(reason, reason)
        return True

    def _refuse(self, key: Any, reason: str) -> None:
        self.reasons[key] = reason
        self.paths.warn(UncompiledReason(reason, AS_WRITTEN))

    def _function(
        self, layout: ModuleLayout, row: Sequence[Tensor], args: Any, kwargs: Any
    ) -> tuple[Any, frozenset[str]]:
        """What serves a call, or None, and the buffers that the call changes."""
        modes = layout.modes()
        changing = self._changing.get(modes)
        function = None if changing is None else self._made.get((layout.names, changing))
        if function is not None and changing is not None:
            return function, changing
        if (layout.names, modes) in self.reasons:
            return None, frozenset()
        if _is_meta((row, args, kwargs)):  # as written, until there are values
            self.paths.uncompiled(META)
            return None, frozenset()
        with self._lock:
            return self._made_for(layout, modes, row, args, kwargs)

    def _made_for(
        self, layout: ModuleLayout, modes: Any, row: Sequence[Tensor], args: Any, kwargs: Any
    ) -> tuple[Any, frozenset[str]]:
        changing: frozenset[str] = frozenset()
        if layout.buffers:
            try:
                changing = changed_by(layout, row, args, kwargs)
            except Exception as error:
                if is_refusal(error):
                    self._refuse((layout.names, modes), reason_text(error))
                return None, frozenset()  # what else is wrong with the call, the module says itself
        key = layout.names, changing
        if key not in self._made:
            with torch.enable_grad():
                self._made[key] = self.make(module_program(layout, changing), *row, *args)
        self._changing[modes] = changing
        return self._made[key], changing

    def explain(self) -> str:
        """How calls are run, line by line."""
        lines = [f"nested: {why}" for why in self.reasons.values()]
        lines += [*self.paths.lines(), *(one.explain() for one in self._made.values())]
        return "\n".join(dict.fromkeys(lines)) or "not called yet"


def _is_meta(args: Any) -> bool:
    """Whether a tensor has no values, with which a capture could be compared."""
    return any(tensor.is_meta for tensor in tensor_leaves(args))
