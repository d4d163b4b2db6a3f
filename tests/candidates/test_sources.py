"""What is judged travels by its name or by value, and code is recognised wherever it stands."""

import torch

from pullback.candidates.sources import fingerprint, fingerprints_of, sendable


def longer(x, w):
    y = x @ w
    z = torch.tanh(y) + torch.sigmoid(y) * torch.softmax(y, -1)
    return torch.softmax(z * 3 + y, -1).sum(0)


def test_names_are_not_loaded_here():
    source = sendable("nowhere.py:f", "candidate")

    assert (source.title, source.name, source.value) == ("f", "nowhere.py:f", b"")


def test_values_come_back():
    source = sendable(lambda x: x + 1, "candidate")

    assert source.loaded()(1) == 2


def test_the_same_code_has_the_same_fingerprint():
    names = {"torch": torch}
    exec("def other(x, w):\n y = x @ w\n return torch.tanh(y)", names)
    exec("def again(x, w):\n y = x @ w\n return torch.tanh(y)", names)

    assert fingerprint(names["other"].__code__) == fingerprint(names["again"].__code__)
    assert fingerprint(names["other"].__code__) != fingerprint(longer.__code__)


def test_short_functions_have_none():
    assert fingerprints_of(longer) == [fingerprint(longer.__code__)]
    assert fingerprints_of(torch.sin) == []
