"""Every Python block in the documents runs, as one script a file; so do docstring examples."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```python\s*?\n(.*?)^```\s*?$", re.MULTILINE | re.DOTALL)


def script_of(text):
    """The Python blocks of a document as one script, each on the line where it stands."""
    script = ""
    for block in FENCE.finditer(text):
        line = text.count("\n", 0, block.start(1))
        script += "\n" * (line - script.count("\n")) + block.group(1)
    return script


@pytest.fixture
def run_script(warm_python, tmp_path):
    """Run the blocks of a document in a process of its own and an empty folder."""

    def run(text):
        (tmp_path / "document.py").write_text(script_of(text), encoding="utf-8")
        return warm_python("document.py", folder=tmp_path)

    return run


def documents_with_code():
    return [path for path in DOCUMENTS if path.exists() and script_of(path.read_text("utf-8"))]


def modules():
    source = ROOT / "src"
    files = sorted((source / "pullback").rglob("*.py"))
    paths = [path for path in files if ">>> " in path.read_text("utf-8")]
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def documents_or_slow():
    """The documents; those that build C++, measure, or start fresh processes take their time."""
    slow = dict.fromkeys(("emit.md", "judge.md", "plan.md"), pytest.mark.slow)
    return [pytest.param(p, id=p.name, marks=slow.get(p.name, ())) for p in documents_with_code()]


@pytest.mark.parametrize("path", documents_or_slow())
def test_blocks_of_document_run(path, run_script):
    run = run_script(path.read_text("utf-8"))

    assert run.returncode == 0, run.stderr


def test_readme_shows_code_that_runs():
    assert ROOT / "README.md" in documents_with_code()


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name):
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)

    assert results.failed == 0


# ---- the extraction itself ----

PLANTED = """# Title

```python
x = 1
```

```text
not Python
```

```python
assert x == {value}
```
"""


def test_blocks_share_names_in_order(run_script):
    assert run_script(PLANTED.format(value=1)).returncode == 0


def test_failing_block_is_found_at_its_line(run_script):
    run = run_script(PLANTED.format(value=2))

    assert run.returncode == 1
    assert "line 12" in run.stderr


def test_only_python_blocks_are_taken():
    lines = script_of(PLANTED).splitlines()

    assert [line for line in lines if line] == ["x = 1", "assert x == {value}"]


def test_document_without_code_gives_nothing():
    assert script_of("# Title\n\n```bash\nmake demo\n```\n") == ""
