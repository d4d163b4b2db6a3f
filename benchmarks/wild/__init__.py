"""A corpus of real public code for the checker: packages of PyPI, their custom Functions and ops.

`python -m benchmarks.wild` installs the packages that `packages.py` pins, checks every subject in
a process of its own, compares each finding with `verdicts.json`, prints the table and writes
`docs/wild.md`. `README.md` says how to read the result and how to add a package.
"""
