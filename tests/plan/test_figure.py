"""The figure is SVG that parses, with a mark for every row."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pullback.errors import PlanFileError
from pullback.plan.figure import svg, write_figure
from pullback.plan.measurements import AS_WRITTEN
from tests.plan.fakes import made_up

SVG = "{http://www.w3.org/2000/svg}"


def test_every_row_is_a_mark_with_its_facts():
    tree = ElementTree.fromstring(svg(made_up()))

    titles = [title.text for title in tree.iter(f"{SVG}title")]
    assert len(titles) == 8
    assert any("hybrid" in title and "80 us" in title for title in titles)
    assert len(list(tree.iter(f"{SVG}path"))) == 2  # the inexact ones are crosses


def test_marks_stay_inside_their_panel():
    tree = ElementTree.fromstring(svg(made_up()))

    for panel in tree.findall(f"{SVG}g"):
        marks = list(panel.iter(f"{SVG}circle"))
        assert len(marks) == 4  # three rows, and a ring around the chosen one
        assert all(0 < float(one.get("cx")) < 380 for one in marks)
        assert all(0 < float(one.get("cy")) < 300 for one in marks)


@pytest.mark.parametrize("count", [1, 2])
def test_words_stay_inside_the_figure(count):
    tree = ElementTree.fromstring(svg(made_up(sized=made_up().sized[:count])))

    width, height = float(tree.get("width")), float(tree.get("height"))
    for word in tree.findall(f"{SVG}text"):
        assert float(word.get("x")) + 7 * len(word.text) < width
        assert float(word.get("y")) < height


def test_names_are_escaped():
    assert "&lt;lambda&gt;" in svg(made_up(program="<lambda>"))


def test_unmeasured_plan_has_an_empty_figure():
    small = replace(made_up().sized[0], rows=(), chosen=AS_WRITTEN)

    assert "nothing was measured" in svg(made_up(sized=(small,)))


def test_figure_is_written_whole(tmp_path):
    write_figure(made_up(), tmp_path / "plan.svg")

    assert (tmp_path / "plan.svg").read_text("utf-8") == svg(made_up())
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]


def test_other_format_is_refused(tmp_path):
    with pytest.raises(PlanFileError) as caught:
        write_figure(made_up(), tmp_path / "plan.png")

    assert str(caught.value).splitlines()[1:] == [
        "  expected: a name that ends in .svg",
        "  got:      '.png'",
    ]
    assert list(tmp_path.iterdir()) == []
