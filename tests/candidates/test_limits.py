"""What the machine can do is measured, and what a call needs is counted from below."""

import torch

from pullback.candidates.limits import limits_of, needs_of
from pullback.judge.example import example_of

EXAMPLE = example_of((torch.randn(64, 32), torch.randn(32, 16)))


def test_bytes_are_those_that_must_be_moved():
    needs = needs_of(torch.mm, EXAMPLE, gradients=True)

    assert needs["forward_bytes"] == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    assert needs["forward_flops"] == 2 * 64 * 32 * 16
    assert needs["both_flops"] == 3 * needs["forward_flops"]


def test_numbers_that_are_not_read_do_not_count():
    needs = needs_of(lambda x, w: x[:1], EXAMPLE, gradients=True)

    assert needs["forward_bytes"] == 4 * (32 + 32)


def test_forward_alone_counts_what_is_written():
    needs = needs_of(torch.mm, EXAMPLE, gradients=False)

    assert needs == {"forward_bytes": 4 * 64 * 16, "forward_flops": 2 * 64 * 32 * 16}


def test_machine_is_measured():
    found = limits_of(EXAMPLE, {"forward_bytes": 1e5})

    assert found["device"] == "cpu"
    assert found["bytes_per_second"] > 1e6
    assert found["flops_per_second"] > 1e6
