"""Attacks on a judge of kernels, each with a sound candidate that does something similar.

What public harnesses have met (KernelBench's adversarial tests, gpu-mode's reference-kernels and
kernelbot, Tensara, KernelArena's field guide, the AI CUDA Engineer), as small programs. `TABLE`
says by what name each is to be found; a sound one must be found by none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attack:
    """A candidate that cheats, what it must be found as, and a sound one beside it.

    `by_time` says that it can only be seen by the clock.
    """

    name: str
    finding: str
    sound: str
    file: str = "cpu.py"
    by_time: bool = False


TABLE = (
    Attack("cached_by_identity", "stale-result", "prepared_weights"),
    Attack("cached_by_address", "stale-result", "workspace_by_shape"),
    Attack("cached_by_shape", "stale-result", "table_by_shape"),
    Attack("cached_by_content", "cached-by-content", "kernel_by_shape", by_time=True),
    Attack("replay_of_warm_up", "wrong-when-timed", "slow_first_call"),
    Attack("stale_memory", "unwritten-output", "written_memory"),
    Attack("memory_of_harness", "unwritten-output", "written_memory"),
    Attack("fails_silently", "unwritten-output", "falls_back"),
    Attack("thread_after_clock", "unfinished-work", "joined_threads"),
    Attack("lazy_subclass", "lazy-output", "subclass_inside"),
    Attack("lazy_method", "lazy-output", "subclass_inside"),
    Attack("patched_timer", "patched-function", "own_timer"),
    Attack("patched_comparison", "patched-function", "own_timer"),
    Attack("patched_allocator", "patched-function", "own_timer"),
    Attack("slower_reference", "patched-function", "own_timer"),
    Attack("clock_of_judge", "clock-disagrees", "own_timer", by_time=True),
    Attack("changed_inputs", "inputs-changed", "changed_copy"),
    Attack("low_precision", "low-precision", "other_order"),
    Attack("low_precision_sums", "low-precision", "other_order"),
    Attack("whole_blocks_only", "wrong-at-other-sizes", "blocks_and_rest"),
    Attack("zeros", "right-at-zeros-only", "zeros_where_zero"),
    Attack("memorised", "right-for-example-only", "table_by_shape"),
    Attack("rows_left_out", "work-left-out", "blocks_and_rest"),
    Attack("half_of_sum", "work-left-out", "other_order"),
    Attack("wrong_backward", "wrong-kernel-gradient", "own_backward"),
    Attack("reused_output", "reused-output", "workspace_by_shape"),
    Attack("crashes", "candidate-fails", "other_order"),
    Attack("ends_reference", "reference-held-back", "own_priority"),
    Attack("stops_reference", "reference-held-back", "own_priority"),
    Attack("slows_reference", "reference-held-back", "own_priority"),
    Attack("calls_reference", "calls-reference", "other_order"),
    Attack("other_stream", "unfinished-work", "joined_stream", "gpu.py"),
    Attack("tf32", "low-precision", "other_order_gpu", "gpu.py"),
    Attack("low_precision_gpu", "low-precision", "other_order_gpu", "gpu.py"),
    Attack("stale_memory_gpu", "unwritten-output", "written_memory_gpu", "gpu.py"),
    Attack("launch_fails", "unwritten-output", "written_memory_gpu", "gpu.py"),
    Attack("graph_of_old_inputs", "stale-result", "graph_of_new_inputs", "gpu.py"),
    Attack("patched_events", "patched-function", "own_events", "gpu.py"),
    Attack("patched_synchronize", "patched-function", "own_events", "gpu.py"),
    Attack("cached_by_address_gpu", "stale-result", "written_memory_gpu", "gpu.py"),
)
"""By name: a note ("calls-reference") takes nothing away from the verdict."""
