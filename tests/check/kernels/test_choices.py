"""Kernels launched in other ways."""

import pytest

from pullback.check.kernels.choices import seen, tuner_entry

pytest.importorskip("triton")


class Config:
    pre_hook = None

    def __init__(self, block):
        self.block = block

    def all_kwargs(self):
        return {"BLOCK": self.block}


def test_entry_of_the_tuning_is_chosen(monkeypatch):
    from triton.runtime.autotuner import Autotuner

    class Kernel:
        def run(self, *args, **options):
            return args, options

    kernel = object.__new__(Autotuner)
    kernel.arg_names, kernel.fn = ["x"], Kernel()
    kernel.configs = [Config(16), Config(32)]
    kernel.prune_configs = lambda options: kernel.configs

    with tuner_entry(1):
        assert kernel.run(7, n=3) == ((7,), {"n": 3, "BLOCK": 32})
    with tuner_entry(2):
        assert kernel.run(7) == ((7,), {"BLOCK": 16})
    with seen() as launched, tuner_entry(0):
        kernel.run(7)
    assert launched.entries == 0  # `entry` stands before it
