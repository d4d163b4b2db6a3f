"""Gradients are right at every size and rank that forward accepts."""
