"""The eager backend: a graph as Python that calls torch's ops one after the other.

It always works, on every device, and computes what eager mode computes, to the bit.
"""

from __future__ import annotations

from pullback.derive.recipe import Compile, compiled

compile: Compile = compiled
