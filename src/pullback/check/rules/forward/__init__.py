"""A `jvp` of the user is the forward derivative."""
