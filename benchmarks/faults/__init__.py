"""A benchmark of checkers for custom autograd functions: planted faults, sound functions, controls.

Each case is a function that an author might have written, with the inputs that the author would try
it on. A planted case has one known fault, and evidence that the fault is there; a sound case has
none; a control wraps one of PyTorch's own operators and its own backward. A checker gets the
function and the inputs and nothing else. `python -m benchmarks.faults.score` runs checkers side by
side; `README.md` says how to read the result and how to add a case or a checker.
"""
