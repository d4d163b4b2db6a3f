"""Gradients as expressions of unknown numbers: read from graphs, compared, proved or refuted."""
