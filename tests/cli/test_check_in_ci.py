"""`pullback check` for a library: settings, baseline, comments, cache, diffs, jobs, formats."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from pullback.cli import check as cli
from pullback.cli import kept
from pullback.cli.changed import files_with_functions
from pullback.cli.main import app

OPS = """\
import torch

from shared_part import factor


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return factor() * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, g):
        return g / 2
"""
WASTEFUL = """\
import torch


class Wasteful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g
"""
NAMES = ("ops_in_ci", "shared_part", "wasteful_in_ci", "other_in_ci", "given_in_ci")


@pytest.fixture(autouse=True)
def forgetting():
    """The modules of the project are new in every test."""
    yield
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with Functions of which `Doubled` is wrong, where the command runs."""
    (tmp_path / "ops_in_ci.py").write_text(OPS, encoding="utf-8")
    (tmp_path / "shared_part.py").write_text("def factor():\n    return 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / ".cache"))
    return tmp_path


def run(*args, select="wrong-factor", cache="--no-cache"):
    for name in NAMES:
        sys.modules.pop(name, None)
    options = ["--profile", "quick", *(["--select", select] if select else [])]
    return CliRunner().invoke(app, ["check", *options, *filter(None, [cache]), *args])


def write(path, text):
    Path(path).write_text(text, encoding="utf-8")


# ---- settings ----


def test_settings_of_project_hold(project):
    write("pyproject.toml", '[tool.pullback]\ntargets = ["*.py"]\nfail-on = "wrong"\n')
    result = run()

    assert result.exit_code == 1
    assert "2 Functions checked, 1 with findings: Doubled." in result.stdout


def test_targets_are_found_from_the_settings_file(project, monkeypatch):
    write("pullback.toml", 'targets = ["ops_in_ci.py:Halved"]\n')
    (project / "inner").mkdir()
    monkeypatch.chdir(project / "inner")
    result = run()

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Halved: nothing found.")


def test_settings_about_nothing_are_told(project):
    write("pullback.toml", 'per-target = {"ops_in_ci:Halve" = {}, "ops_in_ci:Halved" = {}}\n')
    result = run("ops_in_ci.py:Halved")

    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(
        'pullback.toml: per-target."ops_in_ci:Halve" is about nothing:'
        " `ops_in_ci` has no `Halve`; did you mean `ops_in_ci:Halved`?\n"
    )


@pytest.fixture
def package(project):
    """A folder of files: one with Functions, one without, and one that is installed."""
    for name in ("lib", "lib/.venv", "lib/env", "lib/inner"):
        (project / name).mkdir()
    write("lib/env/pyvenv.cfg", "")
    write("lib/plain_in_ci.py", "raise SystemExit('must not be imported')\n")
    for name in ("lib/inner/wasteful_in_ci.py", "lib/.venv/a.py", "lib/env/b.py"):
        write(name, WASTEFUL)


@pytest.mark.parametrize("name", ["lib", "lib/"])
def test_folder_stands_for_its_files_with_functions(package, name):
    result = run(name)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Wasteful: nothing found.")
    assert result.stdout.count("nothing found") == 1


def test_folder_may_stand_in_settings(package, project, monkeypatch):
    write("pullback.toml", 'targets = ["lib"]\n')
    monkeypatch.chdir(project / "lib" / "inner")

    assert run().stdout.startswith("Wasteful: nothing found.")


def test_folder_without_functions_is_told(project):
    (project / "empty").mkdir()
    result = run("empty")

    assert result.exit_code == 2
    assert "`empty` must hold a file that defines a Function" in result.stderr


GIVEN = "import torch\n\n\ndef batch():\n    return (torch.ones(2, 5),)\n"


def test_inputs_of_a_target_stand_in_settings(project, monkeypatch):
    write("wasteful_in_ci.py", WASTEFUL)
    write("given_in_ci.py", GIVEN)
    said = "[per-target.'ops_in_ci.py:Halved']\ninputs = 'given_in_ci.py:batch'\n"
    write("pullback.toml", f"targets = ['ops_in_ci.py:Halved', 'wasteful_in_ci.py']\n{said}")
    (project / "inner").mkdir()
    monkeypatch.chdir(project / "inner")
    halved, wasteful = run().stdout.split("Wasteful: ")

    assert "inputs: x: float32[2, 5]" in halved
    assert "inputs: x: float32[3, 4]" in wasteful


def test_inputs_of_the_command_line_win(project):
    write("given_in_ci.py", GIVEN)
    write("pullback.toml", "inputs = 'nowhere.pt'\n")
    given = run("ops_in_ci.py:Halved", "--inputs", "given_in_ci.py:batch")
    missing = run("ops_in_ci.py:Halved")

    assert given.exit_code == 0, given.output
    assert missing.exit_code == 2
    assert "`nowhere.pt` must be a recording, or name inputs" in missing.stderr


def test_function_of_others_is_declared_from_outside(project):
    write("pullback.toml", '[declare."ops_in_ci:Doubled"]\nsurrogate = ["x"]\n')

    assert run("ops_in_ci.py:Doubled").exit_code == 0
    assert run("ops_in_ci.py:Doubled", "--settings", "pullback.toml").exit_code == 0


WITH_INSIDE = """
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return Doubled.apply(x).sin()


def program(x):
    return Doubled.apply(x).sin()
"""


@pytest.mark.parametrize("name", ["Model", "program"])
def test_settings_hold_for_functions_inside(project, name):
    write("ops_in_ci.py", OPS + WITH_INSIDE)
    command = [f"ops_in_ci.py:{name}", "--example", "torch.randn(3, 4, requires_grad=True)"]
    plain = run(*command, select="gradient", cache="")
    write("pullback.toml", '[declare."ops_in_ci:Doubled"]\nsurrogate = ["x"]\n')
    declared = run(*command, select="", cache="")
    write("pullback.toml", '[per-target."ops_in_ci:Doubled"]\nallow = ["wrong-factor"]\n')
    allowed = [run(*command, select=one, cache="") for one in ("gradient", "wrong-factor")]

    assert "wrong-factor (wrong)" in plain.stdout
    assert declared.exit_code == 0, declared.output
    assert not any("in:       Doubled" in one.stdout for one in allowed)
    assert [one.exit_code for one in allowed] == [0, 0] or name == "program"  # wrong itself


def test_wrong_declaration_is_told(project):
    write("pullback.toml", '[declare."ops_in_ci.py:Doubled"]\nsurrogate = ["y"]\n')
    result = run("ops_in_ci.py:Doubled")

    assert result.exit_code == 2
    assert "E402 declaration: `Doubled.declares['surrogate']` must be names of in" in result.stderr


def test_target_has_settings_of_its_own(project):
    write("pullback.toml", '[per-target."ops_in_ci:Doubled"]\nallow = ["wrong-factor"]\n')
    result = run("ops_in_ci.py", select="gradient")

    assert result.exit_code == 0
    assert result.stdout.startswith("Doubled: nothing found. 8 rules, ")
    assert "\nHalved: nothing found. 9 rules, " in result.stdout


@pytest.mark.parametrize("rule", ["unused-parameter", "model"])
def test_rule_of_models_may_stand_in_settings(project, rule):
    write("pullback.toml", f'allow = ["{rule}"]\n')
    allowed = run("ops_in_ci.py:Halved")
    write("pullback.toml", "")
    selected = run("ops_in_ci.py:Halved", select=rule)

    assert allowed.exit_code == 0, allowed.output
    assert "E404 rule-name: `select` must name a rule that can be tried here" in selected.stderr


def test_mistake_in_settings_ends_with_code_two(project):
    write("pullback.toml", "jbos = 2\n")
    result = run("ops_in_ci.py")

    assert result.exit_code != 0
    assert "E420 settings: `jbos` in `pullback.toml` must be" in str(result.exception)


def test_unknown_rule_in_settings_is_told_once(project):
    write("pullback.toml", '[per-file."*.py"]\nallow = ["wrong-facter"]\n')
    result = run("ops_in_ci.py")

    assert result.exit_code == 2
    assert result.stderr.count("`wrong-facter` must be the name, code or group") == 1


def test_settings_are_shown(project):
    write("pullback.toml", "jobs = 2\n")
    result = run("--show-settings")

    assert result.exit_code == 0
    assert "jobs = 2                            # pullback.toml\n" in result.stdout
    assert 'profile = "quick"                   # command line\n' in result.stdout


def test_selection_that_is_all_allowed_is_refused(project):
    result = run("ops_in_ci.py", "--allow", "wrong-factor")

    assert result.exit_code == 2
    assert result.stderr == (
        "E404 rule-name: `allow` must leave a rule to try\n"
        "  expected: one of wrong-factor that is not allowed\n"
        "  got:      allow: wrong-factor\n"
    )


def test_time_limit_leaves_rules_out(project):
    result = run("ops_in_ci.py:Halved", "--time", "1e-9", select="")

    assert "the time of 1e-09 s was up" in result.stdout


# ---- what counts ----


def test_only_what_is_bad_enough_fails(project):
    write("wasteful_in_ci.py", WASTEFUL)

    assert run("wasteful_in_ci.py", select="unread-saved").exit_code == 0
    assert run("wasteful_in_ci.py", "--fail-on", "wasteful", select="unread-saved").exit_code == 1
    assert run("ops_in_ci.py", "--fail-on", "wrong").exit_code == 1


def test_baseline_lets_only_new_findings_fail(project):
    written = run("ops_in_ci.py", "--write-baseline")
    known = run("ops_in_ci.py", "--baseline", "pullback-baseline.json")
    write("ops_in_ci.py", "\n\n# moved\n" + OPS.replace("return g / 2", "return g"))
    new = run("ops_in_ci.py", "--baseline", "pullback-baseline.json")

    assert written.exit_code == 0
    assert "Written to pullback-baseline.json: 1 finding." in written.stdout
    assert known.exit_code == 0
    assert "  known: 1 finding more, in pullback-baseline.json\n" in known.stdout
    assert new.exit_code == 1
    assert "2 Functions checked, 1 with findings: Halved." in new.stdout


def test_baseline_shrinks(project):
    run("ops_in_ci.py", "--write-baseline")
    write("ops_in_ci.py", OPS.replace("return 3 * g", "return 2 * g"))
    result = run("ops_in_ci.py", "--baseline", "pullback-baseline.json")
    run("ops_in_ci.py", "--baseline", "pullback-baseline.json", "--write-baseline")

    assert result.exit_code == 0
    assert (
        "pullback-baseline.json: no longer found: ops_in_ci.py:Doubled: G103 wrong-factor, "
        "gradient of `x`; --write-baseline removes it\n"
    ) in result.stdout
    assert json.loads(Path("pullback-baseline.json").read_text())["findings"] == []


def test_baseline_follows_a_file_that_is_renamed(project):
    run("ops_in_ci.py", "--write-baseline")
    Path("ops_in_ci.py").rename("other_in_ci.py")
    renamed = run("other_in_ci.py", "--baseline", "pullback-baseline.json")
    write("other_in_ci.py", OPS.replace("3 * g", "2 * g"))
    mended = run("other_in_ci.py", "--baseline", "pullback-baseline.json")

    assert renamed.exit_code == 0
    assert "no longer found" not in renamed.stdout
    assert "no longer found: ops_in_ci.py:Doubled: G103 wrong-factor" in mended.stdout


@pytest.mark.parametrize(
    ("broken", "options", "told"),
    [
        ("raise RuntimeError", (), "1 could not be checked: ops_in_ci.py."),
        (OPS, ("--allow", "wrong-fctor"), ""),
        (OPS, ("--example", "no_such_name"), ""),
    ],
    ids=["file that cannot be imported", "unknown rule", "example that cannot be made"],
)
def test_baseline_keeps_what_could_not_be_looked_for(project, broken, options, told):
    write(
        "pullback.toml", 'baseline = "known.json"\ntargets = ["ops_in_ci.py", "wasteful_in_ci.py"]'
    )
    write("wasteful_in_ci.py", WASTEFUL)
    run("--write-baseline")
    known = Path("known.json").read_text()
    write("ops_in_ci.py", broken)
    checked = run(*options)
    written = run("--write-baseline", *options)

    assert "no longer found" not in checked.stdout
    assert written.exit_code == 2
    assert told in written.stdout
    assert ("Written to" in written.stdout) == bool(told)
    assert Path("known.json").read_text() == known


def test_baseline_that_cannot_be_written_loses_nothing_found(project):
    result = run("ops_in_ci.py", "--write-baseline", "--baseline", "no/such/known.json", "--json")
    said = json.loads(result.stdout)

    assert result.exit_code == 2
    assert [len(report["findings"]) for report in said["reports"]] == [1, 0]
    assert [error["code"] for error in said["errors"]] == ["E421"]
    assert "Written to" not in result.output


def test_target_without_a_name_is_told(project):
    result = run("")

    assert result.exit_code == 2
    assert "a target must have a name" in result.stderr


def test_baseline_is_not_made_by_a_command_that_is_mistaken(project):
    run("ops_in_ci.py", "--write-baseline", "--allow", "wrong-fctor")

    assert not Path("pullback-baseline.json").exists()


def test_baseline_of_settings_is_beside_them(project, monkeypatch):
    write("pullback.toml", 'baseline = "known.json"\ntargets = ["ops_in_ci.py"]\n')
    (project / "inner").mkdir()
    monkeypatch.chdir(project / "inner")
    run("--write-baseline")

    assert (project / "known.json").is_file()
    assert run().exit_code == 0


def test_missing_baseline_is_told(project):
    result = run("ops_in_ci.py", "--baseline", "none.json")

    assert "E421 baseline: `none.json` must be a baseline" in str(result.exception)


def test_comment_allows_a_finding(project):
    allow = "  # pullback: allow[wrong-factor] it is meant to"
    write("ops_in_ci.py", OPS.replace("Function):", f"Function):{allow}", 1))
    result = run("ops_in_ci.py")

    assert result.exit_code == 0
    assert "  allowed: wrong-factor, at ops_in_ci.py:6: it is meant to\n" in result.stdout


def test_idle_comment_is_reported(project):
    write("ops_in_ci.py", OPS.replace("g / 2", "g / 2  # pullback: allow[wrong-factor] old"))
    result = run("ops_in_ci.py:Halved")

    assert result.exit_code == 0
    assert "ops_in_ci.py:23: allow[wrong-factor] allows nothing: remove it\n" in result.stdout


# ---- less work ----


def count_checks(monkeypatch):
    calls = []
    real = cli.checked
    monkeypatch.setattr(cli, "checked", lambda *a, **k: calls.append(a[0].name) or real(*a, **k))
    return calls


def test_unchanged_target_is_not_checked_again(project, monkeypatch):
    first = run("ops_in_ci.py", cache="")
    calls = count_checks(monkeypatch)
    second = run("ops_in_ci.py", cache="")

    assert calls == []
    assert second.exit_code == first.exit_code == 1
    assert second.stdout.count("the result of an earlier check") == 2
    kept = [line for line in second.stdout.splitlines() if "earlier check" not in line]
    assert kept == first.stdout.splitlines()


@pytest.mark.parametrize(
    "change", ["source", "dependency", "library", "settings", "inputs", "no cache"]
)
def test_changed_target_is_checked_again(project, monkeypatch, change):
    run("ops_in_ci.py:Halved", cache="")
    calls = count_checks(monkeypatch)
    options, cache = [], ""
    if change == "source":
        write("ops_in_ci.py", OPS + "\n# another line\n")
    if change == "dependency":
        write("shared_part.py", "def factor():\n    return 2.0\n")
    if change == "library":  # another version of one that is installed
        (project / "lib" / "kernels-2.0.dist-info").mkdir(parents=True)
        monkeypatch.syspath_prepend(project / "lib")
    if change == "settings":
        options = ["--allow", "wrong-gradient"]
    if change == "inputs":
        options = ["--example", "torch.ones(3)"]
    if change == "no cache":
        cache = "--no-cache"
    run("ops_in_ci.py:Halved", *options, cache=cache)

    assert calls == ["Halved"]


def test_result_is_kept_from_one_installation_to_the_next(project, monkeypatch, tmp_path):
    run("ops_in_ci.py:Halved", cache="")
    again = tmp_path / "again" / "pullback"
    shutil.copytree(kept.PACKAGE, again, copy_function=shutil.copyfile)  # at other times
    monkeypatch.setattr(kept, "PACKAGE", again)
    kept._own_version.cache_clear()
    calls = count_checks(monkeypatch)
    run("ops_in_ci.py:Halved", cache="")
    (again / "pages.py").write_text("# another version", encoding="utf-8")
    kept._own_version.cache_clear()
    run("ops_in_ci.py:Halved", cache="")
    kept._own_version.cache_clear()

    assert calls == ["Halved"]


def git(*args):
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, *args], check=True, capture_output=True)


