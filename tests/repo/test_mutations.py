"""The planted mutations are programs, each other than the package in one place."""

import ast
from pathlib import Path

from tests.repo.mutations import ROOT, drawn_mutations, mutations_of, stages_of


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
