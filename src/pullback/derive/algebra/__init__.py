"""Gradients as expressions of unknown numbers: read from graphs, evaluated, and compared."""