needs_git = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


@needs_git
def test_diff_decides_what_is_checked(project):
    write("other_in_ci.py", WASTEFUL)
    write("setup.py", "raise SystemExit('not to be run')\n")
    git("init")
    git("add", "*.py")
    git("commit", "-m", "all")
    nothing = run("--changed")
    write("setup.py", "raise SystemExit('not to be run at all')\n")
    write("ops_in_ci.py", OPS + "\n")
    touched = run("--changed")
    of_targets = run("ops_in_ci.py", "other_in_ci.py", "--changed=HEAD", "--json")

    assert nothing.exit_code == 0
    assert nothing.stdout.startswith("Nothing to check")
    assert "2 Functions checked, 1 with findings: Doubled." in touched.stdout
    reports = json.loads(of_targets.stdout)["reports"]
    assert [report["subject"] for report in reports] == ["Doubled", "Halved"]


MADE = "import torch\n\n\n@torch.library.custom_op('a::b', mutates_args=())\ndef b(x): ...\n"
LOOKS = {
    "assigned.py": "from torch.library import custom_op\nb = custom_op('a::b', len)\n",
    "decorated.py": MADE,
    "in_a_branch.py": "if True:\n    class A(torch.autograd.Function): ...\n",
    "renamed_base.py": "from torch.autograd import Function as Base\nclass A(Base): ...\n",
}
PLAIN = {
    "broken.py": "class A(Function:\n",
    "inside.py": "def f():\n    class A(torch.autograd.Function): ...\n",
    "plain.py": "class A(torch.nn.Module): ...\n\n\n@torch.no_grad()\ndef f(): ...\n",
}


