"""A private name of torch is used in one module only: a new torch then breaks one place.

So are private attributes of its objects, of those that are known to be some of its own.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.repo.figures import parsed

SOURCE = Path(__file__).resolve().parents[2] / "src"

ATTRIBUTES = {"_schema", "_version", "_cdata", "_autograd_meta", "_backward_hooks"}
"""Of ops, tensors and storages."""


def aliases_of(tree):
    """What each imported name of a module stands for: `{"F": "torch.nn.functional"}`."""
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                top = name.name.split(".")[0]
                aliases[name.asname or top] = name.name if name.asname else top
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    return aliases


def dotted(node, aliases):
    """The full name that an expression `a.b.c` stands for, or an empty string."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, aliases)
        return owner and f"{owner}.{node.attr}"
    return ""


def is_private(name):
    """Whether a full name leads through something private of torch."""
    parts = name.split(".")
    dunder = name.endswith("__")
    return parts[0] == "torch" and any(p.startswith("_") for p in parts[1:]) and not dunder


def private_names(source):
    """The private names of torch that a module imports or refers to, each as long as it is written.

    `import torch._C` alone is not a use; what is taken from it later is.
    """
    tree = parsed(source)
    aliases = aliases_of(tree)
    used = {dotted(node, aliases) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    private = {name for name in used if is_private(name)}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def shared_names(sources):
    """The private names that more than one module uses, with those modules."""
    users = defaultdict(list)
    for path, source in sorted(sources.items()):
        for name in private_names(source):
            users[name].append(path)
    return {name: paths for name, paths in users.items() if len(paths) > 1}


def test_no_private_name_is_shared():
    sources = {str(p.relative_to(SOURCE)): p.read_text("utf-8") for p in SOURCE.rglob("*.py")}

    assert sources
    assert shared_names(sources) == {}


def private_attributes(source):
    """The private attributes of torch's objects that a module reads."""
    nodes = list(ast.walk(parsed(source)))
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    named = [node.args for node in nodes if isinstance(node, ast.Call) and len(node.args) > 1]
    read |= {args[1].value for args in named if isinstance(args[1], ast.Constant)}
    return read & ATTRIBUTES


def test_private_attribute_is_read_in_one_module():
    users = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in private_attributes(path.read_text("utf-8")):
            users[name].append(str(path.relative_to(SOURCE)))

    assert users
    assert {name: paths for name, paths in users.items() if len(paths) > 1} == {}


def test_planted_private_attribute_is_found():
    assert private_attributes("x._version\n") == {"_version"}
    assert private_attributes('getattr(op, "_schema", None)\n') == {"_schema"}
    assert private_attributes("x.shape\n") == set()


# ---- the scanner itself ----

WAYS = {
    "attribute": "import torch\ntorch._C._engine(1)\n",
    "module": "import torch._C\ntorch._C._engine(1)\n",
    "from torch": "from torch import _C\n_C._engine(1)\n",
    "from module": "from torch._C import _engine\n",
    "alias": "import torch._C as c\nc._engine(1)\n",
    "inside a function": "def f():\n    import torch\n    torch._C._engine(1)\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_private_name_is_found_every_way(way):
    assert private_names(WAYS[way]) == {"torch._C._engine"}


def test_private_part_of_public_module_counts():
    assert private_names("from torch.utils import _pytree as p\np.tree_map(f, x)\n") == {
        "torch.utils._pytree.tree_map"
    }


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.autograd.grad(y, x)\n",
        "import torch\ntorch.__version__\n",
        "import numpy as np\nnp._core.x\n",
        "def f(self):\n    return self._C._engine\n",
    ],
    ids=["public", "dunder", "another library", "our own attribute"],
)
def test_public_names_are_left_alone(source):
    assert private_names(source) == set()


def test_planted_second_user_is_caught():
    sources = {"a.py": WAYS["module"], "b.py": WAYS["from module"], "c.py": "import torch\n"}

    assert shared_names(sources) == {"torch._C._engine": ["a.py", "b.py"]}


def test_different_names_may_be_used_apart():
    sources = {"a.py": WAYS["module"], "b.py": "from torch._C import _other\n"}

    assert shared_names(sources) == {}
