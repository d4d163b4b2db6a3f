"""Every call of a program is announced once, under the name that the user gave it."""

import pytest
import torch

import pullback as pb
from pullback.capture.watch import is_unit, versions_of, watched
from tests.capture.cases import normal
from tests.capture.functions import cosine, family

F = family(pb.Function)


def heard(program):
    """The calls that a program makes."""
    calls = []

    def listen(call):
        calls.append(call)
        return call.make(*call.args, **call.kwargs)

    with watched(listen):
        program()
    return calls


X = normal(3, 3, grad=False)

CALLS = {
    "mul": lambda: X * 2,
    "rsub": lambda: 1 - X,
    "getitem": lambda: X[0],
    "setitem": lambda: X.clone().__setitem__(0, 1.0),
    "T": lambda: X.T,
    "softmax": lambda: torch.softmax(X, -1),
    "layer_norm": lambda: torch.nn.functional.layer_norm(X, (3,)),
    "rand": lambda: torch.rand(3),
    "sin": lambda: torch.ops.aten.sin(X),
    "cos": lambda: torch.ops.aten.cos.default(X),
    "pullback_capture::cosine": lambda: cosine(X),
    "SavedInput": lambda: F.SavedInput.apply(X),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_has_the_users_name(name):
    assert heard(CALLS[name])[-1 if name == "setitem" else 0].name == name


def test_kinds_are_told_apart():
    calls = heard(lambda: (X * 2, cosine(X), F.SavedInput.apply(X), torch.ops.aten.sin(X)))

    kinds = [call.kind for call in calls if not call.inner]
    assert kinds == ["op", "custom", "function", "op"]


def test_ops_of_forward_are_inner():
    calls = heard(lambda: F.Nested.apply(X))

    assert [(call.name, call.inner) for call in calls] == [
        ("Nested", False),
        ("sin", True),
        ("mul", True),
    ]


def test_inside_of_ops_is_not_announced():
    assert len(heard(lambda: torch.nn.functional.layer_norm(X, (3,)))) == 1


def test_place_is_where_it_was_called():
    def program():
        return X.exp()

    (call,) = heard(program)

    assert call.place == f"test_watch.py:{program.__code__.co_firstlineno + 1}"


def test_watching_ends_with_the_block():
    calls = heard(lambda: X.exp())
    X.exp()

    assert len(calls) == 1


def test_unit_makes_or_changes_tensors():
    x = torch.ones(2)
    before = versions_of([x])
    x.add_(1)

    assert is_unit((x,), [0], [0])
    assert is_unit(None, before, versions_of([x]))
    assert not is_unit((3, "text"), [0], [0])


def test_inference_tensor_has_no_version():
    with torch.inference_mode():
        x = torch.ones(2)

    assert versions_of([x]) == [0]
