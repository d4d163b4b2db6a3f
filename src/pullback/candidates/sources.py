"""What is judged, as it is sent to another process: by its name, or by value."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from torch import Tensor

from pullback.check.target.target import Target, target_of
from pullback.errors import TargetError, type_and_line

MOST = 50  # pieces of code that belong to one function


@dataclass(frozen=True, slots=True)
class Source:
    """A function as a name to load it by ("file.py:F", "module:F"), or as a pickle of it."""

    title: str
    name: str = ""
    value: bytes = b""

    def loaded(self) -> Any:
        """The object itself."""
        return target_of(self.name).thing if self.name else pickle.loads(self.value)

    def target(self) -> Target:
        """The object as something to call."""
        return target_of(self.loaded(), "" if not self.name else self.title)


def sendable(thing: Any, what: str) -> Source:
    """What to send for `thing`; raises `TargetError` where it cannot be sent."""
    if isinstance(thing, Source):
        return thing
    if isinstance(thing, str):
        return Source(thing.rpartition(":")[2] or thing, thing)
    title = target_of(thing).name
    try:
        return Source(title, "", cloudpickle.dumps(thing))
    except Exception as error:
        raise TargetError(
            f"the {what} `{title}` must be something that can be sent to another process",
            got=type_and_line(error),
            fix='put it into a file, and name it: pb.judge("file.py:F", ...)',
        ) from None


# ---- code ----


def fingerprints_of(call: Callable[..., Any]) -> list[str]:
    """Short texts for the code of a function of the user's; none where it is not Python's."""
    function = getattr(call, "__func__", call)
    inner = getattr(function, "forward", None) if not hasattr(function, "__code__") else function
    code = getattr(getattr(inner, "__func__", inner), "__code__", None)
    return [fingerprint(code)] if code is not None and len(code.co_code) > MOST else []


def fingerprint(code: CodeType) -> str:
    """The same text for the same instructions with the same names and numbers."""
    constants = [repr(one) for one in code.co_consts if isinstance(one, (int, float))]
    said = (code.co_code, code.co_names, code.co_varnames, constants)
    return hashlib.blake2b(repr(said).encode(), digest_size=12).hexdigest()


def memory_of_tensors(tensors: Iterator[Tensor | None]) -> set[int]:
    """Where the numbers of tensors lie."""
    return {t.untyped_storage().data_ptr() for t in tensors if t is not None}
