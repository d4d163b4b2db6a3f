"""Custom functions that run: each module holds one, next to the same computation in plain PyTorch.

`python -m examples.demo` walks through all of them; `python -m examples.<module>` shows one.
Every module offers its classes, `plain` (the same computation in PyTorch operations, whose
derivative is PyTorch's own) and `inputs` (float64 tensors to try both on, by name).
"""
