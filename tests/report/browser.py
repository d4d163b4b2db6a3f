"""A page in headless Chromium: what a reader does to it, and what is told in its title."""

import re
import shutil
import subprocess

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")

needs_browser = pytest.mark.skipif(not BROWSER, reason="needs Chromium")

# `told` is filled by the steps; an error of the page's own stands in it first.
FRAME = """
<script>
window.told = [];
addEventListener("error", event => told.push("error: " + event.message));
addEventListener("unhandledrejection", event => told.push("error: " + event.reason));
</script>
"""
LAST = """
<script>
(async () => {
  try { %s } catch (error) { told.push("error: " + error); }
  document.title = "told: " + told.join(" ");
})();
</script>
</body>"""


def told_by(page, steps, tmp_path, *, width=1200, is_dark=False, is_real_time=False):
    """What steps (JavaScript, may `await`) tell of a page; also what it prints as errors."""
    head, body = page.split("<body>", 1)
    before, _ = body.rsplit("</body>", 1)
    file = tmp_path / "page.html"
    file.write_text(f"{head}<body>{FRAME}{before}{LAST % steps}</html>", encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0"]
    options += [] if is_real_time else ["--virtual-time-budget=6000"]
    options += ["--blink-settings=preferredColorScheme=0"] if is_dark else []
    done = subprocess.run(
        [BROWSER, *options, "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = re.search(r"<title>told: (.*?)</title>", done.stdout)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert console == []
    assert found, done.stdout[-500:]
    return found[1]
