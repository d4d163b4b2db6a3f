"""Messages arrive whole, in order, and never hold up the reader."""

import os

import pytest

from pullback.check.processes.wire import GarbledError, Inbox, Outbox, PrintedOutput

TOKEN = b"12345678"


@pytest.fixture
def wire():
    """The inbox, the outbox, and the end to write to."""
    (said, end), (printed, other) = os.pipe(), os.pipe()
    has_ended = []
    inbox = Inbox(said, printed, TOKEN, lambda: bool(has_ended), PrintedOutput())
    yield inbox, Outbox(end, TOKEN), end, has_ended
    for one in (said, end, printed, other):
        try:
            os.close(one)
        except OSError:
            continue


def test_messages_come_in_order(wire):
    inbox, outbox, *_ = wire
    outbox.send([1, "two"])
    outbox.send(None)

    assert [inbox.recv(), inbox.recv()] == [[1, "two"], None]
    assert not inbox.poll(0)


def test_half_a_message_is_none_yet(wire):
    inbox, _, end, _ = wire
    os.write(end, TOKEN + (100).to_bytes(8, "little") + b"half")

    assert not inbox.poll(0.01)


@pytest.mark.parametrize("written", [b"x", b"1234567x", TOKEN + (3).to_bytes(8, "little") + b"abc"])
def test_garbage_is_seen(wire, written):
    inbox, _, end, _ = wire
    os.write(end, written)

    assert inbox.poll(1)
    with pytest.raises(GarbledError):
        inbox.recv()


@pytest.mark.parametrize("is_closed", [True, False])
def test_end_comes_after_the_last_message(wire, is_closed):
    """Also where another process holds the pipe open, if the worker has ended."""
    inbox, outbox, end, has_ended = wire
    outbox.send("last")
    if is_closed:
        os.close(end)
    else:
        has_ended.append(True)

    assert inbox.recv() == "last"
    with pytest.raises(EOFError):
        inbox.recv()
