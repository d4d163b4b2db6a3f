"""What was written into is named, and memory that two tensors share is seen."""

import pytest
import torch

from pullback.check.findings.facts import Input, Number
from pullback.check.watching.snapshot import Snapshot, share_memory

BUFFER = torch.arange(24.0).view(4, 6)
COMPLEX = torch.complex(BUFFER.double(), BUFFER.double())

SHARED = {
    "itself": (BUFFER, BUFFER),
    "row": (BUFFER, BUFFER[2]),
    "transposed": (BUFFER.t(), BUFFER[1:]),
    "windows": (BUFFER[:, :4], BUFFER[:, 2:]),
    "detached": (BUFFER, BUFFER.detach()),
    "by numpy": (BUFFER, torch.from_numpy(BUFFER.numpy()[3:])),
    "expanded": (BUFFER[0, 0].expand(5), BUFFER),
    "imaginary part": (COMPLEX, COMPLEX.imag),
    "other dtype": (BUFFER, BUFFER.view(torch.int32)),
}

APART = {
    "copies": (BUFFER, BUFFER.clone()),
    "halves": (BUFFER[:, :3], BUFFER[:, 3:]),
    "in turns": (BUFFER[:, ::2], BUFFER[:, 1::2]),
    "both parts": (COMPLEX.real, COMPLEX.imag),
    "empty": (BUFFER, BUFFER[:0]),
    "sparse": (BUFFER, BUFFER.to_sparse()),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_memory_is_seen(name):
    one, two = SHARED[name]

    assert (share_memory(one, two), share_memory(two, one)) == (True, True)


@pytest.mark.parametrize("name", APART)
def test_memory_apart_is_not_shared(name):
    one, two = APART[name]

    assert (share_memory(one, two), share_memory(two, one)) == (False, False)


def test_first_change_is_told():
    x = torch.tensor([1.0, torch.nan, 3.0])
    snapshot = Snapshot([(Input("y"), torch.ones(2)), (Input("x"), x)])
    x[2] = 4

    (change,) = snapshot.changes()

    assert (change.thing, change.place, change.index) == (Input("x"), 1, (2,))
    assert (change.before, change.after) == (Number(3.0), Number(4.0))


def test_freed_memory_is_a_change():
    x = torch.ones(3)
    snapshot = Snapshot([(Input("x"), x)])
    x.untyped_storage().resize_(0)

    (change,) = snapshot.changes()

    assert change.is_freed


def test_nan_that_stays_is_no_change():
    x = torch.tensor([torch.nan])
    snapshot = Snapshot([("x", x)])

    assert list(snapshot.changes()) == []
