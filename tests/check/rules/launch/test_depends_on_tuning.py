"""Sound kernels pass `depends-on-tuning`; planted faults are caught, and named."""

import pytest

from pullback.check.rules.launch.launches import choices
from tests.check.functions import Square
from tests.check.subjects import findings, normal, rule_tests

rows = pytest.importorskip("benchmarks.faults.kernels.rows")

SOUND = {"any block": (rows.Tuned, rows.wide_rows), "warps": (rows.Softmax, rows.rows)}
PLANTED = {"block of one size": (rows.TunedToSize, rows.wide_rows, "output 0")}

sound, planted = rule_tests(choices, SOUND, PLANTED, count=1)
test_sound_function_has_no_finding = pytest.mark.needs_cuda(sound)
test_planted_fault_is_caught = pytest.mark.needs_cuda(planted)


def test_without_kernels_there_is_nothing_to_look_at():
    assert findings(choices, Square, normal(3)) == []
