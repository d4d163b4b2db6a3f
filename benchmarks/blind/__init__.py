"""Functions by authors who did not see the checker: 100 with one fault each, and sound ones."""
