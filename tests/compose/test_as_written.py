"""Compositions compute what the program computes, over every grouping of many pipelines."""

import pytest

from pullback import combine, hybrid, nest
from pullback.capture.units import record
from pullback.compose.grouping import groups_of
from tests.compose.as_written import assert_same, derivatives_of, intervals, is_possible, partitions
from tests.compose.pipelines import PIPELINES

EVERY = ("square_sin", "chain", "norm_gelu", "mlp", "cross_entropy", "rms_rope", "attention")
EVERY += ("quantized", "trig")
CUTS = ("leapfrog", "runge_kutta", "largest", "optional", "foreign")


def names_with_slow(quick):
    """Every pipeline; those that are not `quick` are slow."""
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in PIPELINES]


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", PIPELINES)
def test_combined_computes_the_same(name):
    pipeline = PIPELINES[name]
    args = pipeline.draw()
    combined = combine(pipeline.program, *args)

    assert combined.composed == "combined"
    expected = derivatives_of(pipeline.program, args)
    assert_same(derivatives_of(combined.apply, args, holds=False), expected)


QUICK = ("norm_gelu", "largest")


@pytest.mark.quick(2)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["inductor", "native"])
@pytest.mark.parametrize("name", names_with_slow(QUICK))
def test_compiled_nodes_compute_the_same(name, backend):
    pipeline = PIPELINES[name]
    args = pipeline.draw()
    combined = combine(pipeline.program, *args, backend=backend)
    expected = derivatives_of(pipeline.program, args)
    for _ in range(2):
        assert_same(derivatives_of(combined.apply, args), expected, rtol=1e-9)


@pytest.mark.parametrize("name", PIPELINES)
def test_nested_computes_the_same(name):
    pipeline = PIPELINES[name]
    args = pipeline.draw()
    nested = nest(pipeline.program)

    assert nested.composed == "nested"
    assert_same(derivatives_of(nested.apply, args), derivatives_of(pipeline.program, args))


def groupings_compute_the_same(name, groupings):
    pipeline = PIPELINES[name]
    args = pipeline.draw()
    expected = derivatives_of(pipeline.program, args)
    units = record(pipeline.program, *args)
    possible = [g for g in groupings(len(units.units)) if is_possible(groups_of, units, g)]
    kept = []  # so that nodes are shared
    for groups in possible:
        wanted = [group for group in groups if len(group) > 1]
        made = hybrid(pipeline.program, *args, groups=wanted)
        kept.append(made)

        assert made.composed == "hybrid"
        assert made.explain().count("one node") == len(wanted)
        assert_same(derivatives_of(made.apply, args), expected)
    assert len(possible) >= 2


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", names_with_slow(CUTS))
def test_every_cut_computes_the_same(name):
    groupings_compute_the_same(name, intervals)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", names_with_slow(EVERY))
def test_every_grouping_computes_the_same(name):
    groupings_compute_the_same(name, lambda count: partitions(list(range(count))))
