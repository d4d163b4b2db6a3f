"""Simplification: tables of rewrites, from those that keep every bit to those that read best.

- `EXACT`: the same numbers bit for bit, signs of zeros and infinities included. Only the payload of
  a NaN may differ, which IEEE leaves open.
- `READABLE`: all of these, and the formulas of fused ops, sums in another order and zeros of either
  sign: the same mathematics, other roundings in the last place.
"""

from __future__ import annotations

from pullback.graph.copies import Source, graph_of, output_count_of, with_graph
from pullback.graph.cse import cse
from pullback.graph.rewrite import Table, rewrite
from pullback.graph.simplify import (
    activations,
    broadcast,
    convolutions,
    indexing,
    losses,
    negation,
    noise,
    norms,
    numbers,
    order,
    pieces,
    products,
    sizes,
    sums,
    zeros,
)

EXACT: Table = (
    *noise.TABLE,
    *numbers.TABLE,
    *negation.TABLE,
    *broadcast.TABLE,
    *sums.TABLE,
    *products.TABLE,
    *sizes.TABLE,
)

READABLE: Table = (
    *activations.TABLE,
    *norms.TABLE,
    *losses.TABLE,
    *indexing.TABLE,
    *convolutions.TABLE,
    *zeros.TABLE,
    *pieces.TABLE,
    *order.TABLE,
    *EXACT,
)


def simplify(source: Source, table: Table = EXACT, *, across_phases: bool = False) -> Source:
    """`source` rewritten by `table` and its common subexpressions merged, until nothing changes.

    Arguments:
        source: A joint graph, or a plain graph of the same form. It stays as it is.
        table: The rules, `EXACT` or `READABLE` or any others.
        across_phases: Whether backward may take over what forward computes (see `cse`).
    """
    source = sizes.read_from_cotangents(source)
    while True:
        before = len(graph_of(source).nodes)
        source = cse(source, across_phases=across_phases)
        step = rewrite(graph_of(source), table, output_count_of(source))
        source = with_graph(source, step.graph)
        if not step.applied and len(step.graph.nodes) == before:
            return source