def test_files_with_functions_and_ops_are_known_by_their_look(project):
    for name, text in {**LOOKS, **PLAIN}.items():
        write(name, text)
    found = files_with_functions(Path(name).resolve() for name in (*LOOKS, *PLAIN))

    assert list(found) == sorted(LOOKS)


def test_what_is_excluded_is_left_out_unless_it_is_named(project):
    write("old_part_in_ci.py", "raise SystemExit('not to be run')\nclass A(Function): ...\n")
    write("pullback.toml", 'targets = ["*_in_ci.py"]\nexclude = ["old_*.py", "*:Doubled"]\n')
    whole = run("--json")
    named = run("ops_in_ci.py:Doubled", "--json")

    assert whole.exit_code == 0
    assert [one["subject"] for one in json.loads(whole.stdout)["reports"]] == ["Halved"]
    assert [one["subject"] for one in json.loads(named.stdout)["reports"]] == ["Doubled"]


@needs_git
@pytest.mark.parametrize("branch", ["main", "orphan"])
def test_everything_has_changed_before_the_first_commit(project, branch):
    git("init")
    if branch == "orphan":
        git("commit", "--allow-empty", "-m", "of another branch")
        git("checkout", "--orphan", branch)
    git("add", "ops_in_ci.py")
    result = run("--changed")

    assert result.exit_code == 1
    assert "2 Functions checked, 1 with findings: Doubled." in result.stdout


