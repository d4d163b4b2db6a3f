"""Which rules find which planted fault: a gold table, so that a change in what is caught shows.

One line per fault of `benchmarks/faults`, with the names of the rules that find it at the inputs an
ordinary author would pass. The default run looks at every twelfth; the slow one at all of them, and
writes the table anew with `--update-gold`.
"""

import importlib
from pathlib import Path

import pytest

import pullback as pb
from benchmarks.faults.case import planted, sound
from pullback.check.rules import all_rules

GOLD = Path(__file__).parent / "gold" / "matrix.txt"
CASES = {case.name: case for case in planted()}
SAMPLE = sorted(CASES)[::16]

# Faults that show by chance or by the machine: which rules meet them differs between runs.
BY_CHANCE = {"crash", "hang", "eats-memory", "exits", "endless-recursion", "thread-unsafe"}


def found(name):
    """The names of the rules that find a fault."""
    report = pb.check(CASES[name].target, CASES[name].inputs)
    return sorted({finding.rule.name for finding in report.findings})


def table():
    """The gold table: the rules by the name of the fault."""
    lines = GOLD.read_text().splitlines()
    return {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}


def test_table_has_a_line_for_each_fault():
    assert sorted(table()) == sorted(CASES)


def test_table_names_rules_that_there_are():
    known = {registered.rule.name for registered in all_rules()} | {"crash"}

    assert {rule for rules in table().values() for rule in rules} <= known


# Rules that none of these faults shows, each with a fault of its own test that does.
SHOWN_ELSEWHERE = {
    "forward-fails-with-grad": "resized",
    "func-differs": "identity",
    "gradient-overflow": "inf over inf",
    "hessian-asymmetry": "coarse in one",
    "hooks-bypassed": "raises",
    "same-tensor-in-place": "overwrites",
    "subclass-input": "by class",
    "wrong-at-batch": "fast path",
    "wrong-fake": "another shape",
    "zero-cotangent": "division",
}


NEED_MORE = {"differs-from-reference"}
"""Rules that a check of the function alone does not try: this one needs a reference."""
# Kernels: faults of their own are in `benchmarks/faults/kernels`.
NEED_MORE |= {"out-of-bounds-read", "out-of-bounds-write"}
NEED_MORE |= {"depends-on-tuning", "racing-kernel", "wrong-on-stream"}


def test_every_rule_shows_a_fault():
    shown = {rule for rules in table().values() for rule in rules}

    assert {r.rule.name for r in all_rules()} - shown == set(SHOWN_ELSEWHERE) | NEED_MORE


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", SHOWN_ELSEWHERE)
def test_rule_names_a_fault_of_its_own_test(name):
    group = next(r.rule.group for r in all_rules() if r.rule.name == name)
    tests = importlib.import_module(f"tests.check.rules.{group}.test_{name.replace('-', '_')}")
    target, inputs, _ = tests.PLANTED[SHOWN_ELSEWHERE[name]]
    inputs = inputs() if callable(inputs) else inputs

    report = pb.check(target, inputs, profile="quick")

    assert name in {finding.rule.name for finding in report.findings}


def test_nearly_every_fault_is_found():
    missed = [name for name, rules in table().items() if not rules]

    assert len(missed) <= 0.02 * len(CASES)


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", SAMPLE)
def test_fault_is_found_by_the_same_rules(name):
    if CASES[name].fault in BY_CHANCE:
        assert found(name)
        return

    assert found(name) == table()[name]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_table_is_unchanged(request):
    now = {name: found(name) for name in sorted(CASES)}
    if request.config.getoption("--update-gold"):
        GOLD.parent.mkdir(exist_ok=True)
        lines = (f"{name}: {' '.join(rules)}".rstrip() for name, rules in now.items())
        GOLD.write_text("\n".join(lines) + "\n")
    by_chance = {name for name, case in CASES.items() if case.fault in BY_CHANCE}

    assert [name for name in sorted(by_chance) if not now[name]] == []
    assert {name: rules for name, rules in now.items() if name not in by_chance} == {
        name: rules for name, rules in table().items() if name not in by_chance
    }


@pytest.mark.quick(5)
@pytest.mark.parametrize("case", sound()[::24], ids=lambda case: case.name)
def test_sound_function_has_no_finding(case):
    assert pb.check(case.target, case.inputs).findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("case", sound(), ids=lambda case: case.name)
def test_every_sound_function_has_no_finding(case):
    assert pb.check(case.target, case.inputs).findings == ()
