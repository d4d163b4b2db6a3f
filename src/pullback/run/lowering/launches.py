"""How Inductor launches a kernel on a GPU, as the arguments of the driver.

A kernel is launched by a function that Inductor wrote for its block sizes. That one is run here
once, with the launch itself replaced by notes.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Unread(Exception):
    """Something in Inductor's Python that is none of the known forms."""


FORMATS = {
    "i": "<i", "l": "<q", "b": "<b", "h": "<h",
    "I": "<I", "K": "<Q", "B": "<B", "H": "<H",
    "f": "<f", "d": "<d",
}  # fmt: skip
"""How a number of each of the launcher's types lies in memory."""

POINTER = "O"

_MORE = ("global_scratch_size", "profile_scratch_size", "_has_tensordesc", "device_agnostic")
"""What newer launchers do besides: make memory for the kernel, describe tensors, choose devices."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor among the arguments: the register that holds it."""

    register: int


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched on a GPU: what the driver is told.

    `owner` is whose end is the end of the kernel.
    """

    owner: Any
    function: int
    grid: tuple[int, int, int]
    threads: int
    shared: int
    types: str
    arguments: tuple[Any, ...]

    def numbers(self) -> list[int | None]:
        """Each argument as the eight bytes that hold it; None for the address of a tensor."""
        pairs = zip(self.types, self.arguments, strict=True)
        return [None if isinstance(one, Place) else _eight_bytes(t, one) for t, one in pairs]


def _eight_bytes(kind: str, value: Any) -> int:
    try:
        packed = b"" if kind == POINTER else struct.pack(FORMATS[kind], value)
    except struct.error as error:
        raise Unread(f"{value!r} as {kind}") from error
    (number,) = struct.unpack("<q", packed.ljust(8, b"\0"))
    return int(number)


def launch_of(kernel: Any, given: Sequence[Any]) -> Launch:
    """How `kernel.run(*given)` launches its kernel, which is compiled and has one launcher."""
    try:
        (launcher,) = kernel.launchers
        code, space = launcher.__code__, launcher.__globals__
        static = space["runner"].__self__
        facts = int(static.function), 32 * int(static.num_warps), int(static.shared)
        types_ = static.arg_tys
        scratch = static.has_global_scratch, getattr(static, "has_profile_scratch", False)
        if any(getattr(static, name, None) for name in _MORE):
            raise Unread("a launcher that does more than to launch")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Unread("another launcher") from error
    noted: list[tuple[Any, ...]] = []

    def note(*args: Any) -> None:
        noted.append(args)

    names = {**space, "runner": note}
    try:
        types.FunctionType(code, names, closure=launcher.__closure__)(*given, stream=0)
    except Exception as error:
        raise Unread("a launcher that asks for something else") from error
    if len(noted) != 1:
        raise Unread("not one launch")
    x, y, z, _, *arguments = noted[0]
    more = sum(map(bool, scratch))
    row = (*arguments, *(None,) * more)
    if len(row) != len(types_) + more or any(kind not in (*FORMATS, POINTER) for kind in types_):
        raise Unread("other arguments")
    function, threads, shared = facts
    return Launch(static, function, (x, y, z), threads, shared, types_ + POINTER * more, row)
