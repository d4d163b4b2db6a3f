"""The backends by name: which there are, and why one cannot be used."""

import pytest

from pullback.errors import BackendError
from pullback.run import BACKENDS, absences, available, backend_of
from pullback.run.backends import eager


def test_every_backend_says_whether_it_is_there():
    assert tuple(absences()) == BACKENDS
    assert "eager" in available()


@pytest.mark.parametrize("name", available())
def test_backend_at_hand_can_specialise(name):
    assert callable(backend_of(name).specialise)


def test_unknown_backend_is_refused():
    with pytest.raises(BackendError, match="must be the name of a backend"):
        backend_of("abacus")


def test_absent_backend_is_refused_with_its_reason(monkeypatch):
    monkeypatch.setattr(eager.BACKEND, "absence", lambda: "no abacus here")

    with pytest.raises(BackendError, match=r'got: +"eager": no abacus here'):
        backend_of("eager")
