"""Describes an edit, and the error that it repairs, in the user's variables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import fx

from pullback.diagnose.scope import (
    COTANGENT,
    INPUT,
    OUTPUT,
    SAVED,
    NamedValue,
    Scope,
    written_number,
)
from pullback.graph.cost import op_name
from pullback.graph.parts import BACKWARD, phase_of
from pullback.graph.spelling.expressions import SIGN
from pullback.graph.values import aten
from pullback.judge.closeness import equal_tensors

if TYPE_CHECKING:
    from pullback.diagnose.candidate_edits import NewCall, Site

LONGEST_PLACE = 90
"""The longest expression that shows where an edit is made."""

NOUNS = {
    "sin": "sine",
    "cos": "cosine",
    "tan": "tangent",
    "sinh": "hyperbolic sine",
    "cosh": "hyperbolic cosine",
    "tanh": "hyperbolic tangent",
    "exp": "exponential",
    "log": "logarithm",
    "sqrt": "root",
    "rsqrt": "inverse root",
    "sigmoid": "sigmoid",
    "sum": "sum",
    "mean": "mean",
    "var": "variance",
    "mul": "product",
    "add": "sum",
    "sub": "difference",
    "div": "quotient",
    "pow": "power",
    "abs": "magnitude",
    "reciprocal": "inverse",
    "mm": "product",
    "_softmax": "softmax",
    "relu": "rectified value",
}
"""Nouns for the results of ops."""

REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "var", "cumsum", "_softmax", "softmax", "flip")
"""Ops whose integer arguments are dimensions."""

TURNS = {
    "sign": ("change the sign of {}", "the sign is wrong"),
    "conjugate": ("conjugate {}", "a conjugate is missing"),
    "transpose": ("transpose {}", "transposed"),
    "square": ("square {}", "a square is missing"),
    "invert": ("take the inverse of {}", "an inverse is missing"),
    "root": ("take the square root of {}", "a square root is missing"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Wording:
    """Describes the edits of one backward; each method gives the edit, and the error."""

    scope: Scope

    # ---- another op, another number, another value ----

    def rewritten(self, node: fx.Node, formula: NewCall) -> tuple[str, str]:
        """Another op in the place of that of `node`."""
        old, new = self.scope.written(node), f"`{self.spelled(node, formula)}`"
        text = f"use {new} instead of {old}"
        names = (op_name(node), _op_of(formula))
        if is_reduction(node, formula):
            pattern = f"the {names[0]} is taken where the {names[1]} is needed"
        elif {*names} <= {"add", "sub", "rsub"}:
            pattern = f"a sign is wrong in {old}"
        elif formula.op == node.target and len(formula.args) > len(node.args):
            pattern = f"a dimension is lost in {old}"
        elif formula.op == node.target:
            pattern = f"the operands of {old} are swapped"
        else:
            pattern = f"{old} is used where {new} is needed"
        return text, pattern

    def spelled(self, node: fx.Node, formula: NewCall) -> str:
        """The text of the op of `node` in another form."""
        graph = node.graph
        with graph.inserting_after(node):
            other = graph.call_function(formula.op, formula.args, dict(formula.kwargs))
        other.meta = dict(node.meta)
        text = self.scope.written(other).strip("`")
        graph.erase_node(other)
        return text

    def renumbered(self, node: fx.Node, formula: NewCall, old: Any, new: Any) -> tuple[str, str]:
        """Another number in the place of one in `node`, which gives `formula`."""
        where = self.scope.written(node)
        if isinstance(new, bool):
            return f"use {new} instead of {old} in {where}", f"a flag is wrong in {where}"
        written = f"`{new.text.text}`" if isinstance(new, NamedValue) else written_number(new).text
        was = written_number(old).text
        what = "dimension" if op_name(node) in REDUCTIONS else "constant"
        is_shown = re.search(rf"(?<![\w.-]){re.escape(was)}(?![\w.])", where)
        if not is_shown and not isinstance(new, NamedValue):  # it is written in another way
            right = f"`{self.spelled(node, formula)}`"
            return f"use {right} instead of {where}", f"a {what} is wrong in {where}"
        pattern = f"a {what} is wrong: {was} instead of {written} in {where}"
        return f"use {written} instead of {was} in {where}", pattern

    def replaced(self, old: fx.Node, known: NamedValue, site: Site) -> tuple[str, str]:
        """Another value in the place of `old`."""
        new = f"`{known.text.text}`"
        if site.is_returned:
            return f"return {new}", f"{self.scope.of(old)} is returned where {new} is needed"
        text = f"use {new} instead of {self.scope.of(old)}{self.where(site)}{self.saving(known)}"
        is_used = self.described(self.scope.named[old], is_saved=True)
        return text, f"{is_used} is used where {self.described(known)} is needed"

    def dropped(self, old: fx.Node, kept: fx.Node, site: Site) -> tuple[str, str]:
        """An operand of `old` in its place: the rest of the expression is superfluous."""
        name, whole = op_name(old), self.scope.written(old)
        others = [arg for arg in old.args if arg is not kept and isinstance(arg, fx.Node)]
        rest = [f"`{self.scope.texts[arg].text}`" for arg in others]
        rest += [f"{arg}" for arg in old.args if isinstance(arg, (int, float))]
        if name == "neg":
            return f"drop the minus of {whole}", "the sign is wrong"
        if name in ("mul", "div") and rest:
            what = "factor" if name == "mul" else "divisor" if old.args[0] is kept else "dividend"
            return f"drop the {what} {rest[0]} of {whole}", f"a {what} too many: {rest[0]}"
        if name in ("add", "sub") and rest and old.args[0] is kept:
            return f"drop {rest[0]} from {whole}", f"a summand too many in {whole}: {rest[0]}"
        text = f"use {self.scope.of(kept)} instead of {whole}{self.where(site)}"
        needed = self.described(self.scope.named[kept])
        return text, f"{whole} is used where {needed} is needed"

    # ---- the same value, with something done to it ----

    def turned(self, old: fx.Node, kind: str, args: Sequence[Any], site: Site) -> tuple[str, str]:
        """`old` with a sign, transposed, summed."""
        what = self.scope.of(old)
        if kind == "sign" and site.is_returned:
            return "change its sign", "the sign is wrong"
        if kind in ("sum", "mean"):
            over = f" over dimension {args[0][0]} (keepdim=True)" if args else " over everything"
            return f"take the {kind} of {what}{over}{self.where(site)}", "a reduction is missing"
        if kind == "flip":
            along = ", ".join(map(str, args[0]))
            text = f"reverse {what} along dimension {along}{self.where(site)}"
            return text, "the order of elements is reversed"
        text, pattern = TURNS[kind]
        return text.format(what) + self.where(site), pattern

    def joined(self, old: fx.Node, op: Any, known: NamedValue, site: Site) -> tuple[str, str]:
        """`old` with a factor or a summand."""
        new, what = f"`{known.text.text}`", self.scope.of(old)
        new = known.text.text if known.node is None and known.made is None else new
        verb, link, noun = {
            aten.add.Tensor: ("add", "to", "summand"),
            aten.sub.Tensor: ("subtract", "from", "summand"),
            aten.mul.Tensor: ("multiply", "by", "factor"),
            aten.div.Tensor: ("divide", "by", "divisor"),
        }[op]
        if noun == "summand":
            text = f"{verb} {new}" + ("" if site.is_returned else f" {link} {what}")
            sign = "-" if op == aten.sub.Tensor else ""
            inner = f"`-{known.text.within(SIGN)}`" if sign else new
            pattern = f"a summand is missing: {inner}"
        else:
            text = f"{verb} {link} {new}" if site.is_returned else f"{verb} {what} {link} {new}"
            pattern = f"a {noun} is missing: {new}"
        if known.origin == COTANGENT and noun == "factor":
            pattern = f"the cotangent {new} is not used"
        return text + self.where(site) + self.saving(known), pattern

    # ---- parts ----

    def where(self, site: Site) -> str:
        """In which expression, or everywhere."""
        users = {user for user, _ in site.uses}
        if site.is_returned:
            return ""
        if len(site.uses) > 1 and len(users) > 1:
            return f" {site.extent}"
        (user,) = users
        where = "" if user.op == "output" else f" in {self.scope.written(user)}"
        return where if len(where) <= LONGEST_PLACE else ""

    def described(self, known: NamedValue, *, is_saved: bool = False) -> str:
        """A value with what it is: the input `x`, the saved sine `s`."""
        name = f"`{known.text.text}`"
        if known.origin in (INPUT, OUTPUT, COTANGENT):
            return f"the {known.origin} {name}"
        if known.origin != SAVED or known.node is None:
            return name
        if known.text.size:  # it has no name of its own
            return name
        noun = NOUNS.get(op_name(known.node), "value")
        noun = "" if noun == known.text.text else f"{noun} "
        return f"the {'saved ' if is_saved else ''}{noun}{name}"

    def saving(self, known: NamedValue) -> str:
        """What must be saved for an edit that is not saved yet."""
        missing = [node for node in known.reads if not self.is_saved(node)]
        names = sorted(self.scope.names[node] for node in missing)
        return f", and save {_listed(names)}" if names else ""

    def is_saved(self, node: fx.Node) -> bool:
        """Whether the user's backward has a value of forward: it uses it, or forward saved it."""
        if phase_of(node) == BACKWARD or node in self.scope.hand.joint.cotangents:
            return True
        if any(user.op != "output" and phase_of(user) == BACKWARD for user in node.users):
            return True
        value = self.scope.hand.values[0][node]
        return any(equal_tensors(value, kept) for kept in self.scope.kept)


def is_reduction(node: fx.Node, formula: NewCall) -> bool:
    """Whether a mean is put in the place of a sum, or a sum in that of a mean."""
    return {op_name(node), _op_of(formula)} == {"sum", "mean"}


def _op_of(formula: NewCall) -> str:
    return str(formula.op).split(".")[1]


def _listed(names: Iterable[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
