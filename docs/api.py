"""The page of the public API, made from docstrings and types: part of `python -m docs.generate`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pullback
from pullback.check.findings.finding import Finding
from pullback.check.findings.report import FunctionUse, Report, Reports
from pullback.check.recordings.recorded import Recording
from pullback.plan.planned import Plan
from pullback.prove.proof import Proof
from pullback.report.graphs.page import GraphPage

VERBS = {
    "Define": ("Function", "AutogradContext", "derived", "below_autograd"),
    "Derive": ("derive", "jvp_of", "vmap_of", "prove", "DerivedFunction"),
    "Compose": ("combine", "hybrid", "nest", "chunked", "plan", "load_plan"),
    "Check": ("check", "assert_sound", "recording", "judge", "judge_all"),
    "Look": ("draw", "load_ipython_extension"),
    "Emit": ("emit", "build"),
    "Errors": ("PullbackError", "PullbackWarning"),
}
"""The public names, in the order of the page."""

RETURNED = (Report, Reports, Finding, FunctionUse, Recording, Plan, Proof, GraphPage)
"""Classes of what the functions return."""

WIDE = 88


def api_page() -> str:
    """Every public name: its signature, what it does, and an example."""
    lines = [
        "# API reference",
        "",
        "Made by `python -m docs.generate` from docstrings and types: do not edit by hand. All",
        "names are those of `import pullback as pb`; their examples run as tests.",
    ]
    for title, names in VERBS.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"### {name}", "", *_entry(name, getattr(pullback, name))]
    lines += ["", "## What is returned"]
    for cls in RETURNED:
        lines += ["", f"### {cls.__name__}", "", *_class(cls, cls.__name__)]
    return "\n".join([*lines, ""])


def public_names() -> list[str]:
    """The names that `import pullback` gives, but for its folders."""
    return [
        name
        for name, value in vars(pullback).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]


def _entry(name: str, thing: Any) -> Iterator[str]:
    if inspect.isclass(thing):
        yield from _class(thing, name)
    elif callable(thing):
        yield from ["```text", _signature(name, thing), "```", "", *_text(inspect.getdoc(thing))]
    else:
        yield from _text(inspect.getdoc(type(thing)))


def _class(cls: type, name: str) -> Iterator[str]:
    yield from _text(inspect.getdoc(cls))
    rows = [row for each in dict.fromkeys(vars(cls)) for row in _member(cls, each)]
    if rows:
        yield from ["", f"| of `{name}` | what it is |", "|---|---|", *rows]


def _member(cls: type, name: str) -> Iterator[str]:
    """A row for a public method or property of a class."""
    found = inspect.getattr_static(cls, name)
    if name.startswith("_"):
        return
    is_property = isinstance(found, property)
    method = found.fget if is_property else getattr(found, "__func__", found)
    told = inspect.getdoc(method) or ""
    if not inspect.isfunction(method) or not told:
        return
    call = name if is_property else f"{name}({', '.join(_parameters(method))})"
    sentence = " ".join(told.partition("\n\n")[0].split()).replace("|", "\\|")
    yield f"| `{call}` | {sentence} |"


def _parameters(function: Any) -> list[str]:
    names = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    return [f"{'*' * (p.kind is p.VAR_POSITIONAL)}{p.name}" for p in names if p.name != "cls"]


def _signature(name: str, function: Any) -> str:
    """The call with its types, on one line where it fits."""
    signature = inspect.signature(function)
    returned = signature.return_annotation
    tail = "" if returned is signature.empty else f" -> {_plain(returned)}"
    parts = [str(p).replace("'", "") for p in signature.parameters.values()]
    marks: list[str] = []
    has_star = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    for part, parameter in zip(parts, signature.parameters.values(), strict=True):
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            marks.append("*")
            has_star = True
        marks.append(part)
    line = f"pb.{name}({', '.join(marks)}){tail}"
    if len(line) <= WIDE:
        return line
    body = "".join(f"    {part},\n" for part in marks)
    return f"pb.{name}(\n{body}){tail}"


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _text(doc: str | None) -> Iterator[str]:
    """A docstring as Markdown: arguments and attributes as lists, examples as a session."""
    for block in re.split(r"\n\n(?!    )", doc or ""):
        heading = re.match(r"([A-Z][\w ]*):\n    \w", block)
        if heading:
            yield from [f"**{heading[1]}**", ""]
            for name, told in re.findall(
                r"^    ([\w, *]+): (.*(?:\n {8}.*)*)", block, re.MULTILINE
            ):
                yield f"- `{name}`: {' '.join(told.split())}"
        elif ">>>" in block:
            yield from ["```pycon", re.sub(r"  # doctest:.*", "", block), "```"]
        else:
            yield block
        yield ""
