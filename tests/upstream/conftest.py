"""The server whose children run the work of a test, one for each process of tests."""

import os

import pytest

from tests.upstream.isolated import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    folder = os.environ.get("PULLBACK_CACHE_DIR") or str(tmp_path_factory.mktemp("compiled"))
    server = Server(PULLBACK_CACHE_DIR=folder)
    yield server
    server.close()
