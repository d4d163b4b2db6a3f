"""Settings: what holds for a check, from the command line, a file, or by default.

The command line wins over the file, which wins over the default. In the file, what is said of a
target wins over what is said of its file, and that over what is said of all. Only `allow` adds up:
what is allowed for a file or a target stays allowed whatever the command line says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

COMMAND_LINE, DEFAULT = "command line", "default"

Table = Mapping[str, Mapping[str, Any]]  # what is said of each file, or of each target


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for one run of `pullback check`; `origins` says where each value is from."""

    targets: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    profile: str = "standard"
    time: float = 0.0  # seconds for each target; 0 is without a limit
    inputs: str = ""  # module:name, file.py:name or a recording
    fail_on: str = "fragile"
    baseline: str = ""
    jobs: int = 1
    cache: bool = True
    output_format: tuple[str, ...] = ()
    per_file: Table = field(default_factory=dict)
    per_target: Table = field(default_factory=dict)
    declare: Table = field(default_factory=dict)
    root: Path = field(default_factory=Path)
    origins: Mapping[str, str] = field(default_factory=dict)

    def excludes(self, names: Sequence[str]) -> bool:
        """Whether a target, or a file, with these names is not to be checked."""
        return any(fnmatchcase(name, key) for name in names for key in self.exclude)

    def of(self, names: Sequence[str], file: str = "") -> Chosen:
        """What holds for one target, by every name that it has and the file it stands in."""
        parts = [*_matching(self.per_file, [file] if file else [])]
        parts += _matching(self.per_target, names)
        chosen: dict[str, Any] = {}
        for key in ("select", "profile", "time", "inputs"):
            chosen[key] = getattr(self, key)
            if self.origins.get(key) != COMMAND_LINE:
                chosen[key] = next((p[key] for p in reversed(parts) if key in p), chosen[key])
        allowed = [*self.allow, *(word for part in parts for word in part.get("allow", ()))]
        declared: dict[str, Any] = {}
        for part in _matching(self.declare, names):
            declared |= part
        chosen["of_others"] = (self.per_file, self.per_target, self.declare)
        return Chosen(allow=tuple(dict.fromkeys(allowed)), declares=declared or None, **chosen)

    def shown(self) -> str:
        """Every setting as a file would have it, with where it is from."""
        lines = []
        for name in _PLAIN:
            value = getattr(self, name)
            line = f"{spoken(name)} = {_toml(value)}"
            lines.append(f"{line:<35} # {self.origins.get(name, DEFAULT)}")
        for name in _TABLES:
            for key, table in getattr(self, name).items():
                where = f"# {self.origins.get(name, DEFAULT)}"
                lines += ["", f"{'[' + spoken(name) + '.' + json.dumps(key) + ']':<35} {where}"]
                lines += [f"{spoken(one)} = {_toml(value)}" for one, value in table.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What holds for one target."""

    select: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    profile: str = "standard"
    time: float = 0.0
    inputs: str = ""
    declares: Mapping[str, Any] | None = None
    # What is said of the others, for the Functions that are called inside of it.
    of_others: tuple[Table, ...] = field(default=(), compare=False)


_TABLES = ("per_file", "per_target", "declare")
_PLAIN = tuple(f.name for f in fields(Settings) if f.name not in (*_TABLES, "root", "origins"))


def merged(from_file: Mapping[str, Any], where: Path | None, given: Mapping[str, Any]) -> Settings:
    """The settings of a file, with what the command line gives over them.

    `given` has None for what was not given there. The root is the folder of the file: what the
    file names is looked for from there.
    """
    origins = dict.fromkeys(from_file, where.name if where else "")
    spoken_of = {name: value for name, value in given.items() if value is not None}
    origins |= dict.fromkeys(spoken_of, COMMAND_LINE)
    root = where.parent if where else Path.cwd()
    return replace(Settings(root=root, origins=origins), **{**from_file, **spoken_of})


def _matching(table: Table, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """What is said of one of these names, the general before the particular."""
    found = [key for key in table if any(fnmatchcase(name, key) for name in names)]
    yield from (table[key] for key in sorted(found, key=lambda key: (key in names, len(key))))


def spoken(name: str) -> str:
    """The name of a setting as a file has it."""
    return name.replace("_", "-")


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() else repr(value)
    return json.dumps(value, ensure_ascii=False)
