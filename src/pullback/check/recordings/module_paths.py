"""Where in a model a call is made: `encoder.layers.3.act`, as `named_modules` names it.

The modules whose `forward` runs are read off the stack: nothing is hooked or wrapped, so neither
the program nor `torch.compile` notices. A module that stands in several places, such as one
activation for all layers, has the path by which it was reached.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from types import FrameType
from weakref import WeakKeyDictionary

from torch import nn

_CALL = nn.Module._call_impl.__code__


class ModulePaths:
    """The paths of the calls that a program makes; what it knows of modules is kept."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[nn.Module, dict[int, str]] = WeakKeyDictionary()
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()

    def here(self, frame: FrameType | None = None) -> str:
        """The path of the module that runs, inside the outermost one; of that, its class name.

        Empty where none runs.
        """
        modules = modules_running(frame or sys._getframe(1))
        if not modules:
            return ""
        # A part of a known model that is run again, by a checkpoint, keeps its path.
        path = self._paths.get(modules[0], "")
        for outer, inner in pairwise(modules):
            name = self._name_in(outer, inner)
            path = f"{path}.{name}" if path else name
            self._paths.setdefault(inner, path)
        return path or type(modules[0]).__name__

    def _name_in(self, outer: nn.Module, inner: nn.Module) -> str:
        """The name of a module in one that holds it; its class where it is held by none."""
        known = self._names.get(outer)
        if known is None or id(inner) not in known:
            known = {id(one): name for name, one in outer.named_modules()}
            known |= {id(one): name for name, one in outer.named_children()}  # the shortest wins
            self._names[outer] = known
        return known.get(id(inner)) or type(inner).__name__


def modules_running(frame: FrameType | None) -> list[nn.Module]:
    """The modules whose calls are on the stack, outermost first."""
    found: list[nn.Module] = []
    while frame is not None:
        if frame.f_code is _CALL:
            module = frame.f_locals["self"]
            if not found or found[-1] is not module:
                found.append(module)
        frame = frame.f_back
    return found[::-1]
