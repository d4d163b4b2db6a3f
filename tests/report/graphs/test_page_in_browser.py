"""The page of a graph in a real browser: search, click, zoom, detail, copy, dark and light."""

import pytest
import torch

import pullback as pb
from pullback.report.graphs.page import render
from tests.report.browser import needs_browser, told_by
from tests.report.graphs.graphs import SMALL, large

pytestmark = [pytest.mark.slow, needs_browser]

AT = """
const at = id => document.getElementById(id), tell = (...facts) => told.push(...facts);
const look = words => {
  at("search").value = words;
  at("search").dispatchEvent(new Event("input"));
  tell(at("found").textContent.replace(" ", "-") || "all");
};
const has = text => at("details").textContent.includes(text);
"""


def test_reader_can_search_and_step_through_what_is_found(tmp_path):
    steps = """
    look("mul"); look("kept"); look("net.py:4 sin"); look("no such op");
    look("grad_x");
    at("search").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    tell(document.querySelector("#details h2").textContent, cy.$(":selected").length);
    look(""); tell(cy.$(".faded").length);
    """

    told = told_by(render(SMALL), AT + steps, tmp_path)

    assert told == "2-found 2-found 2-found 0-found 1-found grad_x 1 all 0"


def test_reader_can_click_zoom_and_copy(tmp_path):
    steps = """
    tell(has("Kept for backward"));
    cy.$("#n1").emit("tap");
    tell(document.querySelector("#details h2").textContent, has("backward reads it for grad_x"));
    let copied = ""; navigator.clipboard.writeText = async text => { copied = text; };
    at("copy").click(); await new Promise(done => setTimeout(done, 50));
    tell(at("copy").textContent, copied.includes("op: sin"));
    const before = cy.zoom(); at("in").click(); tell(cy.zoom() > before);
    at("fit").click();
    cy.emit("tap"); tell(has("Kept for backward"));
    cy.$("#n1").emit({ type: "mouseover", originalEvent: { clientX: 10, clientY: 10 } });
    tell(at("tip").hidden, at("tip").textContent.includes("sin"));
    """

    told = told_by(render(SMALL), AT + steps, tmp_path)

    assert told == "true h true Copied true true true false true"


def test_reader_can_see_calls_or_ops(tmp_path):
    steps = """
    tell(cy.nodes().length); at("units").click();
    tell(cy.nodes().length, cy.edges("[cut = 1]").length > 0);
    cy.$("#backward0").emit("tap"); tell(has("cos"));
    at("ops").click(); tell(cy.nodes().length);
    """

    assert told_by(render(large(40)), AT + steps, tmp_path).split()[0] == "40"
    assert told_by(render(SMALL), AT + steps, tmp_path) == "6 6 true true 6"


SCHEMES = {True: "rgb(13,17,23)", False: "rgb(255,255,255)"}


@pytest.mark.parametrize("is_dark", SCHEMES)
@pytest.mark.parametrize("width", [500, 900, 1600])
def test_page_is_light_or_dark_as_the_system_and_fits(tmp_path, is_dark, width):
    steps = """
    tell(getComputedStyle(document.body).backgroundColor.replaceAll(" ", ""));
    tell(document.documentElement.scrollWidth <= innerWidth);
    """

    told = told_by(render(SMALL), AT + steps, tmp_path, width=width, is_dark=is_dark)

    assert told == f"{SCHEMES[is_dark]} true"


def test_plan_comes_first_and_the_graph_is_behind_it(tmp_path):
    steps = """
    const shown = () => { const { x, y, width } = at("drawing").getBoundingClientRect();
      return !!document.elementFromPoint(x + width / 2, y + 30).closest("#plan"); };
    tell(shown()); at("show-plan").click(); tell(shown());
    """
    x = torch.linspace(-1, 1, 5, requires_grad=True)
    plan = pb.plan(lambda x: x.sin().exp(), x, backends=["eager"], budget=1)

    assert told_by(render(SMALL, plan), AT + steps, tmp_path) == "true false"


def test_five_thousand_nodes_stay_responsive(tmp_path):
    steps = """
    const slices = [];
    const work = () => { for (let k = 0; k < 20; k++) {
      const start = performance.now();
      for (let i = 0, sum = 0; i < 1e7; i++) sum += i * i % 7;
      slices.push(performance.now() - start);
    } };
    const timed = (name, step) => {
      const start = performance.now(); step(); tell(name, Math.round(performance.now() - start));
    };
    work();
    timed("draw", () => at("ops").click());
    timed("search", () => { at("search").value = "v4999"; find(); });
    timed("zoom", () => { for (let i = 0; i < 10; i++) at("in").click(); });
    timed("paint", () => cy.png({ scale: .1 }));
    work();
    const mean = slices.reduce((a, b) => a + b) / slices.length;
    tell("crowd", Math.ceil(mean / Math.min(...slices)));
    tell("nodes", cy.nodes().length);
    """

    words = told_by(render(large(5000)), AT + steps, tmp_path, is_real_time=True).split()
    told = dict(zip(words[::2], map(int, words[1::2]), strict=True))

    assert told.pop("nodes") == 5000
    crowd = told.pop("crowd")  # how much longer the same work takes where others work, too
    assert told["search"] < 1000 * crowd
    assert told["zoom"] < 1000 * crowd
    assert told["draw"] < 10_000 * crowd
    assert told["paint"] < 10_000 * crowd, told
