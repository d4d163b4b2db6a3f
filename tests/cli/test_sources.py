"""What a file imports is found without running it."""

import sys

import pytest

from pullback.cli.sources import sources_of

FILES = {
    "ops.py": "import torch\nimport helpers\nfrom kit.inner import thing\n",
    "helpers.py": "def late():\n    import lazy\n",
    "lazy.py": "raise SystemExit\n",
    "unused.py": "",
    "broken.py": "def (",
    "kit/__init__.py": "",
    "kit/inner.py": "from . import beside\nfrom .deep import leaf\nimport broken\n",
    "kit/beside.py": "",
    "kit/deep/__init__.py": "",
    "kit/deep/leaf.py": "import ops\n",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_imports_are_followed_and_nothing_is_run(project):
    found = [path.relative_to(project).as_posix() for path in sources_of(project / "ops.py")]

    assert found == sorted(set(FILES) - {"unused.py"}, key=lambda name: project / name)


def test_installed_package_is_followed_from_its_own_files(project, monkeypatch):
    packages = project / "site-packages"
    files = {
        "mine/__init__.py": "",
        "mine/ops.py": "from mine import helpers",
        "mine/helpers.py": "import other",
        "other.py": "",
    }
    for name, text in files.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text, encoding="utf-8")
    (project / "helpers.py").write_text("import mine.ops", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])

    own = [packages / "mine" / name for name in ("__init__.py", "helpers.py", "ops.py")]
    assert sources_of(packages / "mine" / "ops.py") == tuple(own)
    assert sources_of(project / "helpers.py") == (project / "helpers.py",)


def test_libraries_are_not_the_users(project):
    assert not any("torch" in path.parts for path in sources_of(project / "ops.py"))
