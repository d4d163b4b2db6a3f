"""A call depends on its arguments alone."""
