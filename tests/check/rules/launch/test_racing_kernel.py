"""Sound kernels pass `racing-kernel`; planted faults are caught, and named."""

import pytest

from pullback.check.rules.launch.launches import races
from tests.check.functions import Square
from tests.check.subjects import findings, normal, rule_tests

rows = pytest.importorskip("benchmarks.faults.kernels.rows")

SOUND = {"atomics": (rows.Scale, rows.many_rows)}
PLANTED = {"rows that race": (rows.Races, rows.many_rows, "gradient of `w`")}

sound, planted = rule_tests(races, SOUND, PLANTED, count=1)
test_sound_function_has_no_finding = pytest.mark.needs_cuda(sound)
test_planted_fault_is_caught = pytest.mark.needs_cuda(planted)


def test_without_a_gpu_there_is_nothing_to_look_at():
    assert findings(races, Square, normal(3)) == []
