"""What ops do with rows."""

import pytest
import torch
import torch.nn.functional as F

from pullback.capture.joint import capture
from pullback.compose.rows.program import pair
from pullback.compose.rows.rules import RowKind, is_row_numbers, kind_of
from pullback.graph.parts import calls

EACH, SUM, MIXED = RowKind.EACH, RowKind.SUM, RowKind.MIXED


def last_kind(program, *more):
    """What the last op of a program does with the rows of its first argument."""
    graphs = [
        capture(program, (torch.randn(rows, 6, 4), *more), dynamic=False).joint.graph
        for rows in (8, 2)
    ]
    paired = pair("program", *graphs)
    node = list(calls(paired.whole))[-1]
    return kind_of(node, paired.row_dim)


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (lambda x: x.sin(), EACH),
        (lambda x: x * torch.ones(6, 4), EACH),
        (lambda x: x.sum(0), SUM),
        (lambda x: x.mean(), SUM),
        (lambda x: x.sum(-1), EACH),
        (lambda x: x.amax(0), MIXED),
        (lambda x: x.softmax(1), EACH),
        (lambda x: x.softmax(0), MIXED),
        (lambda x: x.cumsum(0), MIXED),
        (lambda x: x.cumsum(1), EACH),
        (lambda x: x.sort(0).values, MIXED),
        (lambda x: x.transpose(0, 2), EACH),
        (lambda x: x.reshape(-1, 4), EACH),
        (lambda x: x.transpose(0, 1).reshape(-1, 4), MIXED),
        (lambda x: x[1:], MIXED),
        (lambda x: x[:, 1:], EACH),
        (lambda x: x.flip(0), MIXED),
        (lambda x: torch.cat([x, x]), MIXED),
        (lambda x: torch.cat([x, x], 1), EACH),
        (lambda x: torch.bmm(x, x.transpose(1, 2)), EACH),
        (lambda x: F.dropout(x), MIXED),
        (lambda x: x[torch.arange(x.shape[0]), 0], EACH),
        (lambda x: x[torch.arange(x.shape[0]).flip(0), 0], MIXED),
    ],
)
def test_rows_are_kept_apart_or_not(program, kind):
    found = last_kind(program)
    assert found is kind or (kind is MIXED and found is not EACH)


def test_numbers_of_rows_are_known_as_such():
    def program(x):
        return torch.arange(x.shape[0]), torch.arange(1, x.shape[0] + 1)

    graphs = [
        capture(program, (torch.randn(rows, 4),), dynamic=False).joint.graph for rows in (8, 2)
    ]
    paired = pair("program", *graphs)
    own, other = calls(paired.whole)
    assert is_row_numbers(own, paired.row_dim)
    assert not is_row_numbers(other, paired.row_dim)