@needs_git
def test_what_depends_on_a_change_is_checked(project):
    git("init")
    git("add", "*.py")
    git("commit", "-m", "all")
    write("shared_part.py", "def factor():\n    return 2.0\n")
    result = run("ops_in_ci.py:Doubled", "--changed")

    assert result.exit_code == 1


@needs_git
def test_unknown_commit_is_told(project):
    git("init")
    result = run("--changed", "ops_in_ci.py")

    assert result.exit_code == 2
    assert "`ops_in_ci.py` must be a commit, a branch or a tag" in result.stderr
    assert "put the targets before --changed" in result.stderr


@needs_git
def test_folder_without_git_is_told(project, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(project.parent))
    result = run("--changed")

    assert result.exit_code == 2
    assert "--changed must be used in a git repository" in result.stderr


def test_jobs_say_what_one_says(project):
    alone = run("ops_in_ci.py", "--json")
    together = run("ops_in_ci.py", "--json", "--jobs", "2")

    assert together.exit_code == alone.exit_code == 1

    def without_time(result):
        document = json.loads(result.stdout)
        return [{**report, "seconds": 0} for report in document["reports"]]

    assert without_time(together) == without_time(alone)


def test_shards_share_the_targets(project):
    parts = [json.loads(run("ops_in_ci.py", "--json", "--shard", s).stdout) for s in ("1/2", "2/2")]

    assert [[r["subject"] for r in part["reports"]] for part in parts] == [["Doubled"], ["Halved"]]


