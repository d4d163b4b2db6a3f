"""The figures of the package count what they say."""

import ast

from tests.repo import figures

PLANTED = """
def few(a, b, c, d): ...
def many(a, b, *, c, d, e): ...
class Some:
    def method(self, a, b, c, d): ...
"""


def test_parameters_are_counted_without_self():
    tree = ast.parse(PLANTED)

    assert figures.functions_with_many(tree) == 1


def test_private_names_and_agreed_ones_are_not_public():
    tree = ast.parse("def check(): ...\ndef _own(): ...\nclass Shown: ...\nx = 1\n")

    assert list(figures.public_names(tree)) == ["Shown"]


def test_chain_of_imports_is_as_long_as_it_is():
    assert figures.depth_of("pullback.errors") == 1
    assert figures.depth_of("pullback.capture.joint") > figures.depth_of("pullback.graph.parts")
    assert "pullback.errors" in figures.imports_of(figures.trees()["pullback.derive.returned"])


def test_name_stands_in_one_module():
    assert figures.defined_twice() == {}


def test_name_in_two_modules_is_found(monkeypatch):
    planted = ast.parse("def planted(): ...\nclass Own: ...\n")
    monkeypatch.setattr(
        figures,
        "trees",
        lambda: {"pullback.graph.dead": planted, "pullback.run.nodes.node": planted},
    )

    assert set(figures.defined_twice()) == {"planted", "Own"}


def test_table_has_a_row_for_each_folder(capsys):
    figures.main()
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    folders = {path.name for path in figures.PACKAGE.iterdir() if (path / "__init__.py").exists()}

    assert folders <= set(rows)
    assert "all" in rows
