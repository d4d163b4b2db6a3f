"""The page holds all it needs, and nothing of a graph can break out of it."""

import json
import re
from dataclasses import replace

import pytest
import torch

import pullback as pb
from pullback.plan.measurements import PlanCandidate
from pullback.report.graphs.page import LIBRARIES, SCRIPTS, plan_page, render
from pullback.report.notebook import show_classes, shown_class
from tests.report.graphs.graphs import SMALL

X = torch.ones(3, requires_grad=True)


def test_page_asks_for_nothing_from_elsewhere():
    page = render(SMALL)

    assert not re.search(
        r"""(src|href)=["']""", re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    )
    assert "@import" not in page
    assert len(page) < 700_000


def test_data_of_the_page_is_the_graph():
    (data,) = re.findall(r'id="data">(.*?)</script>', render(SMALL), flags=re.S)

    assert json.loads(data) == json.loads(json.dumps(SMALL.plain()))
    assert "<" not in data


def test_names_cannot_end_the_script():
    assert "</script><b>mul" not in render(SMALL)


def test_every_library_has_its_licence():
    for name in SCRIPTS:
        licence = LIBRARIES / f"{name.removesuffix('.min.js')}.LICENSE"
        assert "Permission is hereby granted" in licence.read_text("utf-8")


def test_page_is_written_and_shown(tmp_path):
    page = pb.draw(lambda x: x.sin() ** 2, X)

    page.save(tmp_path / "page.html")

    assert (tmp_path / "page.html").read_text("utf-8") == page.html
    assert page._repr_html_().startswith("<iframe srcdoc=")
    assert "GraphPage of" in repr(page)


def test_plan_is_a_page_with_every_candidate():
    plan = pb.plan(lambda x: x.sin().exp(), X, backends=["eager"], budget=1)
    page = plan_page(plan, X)

    assert len(page.graph.nodes) > 2
    for row in plan.evidence.sized[0].rows:
        assert row.label in page.html
    assert "<svg" in page.html
    assert plan._repr_html_().startswith("<iframe")
    assert "must come with examples" in plan.to_html()


@pytest.mark.parametrize("save", ["inputs", "everything"])
def test_graph_of_a_plan_keeps_what_the_plan_does(save):
    plan = pb.plan(lambda x: x.sin().exp(), X, backends=["eager"], budget=0.1)
    chosen = PlanCandidate("combined", backend="eager", save=save)
    sized = (*plan.evidence.sized[:-1], replace(plan.evidence.sized[-1], chosen=chosen))
    plan.evidence = replace(plan.evidence, sized=sized)
    graph = plan_page(plan, X).graph

    assert graph.facts["save"] == save
    assert [n.name for n in graph.nodes if n.saved] == {
        "inputs": ["x"],
        "everything": ["x", "out"],
    }[save]


class Formatter:
    def __init__(self):
        self.known = {}

    def for_type(self, kind, show):
        self.known[kind] = show


class Shell:
    def __init__(self):
        self.display_formatter = self
        self.formatters = {"text/html": Formatter()}


def test_notebook_shows_derived_classes_alone():
    made = pb.derive(lambda x: x.sin() ** 2, X)
    shell = Shell()

    pb.load_ipython_extension(shell)

    ((kind, show),) = shell.formatters["text/html"].known.items()
    assert isinstance(made, kind)
    assert show(made).startswith("<iframe")
    assert show(torch.autograd.Function) is None
    assert (show_classes, shown_class) != (None, None)
