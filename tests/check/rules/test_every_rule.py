"""Rules about the rules: each is named, documented, tested both ways, and imports no other rule."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from pullback.check import rules
from pullback.check.findings.explaining import Cause
from pullback.check.findings.finding import PROFILES, Rule, Severity
from pullback.check.findings.registered import Registered

HERE = Path(__file__).resolve().parent
SECTIONS = ("What it checks", "Why it matters", "Fails", "Passes", "Cannot see")

OWN = [one for one in rules.all_rules() if one.module.startswith("pullback.")]
MODULES = sorted({one.module for one in OWN})
every_rule = pytest.mark.parametrize("own", OWN, ids=lambda own: own.rule.code)
every_file = pytest.mark.parametrize("module", MODULES, ids=lambda name: name.rpartition(".")[2])


def faults_of(own, is_only=True):
    """What is wrong with the form of a rule, in words; `is_only`: it has a file of its own."""
    rule, page = own.rule, own.page
    *_, group, file = own.module.split(".")
    head = page.splitlines()[0] if page else ""
    found = tuple(line for line in page.splitlines() if line and not line.startswith(" "))
    tests = {
        "its name is not two words or more": re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name),
        "its name is not its file's": not is_only or file == rule.name.replace("-", "_"),
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
def test_repros_and_causes_have_their_form(own):
    assert all(map(callable, (*(own.repros or ()), *(own.raising or ()))))
    assert all(isinstance(cause, Cause) for cause in own.explains)


def test_file(own):
    return HERE / own.rule.group / f"test_{own.rule.name.replace('-', '_')}.py"


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
def test_rule_has_the_form(own):
    is_only = sum(other.module == own.module for other in OWN) == 1

    assert faults_of(own, is_only) == []


@every_rule
def test_rule_is_tested_both_ways(own):
    path = test_file(own)

    assert path.exists()
    assert missing_in(path.read_text("utf-8")) == []


@every_file
def test_rule_imports_no_other_rule(module):
    source = Path(importlib.import_module(module).__file__).read_text("utf-8")

    assert [name for name in imports_of(source) if name.startswith(rules.__name__)] == []


@every_file
def test_several_rules_stand_in_the_order_of_their_codes(module):
    several = getattr(importlib.import_module(module), "RULES", ())
    codes = [one.rule.code for one in several]

    assert codes == sorted(codes)


@pytest.mark.parametrize("field", ["code", "name"])
def test_no_two_rules_share(field):
    values = [getattr(own.rule, field) for own in OWN]

    assert sorted(values) == sorted(set(values))


def test_rules_are_about_sixty():
    assert len(OWN) >= 60


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
    return Registered(Rule(**fields), iter, page.strip(), name)


def test_sound_rule_has_no_fault():
    assert faults_of(planted()) == []


@pytest.mark.parametrize(
    ("own", "fault"),
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
def test_planted_rule_is_caught(own, fault):
    assert fault in faults_of(own)


def test_one_of_several_need_not_have_the_name_of_the_file():
    several = planted(name="pullback.check.rules.shape.wrong_at_shapes")

    assert faults_of(several, is_only=False) == []


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
