"""No module changes what another one defines: who is above says so through a function below.

Imports show who knows whom, and `lint-imports` sees that they go downwards. An assignment to an
attribute of an imported module or class goes the other way unseen: the layer below then behaves
as a layer above has decided, and does not say so. A layer that lets others decide something has a
function for that (`function.unwritten.register_derivation`, `function.call_watch.watch_calls`).
"""

import ast
from pathlib import Path

import pytest

from tests.repo.figures import parsed

SOURCE = Path(__file__).resolve().parents[2] / "src"

ALLOWED = {
    # Functions of PyTorch's have no hook for calls of `apply`; put back when nobody watches.
    ("pullback/capture/patch.py", "torch.autograd.function.Function.apply"),
    # A trace that fails is told of by our own error; put back after the trace.
    ("pullback/capture/fake.py", "torch._subclasses.fake_tensor.log.disabled"),
    # A setting of PyTorch's, which is changed by assignment; put back after the run.
    ("pullback/check/watching/dispatch.py", "torch.utils.deterministic.fill_uninitialized_memory"),
    # Groups and handles of PyTorch's have no hook for collectives; put back after the check.
    ("pullback/check/ranks/collectives.py", "torch.distributed.ProcessGroup.method"),
    ("pullback/check/ranks/collectives.py", "torch.distributed.Work.method"),
    # What PyTorch loads would keep the group that is there; put back once it is loaded.
    ("pullback/check/ranks/early.py", "torch.distributed.GroupMember.WORLD"),
    # Triton chooses for itself how kernels are launched; put back after the call.
    ("pullback/check/kernels/choices.py", "triton.runtime.autotuner.Autotuner.run"),
    ("pullback/check/kernels/choices.py", "triton.runtime.jit.JITFunction.run"),
    # A worker that is about to lose its GPU tells of each launch; it ends with that.
    ("pullback/check/kernels/launches.py", "triton.runtime.jit.JITFunction.run"),
    # What a thread of a repro raises is not printed; put back after the repro.
    ("pullback/check/repro/trying.py", "threading.excepthook"),
    # The program that is recorded reads the command line that it is given.
    ("pullback/cli/record.py", "sys.argv"),
    # A worker prints into a pipe, and reads nothing; it ends with that.
    ("pullback/check/processes/confine.py", "sys.stdin"),
    ("pullback/check/processes/confine.py", "sys.stdout"),
    ("pullback/check/processes/confine.py", "sys.stderr"),
    # What the user's code prints does not stand in a document; put back before that is printed.
    ("pullback/cli/aside.py", "sys.stdout"),
}
"""Each changes something of another library, which has no other way; nothing of ours is here."""


def imported_names(tree):
    """What each imported name stands for, and each other name for one of them."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.split(".")[0]
                names[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = owner_of(getattr(node, "value", None), names)
        if value:
            names |= {one.id: value for one in targets if isinstance(one, ast.Name)}
    return names


def owner_of(node, names):
    """The full name of an expression that is one imported thing: `a.b`, `a.b[0] if c else a`."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        owner = owner_of(node.value, names)
        return owner and f"{owner}.{node.attr}"
    if isinstance(node, ast.IfExp):
        return owner_of(node.body, names) or owner_of(node.orelse, names)
    if isinstance(node, ast.Subscript):
        return owner_of(node.value, names)
    return ""


def changed_by(node, names):
    """The full names of what a statement or call changes of something imported."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("setattr", "delattr"):
        owner, name = owner_of(node.args[0], names), ast.unparse(node.args[1]).strip("'\"")
        return [f"{owner}.{name}"] if owner else []
    else:
        return []
    flat = [one for t in targets for one in (t.elts if isinstance(t, ast.Tuple) else [t])]
    owned = [(one, owner_of(one.value, names)) for one in flat if isinstance(one, ast.Attribute)]
    return [f"{owner}.{one.attr}" for one, owner in owned if owner]


def changes(source):
    """What a module changes of what it imports."""
    tree = parsed(source)
    names = imported_names(tree)
    return sorted({one for node in ast.walk(tree) for one in changed_by(node, names)})


def test_nothing_of_another_module_is_changed():
    found = {
        (str(path.relative_to(SOURCE)), name.replace(".__mro__", ""))
        for path in SOURCE.rglob("*.py")
        for name in changes(path.read_text("utf-8"))
    }

    assert found == ALLOWED
    assert not [name for _, name in ALLOWED if name.startswith("pullback")]


# ---- the scanner itself ----

WAYS = {
    "module": "from pullback.function import dispatch\ndispatch.apply = 1\n",
    "its alias": "from pullback.function import dispatch\nd: Any = dispatch\nd.apply = 1\n",
    "inside a function": "import a.b as c\ndef f():\n    c.x += 1\n",
    "imported late": "def f():\n    from a import b\n    b.x = 1\n",
    "class": "from a import B\nB.x = 1\n",
    "one of several": "from a import B\nC, B.x = 1, 2\n",
    "setattr": "from a import B\nsetattr(B, 'x', 1)\n",
    "delattr": "from a import B\ndel B.x\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_change_it_is_seen(way):
    assert len(changes(WAYS[way])) == 1


FINE = {
    "its own": "class Own():\n    x = 1\nOwn.x = 2\n",
    "an object": "from a import make\nmade = make()\nmade.x = 1\n",
    "self": "class Own():\n    def f(self):\n        self.x = 1\n",
}


@pytest.mark.parametrize("way", FINE)
def test_what_is_a_modules_own_may_change(way):
    assert changes(FINE[way]) == []
