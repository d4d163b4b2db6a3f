"""What `docs/ci.md` prints is what works: settings, workflow and hook."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pullback.cli.main import app
from pullback.cli.toml import DECLARED, GENERAL, TABLES, read_settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
OPS = ROOT / "examples" / "my_ops.py"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_printed_settings_are_read(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    settings = read_settings(tmp_path / "pyproject.toml")

    assert sorted(settings) == sorted(key.replace("-", "_") for key in GENERAL)


def test_every_key_is_on_the_page():
    assert [key for key in (*GENERAL, *TABLES, *DECLARED) if key not in PAGE] == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with its targets in the settings, where the command runs."""
    shutil.copy(OPS, tmp_path / "ops_of_project.py")
    text = '[tool.pullback]\ntargets = ["ops*.py"]\nselect = ["wrong-factor"]\nprofile = "quick"\n'
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("ops_of_project", None)


def test_printed_workflow_runs(project):
    workflow = yaml.safe_load(blocks("yaml")[0])
    steps = workflow["jobs"]["check"]["steps"]
    (command,) = [s["run"] for s in steps if s.get("run", "").startswith("pullback ")]
    used = [step["with"] for step in steps if "with" in step]
    result = CliRunner().invoke(app, shlex.split(command)[1:])

    assert result.exit_code == 0, result.output
    assert "3 Functions checked, 0 with findings." in result.stdout
    for written in [w.get("sarif_file") or w.get("path") for w in used[-2:]]:
        assert (project / written).exists()


def test_hook_is_the_one_on_the_page():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (repo,) = yaml.safe_load(blocks("yaml")[1])["repos"]

    assert [one["id"] for one in repo["hooks"]] == [hook["id"]]
    assert hook["entry"] == "pullback check --changed"
    assert hook["language"] == "system"


def test_hook_has_the_form_that_is_asked_for():
    checker = [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"]
    done = subprocess.run(checker, cwd=ROOT, capture_output=True, text=True, check=False)
    if "No module named" in done.stderr:
        pytest.skip("needs pre-commit")

    assert done.returncode == 0, done.stdout + done.stderr
