"""A rule for `vmap` gives what a loop gives."""
