"""What is asked of each op: `derive`, `source` and `combine`, each compared with PyTorch.

A row says of one feature (`derive second`, `source strided`) how it went: "right", "refused" with
the reason in words, "wrong" with how far, or "error" with what was raised instead of a reason.
What PyTorch itself cannot do (no formula for a second derivative, no forward mode) is not asked.
"""

import linecache
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function as TorchFunction

import pullback as pb
from tests.upstream import compare, layouts
from tests.upstream.cases import Case, cases_of, ops, variants_of

KNOWN: dict[str, tuple[str, ...]] = {
    # PyTorch leaves out the gradient of the statistics unless that of the result is asked, too.
    "native_group_norm": ("gradient from the last output alone of input 0",),
    # PyTorch multiplies by one sixth in single precision, whatever the dtype.
    "nn.functional.hardsigmoid": ("gradient of input 0", "second gradient of cotangent 0"),
}
"""By op, what PyTorch itself does not get right: not compared."""

NOT_ASKED: dict[str, tuple[str, ...]] = {
    # PyTorch gives numbers from other memory as the median of an expanded input.
    "median": ("expanded",),
    "nanmedian": ("expanded",),
    "masked.median": ("expanded",),
}
"""By op, the features for which PyTorch has no answer that is the same each time."""

TEXT = "<text of the derived Function>"
BATCH = 3
CHANCE = re.compile(
    r"-?\d+\.\d+(e[+-]?\d+)?"
    r"|(?<=computes: )-?(\d+|nan|inf)(?=;)"
    r"|\d+ of \d+(?= elements differ)"
    r"|(?<=index )\[[\d, ]*\]"
)
"""What a random op draws, how many elements differ by it, and the first of them."""


@dataclass(frozen=True)
class Row:
    """How one feature of one op in one dtype went."""

    op: str
    dtype: str
    feature: str
    status: str
    said: str = ""


# ---- the ways a program is made anew ----


def printed(derived: Any) -> Any:
    """The class that the text of `D.source()` defines, in a namespace of its own."""
    text = derived.source()
    linecache.cache[TEXT] = (len(text), None, text.splitlines(keepends=True), TEXT)
    space: dict[str, Any] = {"__name__": "text"}
    exec(compile(text, TEXT, "exec"), space)
    made = [v for v in space.values() if isinstance(v, type) and issubclass(v, TorchFunction)]
    return made[-1]


MAKERS = ("derive", "source", "combine")


# ---- one op ----


def rows_of(name: str, dtype: str, limit: int, *, is_short: bool = False) -> Iterator[Row]:
    """The rows of an op in a dtype, over up to `limit` samples; first a row without a status.

    Such a row is a notice that its feature begins, for whoever has to say where a process died.
    """
    op = ops()[name]
    for case in cases_of(op, dtype, limit):
        yield from rows_of_case(name, dtype, case, is_short=is_short or dtype == "float32")
    if dtype == "float64" and not is_short:
        for variant, case in variants_of(op, dtype).items():
            yield from _variant(name, dtype, variant, case)


def rows_of_case(name: str, dtype: str, case: Case, *, is_short: bool = False) -> Iterator[Row]:
    """The rows of one case; a short row has what depends on the numbers, and no layouts."""
    questions = _Questions(case)
    if not questions.has_answer:
        return
    for maker in ("derive", "source") if is_short else MAKERS:
        for feature in questions.features(maker):
            if is_short and feature not in ("first", "second"):
                continue
            yield Row(name, dtype, f"{maker} {feature}", "")
            yield Row(name, dtype, f"{maker} {feature}", *questions.ask(maker, feature))
            if maker in questions.refusal:
                break


def _variant(name: str, dtype: str, variant: str, case: Case) -> Iterator[Row]:
    questions = _Questions(case)
    for maker in ("derive", "source") if questions.has_answer else ():
        if questions.features(maker):
            yield Row(name, dtype, f"{maker} {variant}", "")
            yield Row(name, dtype, f"{maker} {variant}", *questions.ask(maker, "first"))


