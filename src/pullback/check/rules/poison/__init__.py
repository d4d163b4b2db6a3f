"""Memory that nobody wrote is not read."""
