"""Claims of speed, each a file named by the claim it proves; `python -m benchmarks.X` runs one."""
