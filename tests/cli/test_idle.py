"""Keys of the settings that are about nothing are told; those of what is there are not."""

import pytest

from pullback.cli.identity import Identity
from pullback.cli.idle import idle_keys
from pullback.cli.settings import Settings

MET = Identity("pkg/ops.py:Gate", ("pkg/ops.py:Gate", "pkg.ops:Gate"), "pkg/ops.py")


@pytest.fixture
def told(tmp_path):
    """What is said of settings, in a folder with two files of which one was met."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "ops.py").write_text("class Gate: ...\n")
    (tmp_path / "pkg" / "other.py").write_text("class Spike: ...\n")
    (tmp_path / "pkg" / "lazy.py").write_text("def __getattr__(name): ...\n")

    def tell(**tables):
        origins = dict.fromkeys(tables, "pyproject.toml")
        settings = Settings(root=tmp_path, origins=origins, **tables)
        return [str(remark) for remark in idle_keys(settings, [MET])]

    return tell


@pytest.mark.parametrize("key", ["pkg/ops.py", "pkg/*.py", "*", "pkg/other.py"])
def test_a_file_that_is_there_is_not_told(told, key):
    assert told(per_file={key: {}}) == []


def test_a_file_that_is_not_there_is_told(told):
    assert told(per_file={"pkg/op.py": {}}) == [
        'pyproject.toml: per-file."pkg/op.py" is about nothing: no file is called so;'
        " did you mean `pkg/ops.py`?"
    ]


@pytest.mark.parametrize(
    "key",
    [
        "pkg.ops:Gate",
        "*:Gate",
        "pkg/*.py:*",
        "pkg.other:Spike",
        "pkg/other.py:Spike",
        "pkg.lazy:Made",
        "torch.nn.functional:gelu",
        "torch._C:Generator",
        "torch.ops.my.op",
    ],
)
def test_a_target_that_may_be_there_is_not_told(told, key):
    assert told(per_target={key: {}}, declare={key: {}}) == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("pkg.ops:Gat", "`pkg.ops` has no `Gat`; did you mean `pkg.ops:Gate`?"),
        ("pkg/other.py:Sharp", "`pkg/other.py` has no `Sharp`"),
        ("nowhere.spikes:Spike", "there is no module `nowhere.spikes`"),
        ("nowhere.py:Spike", "no file is called `nowhere.py`"),
        ("Spike", "a target is called module:Name or file.py:Name"),
    ],
)
def test_a_target_that_is_not_there_is_told(told, key, why):
    assert told(declare={key: {}}) == [f'pyproject.toml: declare."{key}" is about nothing: {why}']
