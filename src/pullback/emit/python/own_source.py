"""The source of the user's class, with what it needs of its module, if that can stand alone.

It stands alone if it needs torch, the standard library, and functions, classes and constants of its
own module, and nothing else. `pullback.Function` as a base becomes `torch.autograd.Function`.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from pullback.function.signature import written_function

OURS = {
    "Function": "torch.autograd.Function",
    "AutogradContext": "torch.autograd.function.FunctionCtx",
}
"""What replaces a name of pullback in a text that does not need it."""

METHODS = ("forward", "setup_context", "backward", "vjp", "jvp", "vmap")

# What a constant of the module may be made with: it is made again when the emitted module loads.
_MAKERS = frozenset(
    {"torch", "math", "float", "int", "complex", "bool", "tuple", "list", "dict", "range", "len"}
)


@dataclass(frozen=True, slots=True)
class OwnSource:
    """Import lines besides `import torch`, and the statements, in the order of the user's file.

    `names` are those that they bind, `saved` what the class gives to `save_for_backward`.
    """

    imports: tuple[str, ...]
    statements: tuple[str, ...]
    names: frozenset[str]
    saved: tuple[str, ...]


class _NotAlone(Exception):
    """The class needs something that cannot come along."""


def own_source(cls: type) -> OwnSource | None:
    """The text of `cls` and of what it needs, or None if that cannot stand alone."""
    try:
        return _Gathering(cls).own()
    except (_NotAlone, OSError, TypeError, SyntaxError):
        return None


class _Gathering:
    """The statements that one class needs, found by following names."""

    def __init__(self, cls: type) -> None:
        module = sys.modules.get(cls.__module__)
        if module is None or any(_free_names(cls)):
            raise _NotAlone
        self.text = inspect.getsource(module)
        self.tree = ast.parse(self.text)
        self.defined = dict(_defined(self.tree))
        self.cls = cls
        self.imports: dict[int, list[str]] = {}
        self.statements: dict[int, str] = {}
        self.names: set[str] = set()

    def own(self) -> OwnSource:
        """Everything, in the order of the file; the class last if it is not at the top of it."""
        node = self.defined.get(self.cls.__qualname__)
        text = self.text
        if not isinstance(node, ast.ClassDef):
            text = textwrap.dedent(inspect.getsource(self.cls))
            node = ast.parse(text).body[0]
            if not isinstance(node, ast.ClassDef) or node.name != self.cls.__name__:
                raise _NotAlone
        self.take(node, text, place=None if text is self.text else sys.maxsize)
        head = [line for _, lines in sorted(self.imports.items()) for line in lines]
        future = [line for line in _future(self.tree) if line not in head]
        statements = tuple(text for _, text in sorted(self.statements.items()))
        return OwnSource((*future, *head), statements, frozenset(self.names), tuple(_saved(node)))

    def take(self, node: ast.stmt, text: str, place: int | None = None) -> None:
        """Take a statement, and what it needs."""
        place = node.lineno if place is None else place
        if place in self.statements:
            return
        self.statements[place] = ""  # under way: a function may call itself
        self.names |= set(_bound(node))
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            _require_plain(node)
        replaced = list(self.replaced(node))
        self.statements[place] = _written(node, text, replaced)
        inside = {id(part) for old, _ in replaced for part in ast.walk(old)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and id(part) not in inside and part.id in self.defined:
                self.need(part.id)
            elif isinstance(part, (ast.Import, ast.ImportFrom)):
                for name in _bound(part):
                    _require_at_hand(_root(part, name))

    def need(self, name: str) -> None:
        """Take what defines `name`."""
        node = self.defined[name]
        if node is None:
            raise _NotAlone  # bound more than once, or in a way that is not followed
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            self.take(node, self.text)
            return
        line = _import_line(node, name)
        _require_at_hand(_root(node, name))
        lines = self.imports.setdefault(node.lineno, [])
        if line not in lines and line != "import torch":
            lines.append(line)

    def replaced(self, node: ast.stmt) -> Iterator[tuple[ast.expr, str]]:
        """The expressions that name something of pullback, with their replacements."""
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                if self.is_ours(part.value.id) and part.attr in OURS:
                    yield part, OURS[part.attr]
            elif isinstance(part, ast.Name) and self.is_ours(part.id):
                found = self.defined[part.id]
                if isinstance(found, ast.ImportFrom):
                    known = next(a.name for a in found.names if (a.asname or a.name) == part.id)
                    if known in OURS:
                        yield part, OURS[known]

    def is_ours(self, name: str) -> bool:
        """Whether a name is imported from pullback."""
        node = self.defined.get(name)
        return isinstance(node, (ast.Import, ast.ImportFrom)) and _root(node, name) == "pullback"


# ---- a module as statements ----


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.stmt | None]]:
    """The names that a module binds, with the statement of each; None where there are several."""
    seen: dict[str, int] = {}
    for node in tree.body:
        for name in _bound(node):
            seen[name] = seen.get(name, 0) + 1
            yield name, node if seen[name] == 1 and _is_followed(node) else None


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, also inside blocks."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name).split(".")[0] for a in node.names)
    else:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.stmt) and part is not node:
                yield from _bound(part)


def _is_followed(node: ast.stmt) -> bool:
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)
    return isinstance(node, kinds)


def _require_plain(node: ast.Assign | ast.AnnAssign) -> None:
    """Raise unless a constant is made of literals and of what torch makes of them."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            root: ast.expr = part.func
            while isinstance(root, (ast.Attribute, ast.Call, ast.Subscript)):
                root = root.func if isinstance(root, ast.Call) else root.value
            is_literal = isinstance(root, (ast.Constant, ast.Tuple, ast.List, ast.BinOp))
            if not is_literal and not (isinstance(root, ast.Name) and root.id in _MAKERS):
                raise _NotAlone
            if ast.unparse(part.func) in ("torch.load", "torch.hub.load", "torch.ops.load_library"):
                raise _NotAlone


