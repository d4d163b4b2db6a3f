"""The graph that autograd keeps, walked from its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

NODES = 20_000  # of a graph that is looked through


def nodes_from(ends: Iterable[Any]) -> Iterator[Any]:
    """The nodes from these on, each once; what follows one is asked for after it was given."""
    waiting = list(ends)
    seen: set[Any] = set()
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
