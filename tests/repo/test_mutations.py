"""The planted mutations are programs, each other than the package in one place."""

import ast
from pathlib import Path

from tests.repo import mutations
from tests.repo.mutations import ROOT, drawn_mutations, found_by, mutations_of, stages_of


def test_mutation_changes_one_place_of_a_program(tmp_path):
    mutation = drawn_mutations(1, seed=0)[0]
    copy = tmp_path / mutation.path
    copy.parent.mkdir(parents=True)
    copy.write_bytes((ROOT / mutation.path).read_bytes())

    mutation.apply(tmp_path)

    assert ast.dump(ast.parse(copy.read_bytes())) != ast.dump(
        ast.parse((ROOT / mutation.path).read_bytes())
    )


def test_every_mutation_of_a_file_can_be_parsed(tmp_path):
    path = Path("src/pullback/errors.py")
    for mutation in mutations_of(path):
        copy = tmp_path / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
        mutation.apply(tmp_path)

        ast.parse(copy.read_bytes())


def test_mutations_of_a_seed_are_always_the_same():
    assert drawn_mutations(3, seed=1) == drawn_mutations(3, seed=1)


def test_tests_of_the_module_run_first():
    stages = stages_of(Path("src/pullback/graph/cost.py"))

    assert stages == [["tests/graph/test_cost.py"], ["tests/graph"], ["tests"]]


def test_module_without_tests_of_its_own_has_those_that_name_it():
    rules = stages_of(Path("src/pullback/check/rules/launch/launches.py"))
    trials = stages_of(Path("src/pullback/check/subject/trials.py"))

    assert "tests/check/rules/launch/test_racing_kernel.py" in rules[0]
    assert "tests/check/subject/test_retrial.py" in trials[0]


def failing_in_turn(monkeypatch, *results):
    """Give these results in turn instead of running tests; the list of those asked for."""
    asked, left = [], list(results)
    monkeypatch.setattr(mutations, "_copy_tree", lambda copy: copy.mkdir())
    monkeypatch.setattr(mutations.Mutation, "apply", lambda mutation, copy: None)
    monkeypatch.setattr(mutations.shutil, "copy2", lambda old, new: None)

    def run(copy, tests, marks):
        asked.append(tests)
        return left.pop(0)

    monkeypatch.setattr(mutations, "_failed", run)
    return asked


PLANTED = mutations.Mutation(Path("src/pullback/graph/cost.py"), 1, 0, 0, "")


def test_mutation_is_found_by_a_test_that_passes_without_it(monkeypatch):
    failing_in_turn(monkeypatch, "tests/a.py::one", "")

    assert found_by(PLANTED, marks="", near=True) == "tests/a.py::one"


def test_failure_without_the_mutation_finds_nothing(monkeypatch):
    always = "tests/a.py::always"
    asked = failing_in_turn(monkeypatch, always, always, "")

    assert found_by(PLANTED, marks="", near=True) == ""
    assert asked[2] == ["tests/graph/test_cost.py", f"--deselect={always}"]


def test_tests_that_did_not_end_are_told_apart(monkeypatch):
    failing_in_turn(monkeypatch, "", mutations.UNENDED)

    assert found_by(PLANTED, marks="", near=False) == "did not end: tests/graph"
