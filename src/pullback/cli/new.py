"""`pullback new`: the files that something of your own begins with."""

from __future__ import annotations

import re
from pathlib import Path

import click

from pullback.check.rules import explained
from pullback.errors import TargetError

RULES = Path("src", "pullback", "check", "rules")  # where they stand in our own repository
TESTS = Path("tests", "check", "rules")

PAGE = '''"""Gradients must be finite where forward is.

What it checks
    The gradients at the example times a thousand, where the outputs are finite there.

Why it matters
    One NaN in a gradient ends a training, often hours after the batch that brought it.

Fails
    return g * x.exp() / (1 + x.exp())

Passes
    return g * torch.sigmoid(x)

Cannot see
    Other values at which a gradient is not finite.
"""
'''

RULE = '''{page}
from __future__ import annotations

from collections.abc import Iterator

{imports}

RULE = Rule(code="{code}", name="{name}", group="{group}")


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per gradient that is not finite."""
    large = subject.base.map(lambda t: 1000 * t if can_differ(t) else t, "times a thousand")
    if not subject.accepts(large):
        yield Skip.refused(RULE, "forward refuses numbers so large")
        return
    run = subject.run(large)
    if not all(bool(output.isfinite().all()) for output in run.outputs):
        return
    for name, gradient in run.pull(subject.cotangents(run)).items():
        if gradient is not None and not bool(gradient.isfinite().all()):
            yield subject.finding(
                RULE,
                example=large,
                at=At(Gradient(name)),
                expected="finite numbers, as the outputs are",
                got=f"{{int((~gradient.isfinite()).sum())}} that are not",
                fix="rewrite the formula so that no intermediate overflows",
            )
'''

OURS = """from pullback.check.findings.facts import At, Gradient
from pullback.check.subject.subject import Finding, Rule, Skip, Subject
from pullback.judge.example import can_differ"""
THEIRS = """from pullback.extend import (
    At,
    Finding,
    Gradient,
    Rule,
    Skip,
    Subject,
    can_differ,
)"""

TEST = '''"""Sound functions pass `{name}`; planted faults are caught, and named."""

import pytest
import torch
import torch.nn.functional as F

from pullback.extend import Finding, Subject, example_of, target_of
from {stem} import check

X = torch.tensor([-1.0, 2.0], dtype=torch.float64).requires_grad_()


class Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)


class Overflowing(Softplus):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp() / (1 + x.exp())


SOUND = {{"stable": (Softplus, (X,))}}
PLANTED = {{"overflow": (Overflowing, (X,), "gradient of `x`")}}


def findings(target, args):
    subject = Subject(target_of(target), (example_of(args),))
    return [result for result in check(subject) if isinstance(result, Finding)]


@pytest.mark.parametrize("name", SOUND)
def test_sound_function_has_no_finding(name):
    target, args = SOUND[name]

    assert findings(target, args) == []


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name):
    target, args, at = PLANTED[name]

    (found,) = findings(target, args)

    assert found.rule.name == "{name}"
    assert at in found.at
'''

OUR_TEST = '''"""Sound functions pass `{name}`; planted faults are caught, and named."""

import torch
import torch.nn.functional as F

from pullback.check.rules.{group}.{stem} import check
from tests.check.subjects import made, normal, rule_tests

X = normal(4)

SOUND = {{
    "stable": (made(lambda x: F.softplus(x), lambda g, x: g * torch.sigmoid(x)), (X,)),
}}

PLANTED = {{
    "overflow": (
        made(lambda x: F.softplus(x), lambda g, x: g * x.exp() / (1 + x.exp())),
        (X,),
        "gradient of `x`",
    ),
}}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
'''


@click.group("new")
def command() -> None:
    """Write the files that something of your own begins with.

    \b
    Examples:
      pullback new check gradient-not-finite --group acme
    """


@command.command("check")
@click.argument("name")
@click.option("--group", default="", help="The group of rules that it belongs to.")
@click.option(
    "--into", type=click.Path(path_type=Path), default=Path(), help="The folder to write to."
)
def check_command(name: str, group: str, into: Path) -> None:
    """Write a check called NAME, and its test: both run as they are, and are yours to change.

    In the repository of pullback they go where its checks and tests are, with the next free code
    of the group; elsewhere beside each other, and what to put into pyproject.toml is printed.

    \b
    Examples:
      pullback new check gradient-not-finite --group acme
    """
    _require_free(name)
    is_ours = (into / RULES).is_dir()
    files = _our_files(name, group, into) if is_ours else _their_files(name, group or "own", into)
    for path in files:
        if path.exists():
            raise TargetError(f"`{path}` must not be there yet", got="a file", fix="rename it")
        if not path.parent.is_dir():
            raise TargetError(f"`{path.parent}` must be a folder", got="no such folder")
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
        click.echo(f"wrote {path}")
    if is_ours:
        click.echo("then follow CONTRIBUTING.md: add a check in five steps")
        return
    click.echo(
        "then, in the pyproject.toml of its package:\n\n"
        f'[project.entry-points."pullback.checks"]\n{name} = "YOUR_PACKAGE.{_stem(name)}"'
    )


def _require_free(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise TargetError(
            f"`{name}` must be a name for a check",
            expected="small letters in words-with-hyphens",
            got=repr(name),
        )
    if any(registered.rule.name == name for registered in explained()):
        raise TargetError(f"`{name}` must be a name of its own", got="the name of another rule")


def _our_files(name: str, group: str, into: Path) -> dict[Path, str]:
    """The files of a check in the repository of pullback."""
    folders = sorted(path.name for path in (into / RULES).iterdir() if path.is_dir())
    groups = [one for one in folders if not one.startswith("_")]
    if group not in groups:
        raise TargetError(
            "`--group` must be one of the groups of rules",
            expected=", ".join(groups),
            got=repr(group),
        )
    stem = _stem(name)
    facts = {"code": _next_code(group), "name": name, "group": group, "stem": stem}
    return {
        into / RULES / group / f"{stem}.py": RULE.format(page=PAGE, imports=OURS, **facts),
        into / TESTS / group / f"test_{stem}.py": OUR_TEST.format(**facts),
    }


def _their_files(name: str, group: str, into: Path) -> dict[Path, str]:
    """The files of a check of another package."""
    stem = _stem(name)
    facts = {"code": _next_code(group), "name": name, "group": group, "stem": stem}
    return {
        into / f"{stem}.py": RULE.format(page=PAGE, imports=THEIRS, **facts),
        into / f"test_{stem}.py": TEST.format(**facts),
    }


def _stem(name: str) -> str:
    return name.replace("-", "_")


def _next_code(group: str) -> str:
    """The code after the last of a group, `G109` after `G108`; the first of a new one."""
    codes = [one.rule.code for one in explained() if one.rule.group == group]
    last = max(codes, default=f"{group.upper()}0")
    digits = re.search(r"\d*$", last)
    number = digits.group() if digits else ""
    return f"{last.removesuffix(number)}{int(number or 0) + 1:0{len(number)}d}"
