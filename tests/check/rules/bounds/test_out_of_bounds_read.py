"""Sound functions pass `out-of-bounds-read`; planted faults are caught, and named."""

import pytest

import pullback as pb
from pullback.check.rules.bounds.out_of_bounds import reads
from tests.check.functions import Relu
from tests.check.rules.bounds.blocks import Padded, Square, Sum, SumOfBlocks, WholeBlocks
from tests.check.subjects import normal, rule_tests

SOUND = {
    "sum": (Sum, lambda: (normal(4, 16),)),
    "padded": (Padded, lambda: (normal(4, 16),)),
    "square": (Square, lambda: (normal(4, 16),)),
    "pytorch's ops": (Relu, lambda: (normal(4, 16),)),
}
PLANTED = {"sum of blocks": (SumOfBlocks, lambda: (normal(4, 16),), "with NaN around `x`")}

test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    reads, SOUND, PLANTED, count=1
)


@pytest.mark.parametrize(
    ("target", "rule"), [(SumOfBlocks, "out-of-bounds-read"), (WholeBlocks, "out-of-bounds-write")]
)
def test_it_is_told_before_what_follows_from_it(target, rule):
    report = pb.check(target, (normal(4, 16),), select=["bounds", "gradient", "shape"])

    assert report.findings[0].rule.name == rule
