"""Judge: whether two computations agree, and whether a gradient is right, beyond doubt.

It knows calls and numbers, nothing of rules or of texts: `derive` and `emit` have what they wrote
compared with its program, `run` and `compose` what they compiled, `check` asks about variants of
the examples, `diagnose` about one Function whose backward is to be repaired.

Whether two computations agree:

- `closeness`: how far apart the same numbers may be, measured where that can be had.
- `tensor_specs`, `trial_rows`: tensors like given ones, and the rows of inputs that are tried.
- `observed`: what a call gives: outputs, gradients, second derivatives; also in a new process.
- `comparison`, `text_difference`: a program, others beside it, and the first thing that differs.
- `capture_check`: a captured graph beside the program that it came from.

Whether a gradient is right:

- `example`, `run`: the arguments of a call, copied; one call of them, and the pulls through it.
- `reference`: what the gradient must be, by autograd over forward (`tape` and `trail` check how far
  that can be trusted), and the slopes of forward itself.
- `differences`, `slopes`: slopes with an estimated error, along directions in one input.
- `tolerances`: how far numbers may be apart.
- `verdict`: both together: which gradients of a run are wrong. `mismatch` is one that is.
- `patterns`: what kind of error it is.
- `progress`: what a process that watches this one sees of it.
"""
