"""Rules about the rules: each is named, documented, tested both ways, and imports no other rule."""

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pullback.check import rules
from pullback.check.explaining import Cause
from pullback.check.finding import PROFILES, Rule, Severity

HERE = Path(__file__).resolve().parent
SECTIONS = ("What it checks", "Why it matters", "Fails", "Passes", "Cannot see")

MODULES = [
    importlib.import_module(registered.module)
    for registered in rules.all_rules()
    if registered.module.startswith("pullback.")
]
every_rule = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.RULE.code)


def faults_of(module):
    """What is wrong with the form of a rule, in words."""
    rule = module.RULE
    *_, group, file = module.__name__.split(".")
    page = (module.__doc__ or "").strip()
    head = page.splitlines()[0] if page else ""
    found = tuple(line for line in page.splitlines() if line and not line.startswith(" "))
    tests = {
        "its name is not two words or more": re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name),
        "its name is not its file's": file == rule.name.replace("-", "_"),
        "its group is not its folder's": rule.group == group,
        "its code is no letter and three digits": re.fullmatch(r"[A-Z]\d{3}", rule.code),
        "its profile is unknown": rule.profile in PROFILES,
        "its severity is unknown": rule.severity in Severity,
        "its first line is no sentence": re.fullmatch(r"[A-Z`].*[^ .]\.", head),
        "its sections are not in order": found[1:] == SECTIONS,
        "a section is empty": all(text.strip() for text in _texts(page)),
    }
    return [fault for fault, passed in tests.items() if not passed]


def _texts(page):
    """The texts under the sections of a page."""
    return re.split(rf"^(?:{'|'.join(SECTIONS)})$", page, flags=re.MULTILINE)[1:]


@every_rule
def test_repros_and_causes_have_their_form(module):
    forms = (*getattr(module, "REPROS", ()), *getattr(module, "RAISING", ()))

    assert all(map(callable, forms))
    assert all(isinstance(cause, Cause) for cause in getattr(module, "EXPLAINS", ()))


def test_file(module):
    *_, group, file = module.__name__.split(".")
    return HERE / group / f"test_{file}.py"


test_file.__test__ = False


def missing_in(source):
    """Which of the two tables the tests of a rule do not have, or have and do not use."""
    tree = ast.parse(source)
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return [t for t in ("SOUND", "PLANTED") if t not in assigned or names.count(t) < 2]


def imports_of(source):
    """The modules that a source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@every_rule
def test_rule_has_the_form(module):
    assert faults_of(module) == []


@every_rule
def test_rule_is_tested_both_ways(module):
    path = test_file(module)

    assert path.exists()
    assert missing_in(path.read_text("utf-8")) == []


@every_rule
def test_rule_imports_no_other_rule(module):
    source = Path(module.__file__).read_text("utf-8")

    assert [name for name in imports_of(source) if name.startswith(rules.__name__)] == []


@pytest.mark.parametrize("field", ["code", "name"])
def test_no_two_rules_share(field):
    values = [getattr(module.RULE, field) for module in MODULES]

    assert sorted(values) == sorted(set(values))


def test_rules_are_about_sixty():
    assert len(MODULES) >= 60


# ---- the scanners themselves ----

PAGE = """Gradients must be right.

What it checks
    All.

Why it matters
    Training.

Fails
    return 2 * g

Passes
    return g

Cannot see
    Nothing.
"""


def planted(page=PAGE, name="pullback.check.rules.shape.wrong_size", **changes):
    fields = {"code": "S301", "name": "wrong-size", "group": "shape"} | changes
    return SimpleNamespace(RULE=Rule(**fields), __doc__=page, __name__=name)


def test_sound_rule_has_no_fault():
    assert faults_of(planted()) == []


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        (planted(name="pullback.check.rules.shape.wrong"), "its name is not its file's"),
        (planted(group="shapes"), "its group is not its folder's"),
        (planted(code="S31"), "its code is no letter and three digits"),
        (planted(profile="slow"), "its profile is unknown"),
        (planted(PAGE.replace("Fails", "Wrong")), "its sections are not in order"),
        (planted(PAGE.replace("    Nothing.\n", "")), "a section is empty"),
        (planted(PAGE.replace("right.", "right", 1)), "its first line is no sentence"),
    ],
)
def test_planted_rule_is_caught(module, fault):
    assert fault in faults_of(module)


@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("SOUND = {}\nPLANTED = {}\nuse(SOUND, PLANTED)\n", []),
        ("SOUND = {}\nuse(SOUND)\n", ["PLANTED"]),
        ("SOUND = {}\nPLANTED = {}\nuse(PLANTED)\n", ["SOUND"]),
    ],
)
def test_missing_table_is_seen(source, missing):
    assert missing_in(source) == missing


def test_import_of_rule_is_seen():
    source = "from pullback.check.rules.shape import empty_input\nimport torch\n"

    assert list(imports_of(source)) == ["pullback.check.rules.shape", "torch"]