# ---- formats ----


def test_formats_stand_side_by_side(project):
    files = {"sarif": "a.sarif", "junit": "a.xml", "json": "a.json", "github": "a.txt"}
    options = [f"--output-format={kind}={name}" for kind, name in files.items()]
    result = run("ops_in_ci.py", *options, "--html", "page")

    assert result.exit_code == 1
    assert result.stdout.startswith("G103 wrong-factor")
    assert json.loads(Path("a.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "G103"
    assert ElementTree.parse("a.xml").getroot().find(".//failure") is not None
    assert json.loads(Path("a.json").read_text())["ok"] is False
    assert Path("a.txt").read_text().startswith("::error file=ops_in_ci.py,line=12,")
    assert "wrong-factor" in Path("page/index.html").read_text()


def test_two_documents_for_one_screen_are_refused(project):
    result = run("ops_in_ci.py", "--json", "--github")

    assert result.exit_code == 2
    assert "The screen cannot show json and github at once." in result.stderr


def test_remarks_are_in_every_format(project):
    write("ops_in_ci.py", OPS.replace("g / 2", "g / 2  # pullback: allow[wrong-factor] old"))
    told = "allow[wrong-factor] allows nothing: remove it"
    as_json = json.loads(run("ops_in_ci.py:Halved", "--json").stdout)
    as_lines = run("ops_in_ci.py:Halved", "--github").stdout

    assert as_json["remarks"] == [{"place": "ops_in_ci.py:23", "text": told}]
    assert as_lines == f"::notice file=ops_in_ci.py,line=23,title=pullback::{told}\n"
