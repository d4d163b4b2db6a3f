"""The longer texts of emitted files, as templates."""

import jinja2
import pytest
import torch

from pullback.emit.filling import template_function, template_text


def test_value_that_is_missing_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        template_text("inputs.py", has_spread=False)


def test_text_is_source_and_not_escaped():
    text = template_text(
        "inputs.py", has_spread=False, precision="", lines="    x = 'a' < 'b'", returned="x"
    )

    assert text.splitlines()[2:] == ["    x = 'a' < 'b'", "    return x"]


def test_function_of_a_template_runs_here():
    few = template_function("few.py", sums=2, listed=3)

    assert few(torch.ones(3)).tolist() == [1, 1, 1]
    assert few(torch.ones(4)).tolist() == [3, 7]
