"""Memory that was never written is not read."""
