"""Write the pages of `docs/` that are made from the code: run `python -m docs.generate`.

One text, many readers: an error's page is its class docstring, and the page of PyTorch's own
failures is the table that the tests pin.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from pullback import errors

HERE = Path(__file__).resolve().parent


def error_classes() -> list[type]:
    """Every error and warning class with a code, in the order of the codes."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and getattr(c, "code", "")]
    return sorted(classes, key=lambda c: (c.code[0] != "E", c.code))


def errors_page() -> str:
    """The manual page of every error and warning."""
    lines = [
        "# Errors and warnings",
        "",
        "Made by `python -m docs.generate` from `src/pullback/errors.py`: do not edit by hand.",
        "",
        "Each error is also the builtin that PyTorch raises for the same mistake. A warning is",
        "said once per Function class; `warnings.simplefilter` treats it like any other.",
        "",
    ]
    for cls in error_classes():
        builtin = next(b.__name__ for b in cls.__mro__ if b.__module__ == "builtins")
        lines += [f"## {cls.code} {cls.name}", "", f"`{cls.__name__}`, a `{builtin}`.", ""]
        lines += [inspect.getdoc(cls) or "", ""]
    return "\n".join(lines)


def torch_failures_page() -> str:
    """Where PyTorch itself fails a custom Function, as the tests pin it."""
    from tests.function.everywhere.known import KNOWN_TORCH_FAILURES  # needs Dynamo: slow to import

    lines = [
        "# Where PyTorch itself fails",
        "",
        "Made by `python -m docs.generate` from `tests/function/everywhere/known.py`: do not edit",
        "by hand. Each line is pinned by a test that fails when PyTorch mends it. The last column",
        "says what `pullback.Function` does in the same place.",
        "",
        "| what happens with `torch.autograd.Function` | with `pullback.Function` |",
        "|---|---|",
    ]
    does = {
        "works": "works",
        "works or raises": "works, or raises an error that says so",
        "anything": "the same: no class can mend it",
    }
    lines += [f"| {known.because} | {does[known.ours]} |" for known in KNOWN_TORCH_FAILURES]
    return "\n".join([*lines, ""])


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated page and its text."""
    yield HERE / "errors.md", errors_page()
    yield HERE / "torch-failures.md", torch_failures_page()


def main() -> None:
    """Write every page."""
    for path, text in pages():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