def _require_at_hand(package: str) -> None:
    """Raise unless a package is there wherever torch is."""
    if package != "torch" and package not in sys.stdlib_module_names:
        raise _NotAlone


def _root(node: ast.Import | ast.ImportFrom, name: str) -> str:
    """The package that an import takes `name` from; nothing for a relative one."""
    if isinstance(node, ast.ImportFrom):
        return "" if node.level else (node.module or "").split(".")[0]
    found = next(a for a in node.names if (a.asname or a.name).split(".")[0] == name)
    return found.name.split(".")[0]


def _import_line(node: ast.Import | ast.ImportFrom, name: str) -> str:
    """The import of `name` alone."""
    names = [a for a in node.names if (a.asname or a.name).split(".")[0] == name]
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(names=names))
    return ast.unparse(ast.ImportFrom(module=node.module, names=names, level=node.level))


def _future(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            yield ast.unparse(node)


def _written(node: ast.stmt, text: str, replaced: list[tuple[ast.expr, str]]) -> str:
    """The lines of a statement with its decorators, some expressions replaced."""
    lines = text.splitlines()
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    for old, new in sorted(replaced, key=lambda pair: (-pair[0].lineno, -pair[0].col_offset)):
        if old.end_lineno != old.lineno:
            raise _NotAlone
        line = lines[old.lineno - 1].encode()
        line = line[: old.col_offset] + new.encode() + line[old.end_col_offset :]
        lines[old.lineno - 1] = line.decode()
    while first > 1 and lines[first - 2].startswith("#"):
        first -= 1  # a comment that stands right above it
    return "\n".join(lines[first - 1 : node.end_lineno])


# ---- a class ----


def _free_names(cls: type) -> Iterator[str]:
    """The variables of enclosing functions that the methods of a class read."""
    for base in cls.__mro__:
        if base.__module__.split(".")[0] in ("torch", "pullback", "builtins"):
            continue
        for name in METHODS:
            code = getattr(written_function(vars(base).get(name)), "__code__", None)
            yield from code.co_freevars if code is not None else ()


def _saved(node: ast.ClassDef) -> list[str]:
    """What a class gives to `save_for_backward`, as it is written; nothing where that varies."""
    calls = [
        part
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "save_for_backward"
    ]
    if len(calls) != 1 or any(isinstance(arg, ast.Starred) for arg in calls[0].args):
        return []
    return [ast.unparse(arg) for arg in calls[0].args]
