"""The functions of `benchmarks/faults/public.py`, among the sound ones."""

from benchmarks.faults.public import CASES, SOUND

__all__ = ["CASES", "SOUND"]
