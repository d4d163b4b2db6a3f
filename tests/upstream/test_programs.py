"""Random programs of several ops, and compiled ops: what runs is what the program says.

A failure prints the program, ready to be pasted, behind the rows that are wrong.
"""

import pytest

from tests.upstream import table
from tests.upstream.compiled import BACKENDS, COTANGENTS, layouts_of
from tests.upstream.layouts import LAYOUTS
from tests.upstream.programs import program_of
from tests.upstream.reported import PROGRAMS
from tests.upstream.statements import DEFINITIONS, STATEMENTS

SEEDS = 120
QUICK = 2
TURNS = 2
"""Layouts of a program besides the plain one."""

SECONDS = 300

# fmt: off
OPS = (
    "abs", "addmm", "amax", "atan2", "baddbmm", "bmm", "cat", "clamp", "cumsum", "diagonal",
    "div.no_rounding_mode", "einsum", "exp", "expand", "fft.rfft", "flip", "gather", "index_add",
    "index_select", "kron", "lerp", "linalg.inv", "linalg.norm", "linalg.solve", "log_softmax",
    "logsumexp", "masked_fill", "matmul", "max.binary", "max.reduction_with_dim", "mean", "minimum",
    "mul", "nn.functional.avg_pool2d", "nn.functional.binary_cross_entropy_with_logits",
    "nn.functional.conv2d", "nn.functional.cosine_similarity", "nn.functional.cross_entropy",
    "nn.functional.elu", "nn.functional.embedding", "nn.functional.gelu", "nn.functional.glu",
    "nn.functional.group_norm", "nn.functional.interpolate.bilinear", "nn.functional.layer_norm",
    "nn.functional.linear", "nn.functional.max_pool2d", "nn.functional.mse_loss",
    "nn.functional.pad.reflect", "nn.functional.scaled_dot_product_attention",
    "nn.functional.smooth_l1_loss", "nn.functional.softplus", "permute", "pow", "prod", "roll",
    "scatter", "scatter_add", "sigmoid", "softmax", "sort", "std", "sum", "tanh", "tril", "unfold",
    "var", "view_as_complex", "where", "xlogy",
)
# fmt: on


def assert_right(rows, program):
    """Require that something was asked, and that nothing is wrong; a refusal is no wrong result."""
    assert any(row["said"] != "not asked" for row in rows)
    wrong = table.text(row for row in rows if row["status"] not in ("right", "refused"))
    assert wrong == "", f"{wrong}\n\n{program}"


def assert_refusals_are_known(rows, request):
    """Require that what is refused of a program is what the table of refusals says of it."""
    asked = {(row["op"], row["dtype"]) for row in rows}
    found = table.refusals_in(rows)
    if request.config.getoption("--update-gold"):
        table.record(found, asked)
    if table.is_of_this_torch():
        assert found == {row for row in table.recorded() if (row[0], row[1]) in asked}


# ---- programs ----


@pytest.mark.parametrize("seed", range(QUICK))
def test_program_is_derived_printed_and_combined(seed, server, request):
    rows = server.rows("program", seed, seconds=SECONDS)

    assert_right(rows, program_of(seed))
    assert_refusals_are_known(rows, request)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, SEEDS))
def test_every_program_is_derived_printed_and_combined(seed, server, request):
    rows = server.rows("program", seed, seconds=SECONDS)

    assert_right(rows, program_of(seed))
    assert_refusals_are_known(rows, request)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("seed", range(1))
def test_program_is_compiled(seed, server):
    rows = server.rows("compiled program", seed, "inductor", 0, seconds=SECONDS)

    assert_right(rows, program_of(seed))


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_program_is_compiled_in_every_layout(seed, backend, server):
    rows = server.rows("compiled program", seed, backend, TURNS, seconds=SECONDS)

    assert_right(rows, program_of(seed))


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", OPS)
def test_op_is_compiled_in_every_layout(name, backend, server):
    rows = server.rows("compiled op", name, backend, TURNS, seconds=SECONDS)

    assert_right(rows, name)


# ---- reported programs ----


@pytest.mark.parametrize("name", ["odd_constants", "detached_and_value", "changed_in_place"])
def test_reported_program_is_right_or_refused(name, server):
    rows = server.rows("reported", name, True, seconds=SECONDS)

    assert_right(rows, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_reported_program_is_right_or_refused(name, server, request):
    rows = server.rows("reported", name, seconds=SECONDS)

    assert_right(rows, name)
    assert_refusals_are_known(rows, request)


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_reported_program_is_compiled_in_every_layout(name, backend, server):
    rows = server.rows("compiled reported", name, backend, TURNS, seconds=SECONDS)

    assert_right(rows, name)


# ---- the generator ----


def test_seed_is_always_the_same_program():
    assert str(program_of(3)) == str(program_of(3))


def test_programs_have_every_kind_of_statement():
    """Of each kind most statements, every Function, each layout: a suite that draws them seldom."""
    text = "\n".join(program_of(seed).text for seed in range(SEEDS))

    assert [name for name in DEFINITIONS if f"class {name}" not in text] == []
    for kind, statements in STATEMENTS.items():
        drawn = [one for one in statements if _mark(one) in text]
        assert len(drawn) > 0.5 * len(statements), kind


def _mark(statement):
    """A piece of a statement that has no place to be filled in it."""
    pieces = statement.replace("}", "{").split("{")[2::2]
    return max(pieces, key=len)


def test_every_pair_of_layouts_has_its_turn():
    pairs = {pair for seed in range(SEEDS) for pair in layouts_of(seed, TURNS)}

    assert pairs == {(layout, c) for layout in LAYOUTS for c in COTANGENTS}