class _Questions:
    """A case, the truth about it, and the classes made from it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.truths: dict[str, compare.Answer | None] = {}
        self.made: dict[str, Any] = {}
        self.refusal: dict[str, tuple[str, str]] = {}
        self.has_answer = self._has_answer()

    def _has_answer(self) -> bool:
        """Whether PyTorch gives this case one answer: no error, no memory that nobody wrote."""
        once, again = self.truth("first"), self._try(self.case.program, "first")
        return once is not None and again is not None and not compare.difference(again, once)

    def features(self, maker: str) -> list[str]:
        """The features to ask of what a maker makes."""
        if maker == "source" and "derive" in self.refusal:
            return []
        known = list(FEATURES) if maker != "source" else ["first", "second", *_LAYOUTS]
        asked = [feature for feature in known if feature not in NOT_ASKED.get(self.case.op, ())]
        return [feature for feature in asked if self.truth(feature) is not None]

    def truth(self, feature: str) -> compare.Answer | None:
        """What PyTorch gives, or None where it does not do that."""
        if feature not in self.truths:
            self.truths[feature] = self._try(self.case.program, feature)
        return self.truths[feature]

    def _try(self, program: Callable[..., Any], feature: str) -> compare.Answer | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return FEATURES[feature](self.case, program)
        except Exception:
            return None

    def ask(self, maker: str, feature: str) -> tuple[str, str]:
        """How a feature of what a maker makes goes: a status, and what there is to say."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if maker not in self.made and maker not in self.refusal:
                self._make(maker)
            if maker in self.refusal:
                return self.refusal[maker]
            return self._compared(maker, feature)

    def _make(self, maker: str) -> None:
        inputs = _inputs(self.case)
        try:
            if maker == "derive":
                self.made[maker] = pb.derive(self.case.program, *inputs)
            elif maker == "source":
                self.made[maker] = printed(self.made["derive"])
            else:
                self.made[maker] = pb.combine(self.case.program, *inputs, backend="eager")
        except Exception as error:
            self.refusal[maker] = refused_or_error(error)
            return
        if getattr(self.made[maker], "composed", "") == "nested":
            self.refusal[maker] = "refused", _line(self.made[maker].explain())

    def _compared(self, maker: str, feature: str) -> tuple[str, str]:
        truth = self.truth(feature)
        assert truth is not None
        said = ""
        made = self.made[maker]
        if maker == "source" and feature == "some":  # a text is for calls like its example
            fewer = layouts.leaves(self.case.tensors, _but_one(self.case))
            made = printed(pb.derive(self.case.program, *fewer))
        for call in _calls(made, feature):
            try:
                got = FEATURES[feature](self.case, call)
            except Exception as error:
                return refused_or_error(error)
            if maker == "source":  # a text returns its tensors in one flat tuple
                got.facts = {**truth.facts, **_kept(got.facts)}
            said = said or compare.difference(
                got, truth, lambda: self._precise(feature), known=KNOWN.get(self.case.op, ())
            )
        if said:
            return "wrong", f"{self.case}: {said}"
        lines = self.made[maker].explain().splitlines() if maker == "combine" else []
        nested = [line for line in lines if line.strip().startswith("nested for")]
        if nested:
            return "refused", _line(nested[-1])
        return "right", ""

    def _precise(self, feature: str) -> compare.Answer:
        """The truth in double precision."""
        case = widened(self.case)
        return FEATURES[feature](case, case.program)


def _kept(facts: dict[str, Any]) -> dict[str, Any]:
    return {"requires_grad": facts["requires_grad"]} if "requires_grad" in facts else {}


def widened(case: Case) -> Case:
    """A case with its inputs in double precision."""
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    made = {id(t): t.to(wide.get(t.dtype, t.dtype)) for t in case.tensors}
    return replace(case, tensors=tuple(made[id(t)] for t in case.tensors))


