"""A graph as loops over rows."""

import pytest
import torch
import torch.nn.functional as F

from pullback.capture.joint import capture
from pullback.compose.rows.program import RowProgram, chunk_graph, pair
from pullback.errors import ChunkingError
from pullback.graph.cost import op_name


def program_of(program, *shapes, rows=(12, 4)):
    """A program as loops; the first argument has the rows."""
    graphs = []
    for count in rows:
        row = [torch.randn(count, *shapes[0]), *(torch.randn(s) for s in shapes[1:])]
        row = [x.requires_grad_() for x in row]
        graphs.append(capture(program, row, dynamic=False).joint.graph)
    paired = pair("program", *graphs)
    return RowProgram(paired, paired.whole.output_node().args[0])


def names(nodes):
    return [op_name(node) for node in nodes]


def test_a_sum_needs_one_loop():
    made = program_of(lambda x, w: (x @ w).square().sum(), (5,), (5, 40))
    assert len(made.loops) == 1
    assert names(made.loops[0].sums) == ["sum", "mm"]
    assert names(made.loops[0].kept) == ["mm"]


def test_what_is_made_of_a_sum_comes_in_a_later_loop():
    made = program_of(lambda x, w: (x @ w).square().sum().sqrt(), (5,), (5, 40))
    assert [names(loop.sums) for loop in made.loops] == [["sum"], ["mm"]]


def test_a_loss_that_nothing_waits_for_is_summed_in_the_last_loop():
    def program(x, w):
        logits = x @ w
        return logits.square().sum().sqrt() + logits.exp().sum()

    made = program_of(program, (5,), (5, 40))
    assert [len(loop.sums) for loop in made.loops] == [1, 2]


def test_small_values_are_put_together_and_mixed():
    made = program_of(
        lambda x, w: F.logsigmoid((x @ w).logsumexp(-1).sort().values[3]), (5,), (5, 40)
    )
    assert "logsumexp" in names(made.loops[0].kept)


def test_large_values_are_not():
    with pytest.raises(ChunkingError, match="which takes large rows together"):
        program_of(lambda x, w: (x @ w).sort(0).values.sum(), (5,), (5, 40))


def test_each_row_with_each_other_is_refused():
    with pytest.raises(ChunkingError, match="each row with each other"):
        program_of(lambda x: (x @ x.T).sum(), (5,))


def test_other_work_for_other_sizes_is_refused():
    with pytest.raises(ChunkingError, match="must do the same work"):
        program_of(lambda x: x.sin().sum() if x.shape[0] > 4 else x.sum(), (5,))


def test_a_chunk_has_its_own_sizes_and_the_numbers_of_the_whole():
    def program(x, w):
        return (x @ w * torch.full((x.shape[0], 40), 1 / x.shape[0])).exp().sum()

    made = program_of(program, (5,), (5, 40))
    text = str(chunk_graph(made, made.loops[-1], made.paired.part))
    assert f"full.default](args = ([4, 40], {1 / 12})" in text
