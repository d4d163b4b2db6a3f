"""Sound kernels pass `wrong-on-stream`; planted faults are caught, and named."""

import pytest

from pullback.check.rules.launch.launches import streams
from tests.check.functions import Square
from tests.check.subjects import findings, normal, rule_tests

rows = pytest.importorskip("benchmarks.faults.kernels.rows")

SOUND = {"waits": (rows.OwnStream, rows.rows), "softmax": (rows.Softmax, rows.rows)}
PLANTED = {"does not wait": (rows.ImpatientStream, rows.rows, "output 0")}

sound, planted = rule_tests(streams, SOUND, PLANTED, count=1)
test_sound_function_has_no_finding = pytest.mark.needs_cuda(sound)
test_planted_fault_is_caught = pytest.mark.needs_cuda(planted)


def test_without_a_gpu_there_is_nothing_to_look_at():
    assert findings(streams, Square, normal(3)) == []
