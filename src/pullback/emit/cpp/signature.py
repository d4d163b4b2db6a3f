"""A written Function and its signatures: in C++, and in the schema of its op."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.emit.cpp.body import Body
from pullback.emit.cpp.plain_text import PlainArgument
from pullback.emit.cpp.reach import Reach
from pullback.emit.subject import EmitSubject

NAMESPACE = "emitted"
"""The namespace of emitted ops: `torch.ops.emitted.<name>`."""

NO_AUTOCAST = "c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);"


@dataclass(frozen=True)
class CppFunction:
    """One Function, written: its class, and what the registration needs to know of it.

    `subject` is what it was written from, and `reach` how far it reaches. `tensors` are the
    parameters that are tensors, in the order of the inputs of the capture; `plain` the others.
    `cast` are those that get another dtype under autocast: the one that is named, or the widest of
    them where none is. `variants` are the Functions for calls without some of the `optional`
    parameters, each with the names of those. `spelled` are the names in the schema, where they are
    others than in C++, which has more words of its own.
    """

    subject: EmitSubject
    reach: Reach
    name: str
    op: str
    parameters: tuple[str, ...]
    tensors: tuple[str, ...]
    plain: tuple[PlainArgument, ...]
    cast: dict[str, str]
    changed: frozenset[int]
    aliases: tuple[int | None, ...]
    lines: tuple[str, ...]
    bodies: tuple[Body, Body]
    spelled: dict[str, str]
    optional: frozenset[str] = frozenset()
    variants: tuple[tuple[frozenset[str], CppFunction], ...] = ()

    @property
    def result(self) -> str:
        """The type that the op gives."""
        count = len(self.aliases)
        return "at::Tensor" if count == 1 else f"std::tuple<{', '.join(['at::Tensor'] * count)}>"

    @property
    def signature(self) -> str:
        """The parameters of the op in C++."""
        kinds = dict.fromkeys(self.optional, "const std::optional<at::Tensor>&")
        kinds |= {self.parameters[place]: "at::Tensor" for place in self.changed}
        kinds |= {one.name: one.kind[1] for one in self.plain}
        return ", ".join(f"{kinds.get(n, 'const at::Tensor&')} {n}" for n in self.parameters)

    @property
    def schema(self) -> str:
        """The schema of the op."""
        letters = {place: chr(ord("a") + i) for i, place in enumerate(sorted(self.changed))}
        by_name = {one.name for one in self.plain if one.is_keyword}
        declared = [
            f"Tensor({letters[place]}!) {self.spelled.get(name, name)}"
            if place in letters
            else self._declared(place)
            for place, name in enumerate(self.parameters)
        ]
        if by_name:
            declared.insert(len(declared) - len(by_name), "*")
        takes = ", ".join(declared)
        gives = ["Tensor" if a is None else f"Tensor({letters[a]}!)" for a in self.aliases]
        result = gives[0] if len(gives) == 1 else f"({', '.join(gives)})"
        return f"{self.op}({takes}) -> {result}"

    def _declared(self, place: int) -> str:
        """A parameter in the schema."""
        name = self.parameters[place]
        defaults = dict.fromkeys(self.optional, "None") | {p.name: p.given for p in self.plain}
        by_name = {one.name for one in self.plain if one.is_keyword}
        rest = [other for other in self.parameters[place:] if other not in by_name]
        is_last = name in by_name or all(defaults.get(other) for other in rest)
        kinds = dict.fromkeys(self.optional, "Tensor?") | {p.name: p.kind[0] for p in self.plain}
        default = f"={defaults[name]}" if is_last and defaults[name] else ""
        return f"{kinds.get(name, 'Tensor')} {self.spelled.get(name, name)}{default}"
