"""Every differentiable op of PyTorch's own database, through derive, source and combine."""

import pytest

from tests.upstream import table

DTYPES = ("float64", "float32", "complex128")
SLICES = 40
SECONDS = 120

# fmt: off
QUICK = (
    "__getitem__", "amax", "cat", "clamp", "cumprod", "div.no_rounding_mode", "einsum", "fft.rfft",
    "gather", "index_add", "linalg.norm", "linalg.solve", "logsumexp", "matmul",
    "nn.functional.conv2d", "nn.functional.cross_entropy", "nn.functional.layer_norm",
    "nn.functional.max_pool2d", "prod", "scatter_add", "split", "unfold", "var_mean", "where",
)
# fmt: on
"""Ops of every family, some of each."""


SPARSE = {"sparse.mm.reduce", "sparse.sampled_addmm"}
"""Ops whose samples hold sparse tensors alone, which are not asked for."""


@pytest.mark.parametrize("name", QUICK)
def test_op_is_what_pytorch_computes(name, server, request):
    """First and second derivatives of one sample; whether a refusal is gone is seen by all."""
    rows = server.rows("op", name, "float64", 1, True, seconds=SECONDS)
    if request.config.getoption("--update-gold"):
        table.record(table.refusals_in(rows), set())

    assert rows
    assert table.text(row for row in rows if row["status"] not in ("right", "refused")) == ""
    if table.is_of_this_torch():
        assert table.refusals_in(rows) <= table.recorded()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_op_is_what_pytorch_computes(dtype, part, server, request):
    from tests.upstream.cases import SAMPLES, dtypes_of, ops  # takes seconds, for those who ask

    names = [name for name, op in ops().items() if dtype in dtypes_of(op)][part::SLICES]
    rows = []
    for name in names:
        rows += server.rows("op", name, dtype, SAMPLES[dtype], seconds=SECONDS)
    asked = {(name, dtype) for name in names}
    found = table.refusals_in(rows)
    if request.config.getoption("--update-gold"):
        table.record(found, asked)

    assert {row["op"] for row in rows} == set(names) - SPARSE
    wrong = [row for row in table.merged(rows) if row["status"] not in ("right", "refused")]
    assert table.text(wrong) == ""
    if table.is_of_this_torch():
        assert found == {row for row in table.recorded() if (row[0], row[1]) in asked}


def test_child_that_crashes_or_hangs_is_a_failure_of_it_alone(server):
    crash = server.rows("crash", seconds=20)
    hang = server.rows("hang", seconds=1)
    rows = server.rows("op", "sin", "float64", 1, seconds=SECONDS)

    assert [(row["status"], row["feature"]) for row in crash] == [("right", "a"), ("died", "b")]
    assert "SIGABRT" in crash[1]["said"]
    assert [row["status"] for row in hang] == ["died"]
    assert "more than 1 s" in hang[0]["said"]
    assert {row["status"] for row in rows} == {"right"}
