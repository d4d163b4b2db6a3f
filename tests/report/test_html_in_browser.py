"""The page in a real browser: filters, search and copy button work, without an error."""

import pytest

from pullback.report.html import render
from tests.report.browser import needs_browser, told_by
from tests.report.reports import REPORT, SOUND

pytestmark = [pytest.mark.slow, needs_browser]

# What a reader does, and how many findings are shown after each step.
STEPS = """
const shown = () => [...document.querySelectorAll(".finding")].filter(one => !one.hidden).length;
const search = document.getElementById("search");
function look(words) {
  search.value = words;
  search.dispatchEvent(new Event("input"));
  told.push(shown());
}
told.push(shown());
look("cotangent-layout");
look("no such words");
look("");
const box = document.querySelector("input[data-severity=wrong]");
box.click(); told.push(shown());
box.click(); told.push(shown());
let copied = "";  // in the place of the system's clipboard, which answers when it likes
navigator.clipboard.writeText = async text => { copied = text; };
const button = document.querySelector(".copy button");
button.click();
await new Promise(done => setTimeout(done, 100));
told.push(button.textContent, copied.length);
"""


def test_reader_can_filter_search_and_copy(tmp_path):
    copied = len(REPORT.findings[0].repro) + 1  # and a last end of line

    assert told_by(render([REPORT, SOUND]), STEPS, tmp_path) == f"3 1 0 3 2 3 Copied {copied}"
