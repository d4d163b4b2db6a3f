"""The page in a real browser: filters, search and copy button work, without an error."""

import shutil
import subprocess

import pytest

from pullback.report.html import render
from tests.report.reports import REPORT, SOUND

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="needs Chromium"),
]

# What a reader does, and how many findings are shown after each step.
STEPS = """
<script>
{
const told = [];
addEventListener("error", event => told.push("error: " + event.message));
const shown = () => [...document.querySelectorAll(".finding")].filter(one => !one.hidden).length;
const search = document.getElementById("search");
function look(words) {
  search.value = words;
  search.dispatchEvent(new Event("input"));
  told.push(shown());
}
setTimeout(() => {
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
  setTimeout(() => {
    document.title = "told: " + [...told, button.textContent, copied.length].join(" ");
  }, 100);
}, 10);
}
</script>
</body>"""


def test_reader_can_filter_search_and_copy(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render([REPORT, SOUND]).replace("</body>", STEPS), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000"]
    done = subprocess.run(
        [BROWSER, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
    )

    copied = len(REPORT.findings[0].repro) + 1  # and a last end of line
    assert f"<title>told: 3 1 0 3 2 3 Copied {copied}</title>" in done.stdout
