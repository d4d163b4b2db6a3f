"""A module as a program of its own tensors: parameters and buffers first, then its arguments.

The program runs `forward` on *shells*: modules of the same classes with the same attributes, whose
parameters and buffers are the tensors that were given. The module itself is neither read nor
changed by that, so that it can be captured, run again for a second derivative, and used by another
thread meanwhile. A buffer that `forward` changes in place is changed in a copy, whose value is one
more output. Other things that `forward` leaves on the module would be lost: they are refused.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pullback.capture.environment import Given
from pullback.capture.guards import Guards
from pullback.capture.names import identifier
from pullback.capture.trees import kept, map_leaves
from pullback.errors import CaptureError
from pullback.function.isolation import isolated
from pullback.function.signature import source_place

PARAMETERS, BUFFERS, MODULES = "_parameters", "_buffers", "_modules"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_any_global_hook: Callable[[], bool] = getattr(
    nn.modules.module, "_has_any_global_hook", lambda: False
)

Slot = tuple[dict[str, Any], str]


def _slots(module: nn.Module) -> Iterator[tuple[str, str, Slot]]:
    """Each tensor that the modules in `module` hold, with its name and kind, ties included."""
    for path, each in module.named_modules():
        for kind in (PARAMETERS, BUFFERS):
            held = vars(each)[kind]
            for key, tensor in held.items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, kind, (held, key)


def _distinct(module: nn.Module) -> list[tuple[str, str, Slot]]:
    """As `_slots`, once for each tensor."""
    found: dict[int, tuple[str, str, Slot]] = {}
    for name, kind, (held, key) in _slots(module):
        found.setdefault(id(held[key]), (name, kind, (held, key)))
    return list(found.values())


class ModuleLayout:
    """Where a module holds its tensors, as long as modules and names in it stay the same.

    `buffers` are the places of those that carry no gradient, which `forward` may change. `reason`
    says why it cannot be run on tensors that are given to it, or nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        rows = _distinct(module)
        self.names = tuple(name for name, _, _ in rows)
        self.buffers = tuple(
            place
            for place, (_, kind, (held, key)) in enumerate(rows)
            if kind == BUFFERS and not held[key].requires_grad
        )
        self.reason = _reason(module)
        self._slots = [slot for _, _, slot in rows]
        self._ties = _ties(module)
        owners = {id(held) for place in self.buffers for held, _ in [self._slots[place]]}
        self._owners = [m for m in module.modules() if id(vars(m)[BUFFERS]) in owners]
        self._is_built_so = _question(module)

    def holds(self) -> bool:
        """Whether the module is still built, hooked and tied as it was."""
        return self._is_built_so() and all(a[b] is c[d] for (a, b), (c, d) in self._ties)

    def row(self) -> list[Tensor]:
        """The tensors now."""
        return [held[key] for held, key in self._slots]

    def modes(self) -> tuple[bool, ...]:
        """Whether each module with a buffer is in training: what it changes depends on that."""
        return tuple([each.training for each in self._owners])


def _ties(module: nn.Module) -> list[tuple[Slot, Slot]]:
    """The places that hold one and the same tensor, in pairs."""
    first: dict[int, Slot] = {}
    found = []
    for _, _, (held, key) in _slots(module):
        known = first.setdefault(id(held[key]), (held, key))
        if known[0] is not held or known[1] != key:
            found.append((known, (held, key)))
    return found


def _question(module: nn.Module) -> Callable[[], bool]:
    """A function that says whether a module is still built, and hooked, as it is now."""
    guards = Guards()
    for each in module.modules():
        state = vars(each)
        guards.items(state[MODULES])
        for kind in (PARAMETERS, BUFFERS):
            guards.size(state[kind])
            for key, tensor in state[kind].items():
                if tensor is None:
                    guards.item(state[kind], key)
        for name in _HOOKS if each is not module else ():
            guards.size(state[name])
        if each is module:
            guards.item(state, "forward")
    return guards.check()


