"""Judge: whether a gradient is right, beyond doubt, and by what pattern it is wrong.

It knows calls and numbers, nothing of rules: `check` asks it about variants of the examples,
`diagnose` about one Function whose backward is to be repaired.

- `example`, `run`: the arguments of a call, copied; one call of them, and the pulls through it.
- `reference`: what the gradient must be, by autograd over forward (`tape` and `trail` check how far
  that can be trusted), and the slopes of forward itself.
- `differences`, `slopes`: slopes with an estimated error, along directions in one input.
- `tolerances`: how far numbers may be apart.
- `verdict`: both together: which gradients of a run are wrong. `mismatch` is one that is.
- `patterns`: what kind of error it is.
"""
