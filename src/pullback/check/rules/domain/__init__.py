"""Gradients are right for every value that forward accepts."""
