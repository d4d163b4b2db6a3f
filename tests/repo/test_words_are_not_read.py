"""Findings are data: outside of the reports, nothing reads the words that are made of them."""

import ast

import pytest

from tests.repo.figures import PACKAGE, parsed

# What is told in words: of a finding, a skip, an example, a crash or a rule.
WORDS = {
    *("at", "got", "expected", "why", "fix", "inputs"),
    *("reason", "label", "how", "sentence"),
}
# And of a composition, a plan or a report as a whole.
TEXTS = {"explain", "summary"}
METHODS = {
    *("startswith", "endswith", "removeprefix", "removesuffix"),
    *("partition", "rpartition", "split", "splitlines", "find"),
}
# Where words are shown, and may be looked at.
READERS = ("report", "cli")

PLANTED = {
    "contained": 'is_slow = "collector only" in finding.got',
    "compared": 'is_freed = finding.got == "freed"',
    "begun": 'is_state = finding.at.startswith("the state of")',
    "cut": 'name = context.finding.got.partition(":")[0]',
    "searched": 'found = re.search(r"output (\\d+)", self.finding.at)',
    "matched": "found = RAISED.match(finding.got)",
    "any of some": "is_view = any(text in finding.got for text in ACCIDENTS)",
    "explained": "lines = made.explain().splitlines()",
    "explained and cut": 'why = made.explain().removeprefix("nested: ")',
    "inputs": 'is_laid = f"cotangent {label}" in context.finding.inputs',
}
SOUND = {
    "shown": 'text = f"{finding.at}: {finding.got}"',
    "there": "has_reason = bool(finding.why)",
    "typed": 'is_slow = finding.about.detail is Leak.SLOW and "x" in finding.about.needed',
    "others": "row = call.inputs.find(saved)",
    "of PyTorch": 'is_view = "view size" in finding.about.raised.text',
}


def readings(source):
    """The lines that read words."""
    return [node.lineno for node in ast.walk(parsed(source)) if _reads(node)]


def _reads(node):
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            return any(map(_are_words, node.comparators))
        has_text = any(isinstance(s, ast.Constant) and isinstance(s.value, str) for s in sides)
        return has_text and any(map(_are_words, sides))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in METHODS:
        return _are_words(node.func.value)
    if node.func.attr in ("match", "search", "fullmatch", "sub", "findall", "finditer"):
        return any(map(_are_words, node.args))
    return False


def _are_words(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in TEXTS
    if not isinstance(node, ast.Attribute) or node.attr not in WORDS:
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return node.attr != "inputs" or name == "finding"  # those of a capture or a call are tensors


@pytest.mark.parametrize("name", PLANTED)
def test_planted_reading_is_seen(name):
    assert readings(PLANTED[name]) == [1]


@pytest.mark.parametrize("name", SOUND)
def test_use_that_reads_nothing_is_none(name):
    assert readings(SOUND[name]) == []


def test_nothing_reads_words_outside_of_reports():
    paths = [p for p in PACKAGE.rglob("*.py") if p.relative_to(PACKAGE).parts[0] not in READERS]
    found = {str(path.relative_to(PACKAGE)): readings(path.read_text("utf-8")) for path in paths}

    assert len(paths) > 100
    assert {path: lines for path, lines in found.items() if lines} == {}
