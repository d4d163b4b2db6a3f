"""How long is searched for what a report may say besides: a reason, and a proof.

Both need the symbolic part of PyTorch, or sympy, which is slow to import: see `processes.warm`.
"""

from __future__ import annotations

# Seconds of work by profile: to search for why a gradient is wrong, and for a proof that it is not.
REASON_SECONDS = {"quick": 0.0, "standard": 1.5, "deep": 20.0}
PROOF_SECONDS = {"quick": 0.0, "standard": 1.0, "deep": 20.0}
