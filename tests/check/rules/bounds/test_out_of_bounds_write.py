"""Sound functions pass `out-of-bounds-write`; planted faults are caught, and named."""

from pullback.check.rules.bounds.out_of_bounds import writes
from tests.check.functions import Product, Relu
from tests.check.rules.bounds.blocks import OneMore, Padded, Square, WholeBlocks
from tests.check.subjects import normal, rule_tests

SOUND = {
    "square": (Square, lambda: (normal(4, 16),)),
    "padded": (Padded, lambda: (normal(4, 16),)),
    "pytorch's ops": (Relu, lambda: (normal(4, 16),)),
    "two inputs": (Product, lambda: (normal(4, 16), normal(4, 16, seed=1))),
}
PLANTED = {
    "whole blocks": (WholeBlocks, lambda: (normal(4, 16),), "1 element behind the end of a tensor"),
    "one more": (OneMore, lambda: (normal(4, 16),), "1 element behind the end of a tensor"),
}

test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    writes, SOUND, PLANTED, count=1
)