def _reason(module: nn.Module) -> str:
    """Why a module cannot be run on tensors that are given to it."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    if "forward" in vars(module):
        return "its `forward` was replaced"
    for path, each in module.named_modules():
        if path and any(vars(each)[name] for name in _HOOKS):
            return f"`{path}` has hooks, which run with every call"
    return ""


def odd_tensor(layout: ModuleLayout, row: Sequence[Tensor]) -> str:
    """The first tensor of a module that is not a plain one, in words; "" if there is none."""
    for name, tensor in zip(layout.names, row, strict=True):
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"`{name}` is a `{type(tensor).__name__}`"
    return ""


def require_values(module: nn.Module) -> None:
    """Raise if parameters are still to be made by a first call, which changes the class, too."""
    for name, _, (held, key) in _slots(module):
        if nn.parameter.is_lazy(held[key]):
            raise CaptureError(
                f"`{type(module).__name__}` must have its parameters to be combined",
                got=f"`{name}`, which the first call makes",
                fix="call the module once before",
            )


# ---- the program ----


class _Serving(threading.local):
    row: Sequence[Any] | None = None  # what the call under way gave to the program


_serving = _Serving()


def with_own_tensors(call: Callable[..., Any], row: Sequence[Any], args: Any, kwargs: Any) -> Any:
    """Call a composition of a program with the module's own tensors.

    Where it comes down to the program as written, that is the module itself.
    """
    before, _serving.row = _serving.row, row
    try:
        return call(*row, *args, **kwargs)
    finally:
        _serving.row = before


def module_program(layout: ModuleLayout, changing: frozenset[str]) -> Callable[..., Any]:
    """`forward` as a function of the module's tensors and its arguments.

    Where there are buffers that it is known to be `changing`, it returns what `forward` returns
    together with their new values, in the order of their names.
    """
    given, count = Given(layout.module), len(layout.names)
    copied = tuple(place for place in layout.buffers if layout.names[place] in changing)

    def program(*row: Any, **kwargs: Any) -> Any:
        tensors, args = row[:count], row[count:]
        served = _serving.row
        if served is not None and all(a is b for a, b in zip(tensors, served, strict=True)):
            output = given.module.forward(*args, **kwargs)
            return (output, ()) if changing else output
        output, values = run_apart(given.module, copied, tensors, args, kwargs)
        return (output, tuple(values[name] for name in sorted(changing))) if changing else output

    forward = type(layout.module).forward
    named: Any = program
    named.__name__ = type(layout.module).__name__
    named.__doc__ = layout.module.__doc__
    named.__module__ = type(layout.module).__module__
    named.__signature__ = _signature(layout.names, forward)
    named.__wrapped__ = forward
    return program


def _signature(names: Sequence[str], forward: Any) -> inspect.Signature:
    """The parameters of the program: the tensors by name, then those of `forward`."""
    own = list(inspect.signature(forward).parameters.values())[1:]
    taken = {one.name for one in own}
    first = []
    for name in names:
        wish = identifier(name)
        while wish in taken:
            wish += "_"
        taken.add(wish)
        first.append(inspect.Parameter(wish, inspect.Parameter.POSITIONAL_ONLY))
    return inspect.Signature([*first, *own])


def changed_by(
    layout: ModuleLayout, row: Sequence[Tensor], args: Any, kwargs: Any
) -> frozenset[str]:
    """The buffers that a call of `forward` changes, found out on copies."""
    copies, given, named = map_leaves(kept, (list(row), tuple(args), dict(kwargs)))
    with isolated(args, 0), torch.enable_grad():
        _, values = run_apart(layout.module, layout.buffers, copies, given, named)
    before = dict(zip(layout.names, copies, strict=True))
    # By values: some kernels (that of batch norm) count no change of what they change.
    return frozenset(name for name in values if not torch.equal(values[name], before[name]))


def run_apart(
    module: nn.Module, copied: Sequence[int], row: Sequence[Any], args: Any, kwargs: Any
) -> tuple[Any, dict[str, Tensor]]:
    """What `forward` gives with the tensors `row`, and what becomes of copies of some of them.

    `copied` are the places of those in `row`.

    Raises `CaptureError` where it leaves anything else behind.
    """
    shells: dict[int, nn.Module] = {}
    copies: dict[str, Tensor] = {}
    tensors: dict[int, Any] = {}
    for place, (name, _, (held, key)) in enumerate(_distinct(module)):
        tensor = row[place]
        if place in copied:
            tensor = copies[name] = tensor.detach().clone()
        tensors[id(held[key])] = tensor  # nothing is asked of the module's own, which are not seen
    top = _shell(module, tensors, shells)
    before = {id(shell): dict(vars(shell)) for shell in shells.values()}
    held_before = {name: slot for name, _, slot in _distinct(top)}
    values = {name: held[key] for name, (held, key) in held_before.items()}
    output = top.forward(*args, **kwargs)
    for shell in shells.values():
        _require_left(shell, before[id(shell)])
    for name, (held, key) in held_before.items():
        _require_held(top, name, held.get(key) is values[name])
    return output, {name: tensor.detach() for name, tensor in copies.items()}


def _shell(module: nn.Module, tensors: dict[int, Any], made: dict[int, nn.Module]) -> nn.Module:
    """A module like `module`, and those inside it, with other tensors."""
    if id(module) in made:
        return made[id(module)]
    shell: nn.Module = object.__new__(type(module))
    made[id(module)] = shell
    state = dict(vars(module))
    for kind in (PARAMETERS, BUFFERS):
        state[kind] = {k: t if t is None else tensors[id(t)] for k, t in state[kind].items()}
    inner = state[MODULES]
    state[MODULES] = {k: m if m is None else _shell(m, tensors, made) for k, m in inner.items()}
    object.__setattr__(shell, "__dict__", state)
    return shell


# ---- what is refused ----


def _require_left(shell: nn.Module, before: dict[str, Any]) -> None:
    """Raise unless `forward` left the attributes of a module as they were."""
    now = vars(shell)
    names = [n for n in {**before, **now} if n not in now or now[n] is not before.get(n, now)]
    if names:
        raise CaptureError(
            f"`{type(shell).__name__}` must leave its attributes as they are to be combined",
            at=_place_of_setting(type(shell), names[0]),
            got=f"`self.{names[0]}`, which `forward` sets",
            fix="return it, or keep it in a buffer that is changed in place",
        )


def _require_held(module: nn.Module, name: str, is_held: bool) -> None:
    if not is_held:
        owner, _, key = name.rpartition(".")
        raise CaptureError(
            f"`{type(module).__name__}` must keep the tensors that it has to be combined",
            at=_place_of_setting(type(module.get_submodule(owner)), key),
            got=f"`{name}`, which `forward` binds to another tensor",
            fix=f"change it in place: `{name}.copy_(...)`",
        )


def _place_of_setting(cls: type[nn.Module], name: str) -> str:
    """The line at which a method of `cls` other than `__init__` sets `self.name`."""
    for method in (m for base in cls.__mro__ for m in vars(base).values()):
        if not inspect.isfunction(method) or method.__name__ == "__init__":
            continue
        try:
            lines, first = inspect.getsourcelines(method)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, SyntaxError, TypeError):  # written where it cannot be read
            continue
        for node in ast.walk(tree):
            is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if is_set and node.attr == name:  # type: ignore[attr-defined]
                file = os.path.basename(method.__code__.co_filename)
                return f"{file}:{first + node.lineno - 1}"  # type: ignore[attr-defined]
    return source_place(cls.forward)


def has_global_hooks() -> bool:
    """Whether a hook for all modules is registered."""
    return _any_global_hook()