def refused_or_error(error: Exception) -> tuple[str, str]:
    """Whether an error is a refusal in words: one of ours, or a `raise` that the text spells out.

    Anything else that comes out of pullback is an error of ours, whatever it says.
    """
    if isinstance(error, pb.PullbackError) and type(error).__name__ != "InternalError":
        got = error.facts["got"]
        return "refused", _line(f"{error.code} {error.rule}" + (f": {got}" if got else ""))
    place = (traceback.extract_tb(error.__traceback__) or [None])[-1]
    if place is not None and place.filename == TEXT and (place.line or "").startswith("raise"):
        return "refused", _line(str(error))
    where = f" ({place.filename.rpartition('site-packages/')[2]}:{place.lineno})" if place else ""
    return "error", _line(f"{type(error).__name__}: {error}")[:300] + where


def _line(text: str) -> str:
    """A reason in one line, without the line of this suite that it names, and computed numbers."""
    line = " ".join(text.split()).replace("|", "/")
    return CHANCE.sub("…", re.sub(r" \(\w+\.py:\d+\)$", "", line))


# ---- the features ----


def _inputs(case: Case) -> list[Tensor]:
    return layouts.leaves(case.tensors, case.needs)


def _first(case: Case, call: Any) -> compare.Answer:
    return compare.first(call, _inputs(case))


def _second(case: Case, call: Any) -> compare.Answer:
    return compare.second(call, _inputs(case))


def _strided(case: Case, call: Any) -> compare.Answer:
    return compare.first(call, layouts.leaves(case.tensors, case.needs, layouts.strided))


def _expanded(case: Case, call: Any) -> compare.Answer:
    return compare.first(call, layouts.leaves(case.tensors, case.needs, layouts.expanded))


def _sizes(case: Case, call: Any) -> compare.Answer:
    return compare.first(call, layouts.leaves(layouts.grown(case.tensors), case.needs))


def _some(case: Case, call: Any) -> compare.Answer:
    return compare.first(call, layouts.leaves(case.tensors, _but_one(case)))


def _but_one(case: Case) -> list[bool]:
    """What requires grad, but for the first that does; there must be another one."""
    place = case.needs.index(True)
    if any(t is case.tensors[place] for t in case.tensors[place + 1 :]) or sum(case.needs) < 2:
        raise NotImplementedError("there is one input that requires grad")
    return [need and i != place for i, need in enumerate(case.needs)]


def _jvp(case: Case, call: Any) -> compare.Answer:
    inputs = _inputs(case)
    return compare.tangents(call, inputs, getattr(call, "push", None))


def _vmap(case: Case, call: Any) -> compare.Answer:
    """Over a batch of three, by `torch.vmap`; where that has no rule, by a loop."""
    generator = torch.Generator().manual_seed(3)
    batched = [t.is_floating_point() or t.is_complex() for t in case.tensors]
    rows = [
        torch.stack([t, *(layouts.shaken(t, generator) for _ in range(BATCH - 1))]) if b else t
        for t, b in zip(case.tensors, batched, strict=True)
    ]
    inputs = layouts.leaves(rows, case.needs)
    dims = tuple(0 if b else None for b in batched)
    if hasattr(call, "batch"):
        return compare.batched(call.batch(dims), inputs)
    return compare.batched(torch.vmap(call, in_dims=dims), inputs)


_LAYOUTS = ("strided", "expanded", "sizes", "some")
FEATURES: dict[str, Callable[[Case, Any], compare.Answer]] = {
    "first": _first,
    "second": _second,
    "strided": _strided,
    "expanded": _expanded,
    "sizes": _sizes,
    "some": _some,
    "jvp": _jvp,
    "vmap": _vmap,
}


def _calls(made: Any, feature: str) -> list[Any]:
    """The ways to ask a class for a feature: its `apply`, and the transforms of pullback."""
    return [made.apply, _Ours(made)] if feature in ("jvp", "vmap") else [made.apply]


class _Ours:
    """A class under `pb.jvp_of` and `pb.vmap_of`."""

    def __init__(self, made: Any) -> None:
        self.push = pb.jvp_of(made)
        self.batch = lambda dims: pb.vmap_of(made, in_dims=dims)
