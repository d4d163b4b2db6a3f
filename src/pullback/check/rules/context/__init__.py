"""A call gives the same wherever it is made: modes, threads, hooks, other tensors."""
