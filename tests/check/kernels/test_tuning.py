"""What Triton takes to compile and to tune is counted apart."""

import time

from pullback.check.kernels import tuning
from pullback.check.processes.watch import Seen, Watch
from pullback.judge import progress
from pullback.judge.progress import Progress


class Kernel:
    def build(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return "built"


def test_compiling_is_no_work_of_the_function():
    tuning._count(Kernel, "build")
    begun, work = progress.current.tuned[0], tuning.worked()

    assert Kernel().build(0.2) == "built"
    assert tuning.worked() - work < 0.1
    assert progress.current.tuned == (begun + 2, False)


def test_it_is_counted_once():
    tuning._count(Kernel, "build")
    first = Kernel.build
    tuning._count(Kernel, "build")

    assert Kernel.build is first


def test_worker_that_tunes_does_not_hang():
    seen = Progress()
    watch = Watch(1, busy=0.0, idle=0.0, seen=Seen(seen, 1))
    seen.tune(is_over=False)

    watch._look()  # it raises where a worker hangs
    watch._look()
