"""The numbers of the package count what they say."""

import ast

import pytest

from tests.repo import house

PLANTED = '''
def f(x):
    """A docstring
    of two lines."""

    # a comment
    y = (
        x
        + 1
    )
    return y
'''


def test_code_lines_leave_out_docstring_and_comments():
    (function,) = ast.parse(PLANTED).body

    assert house.code_lines(function) == 4


def test_handlers_of_any_exception_are_counted():
    tree = ast.parse("try: ...\nexcept Exception: ...\ntry: ...\nexcept ValueError: ...\n")

    assert house.broad_handlers(tree) == 1


@pytest.mark.slow
def test_table_has_a_number_in_each_row():
    rows = dict(house.rows())

    assert all(any(c.isdigit() for c in text) for text in rows.values())
    assert rows["`._version`"] == "1 in 1 modules"
