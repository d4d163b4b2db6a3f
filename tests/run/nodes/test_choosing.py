"""`fastest` runs the nodes in turns and takes the one with the least time."""

import time

import torch

from pullback.run.nodes.choosing import fastest


def slow(x):
    time.sleep(0.003)
    return x * 2


def quick(x):
    return x * 2


def test_slower_node_is_not_taken():
    x = torch.ones(3, requires_grad=True)

    assert fastest({"slow": slow, "quick": quick}, [x]) == "quick"
    assert fastest({"quick": quick, "slow": slow}, [x]) == "quick"


def test_single_node_is_not_run():
    assert fastest({"only": lambda x: 1 / 0}, [torch.ones(3)]) == "only"


def test_tensors_and_their_hooks_are_left_alone():
    x, seen = torch.ones(3, requires_grad=True), []
    x.register_hook(seen.append)
    fastest({"a": quick, "b": quick}, [x])

    assert x.grad is None
    assert not seen
