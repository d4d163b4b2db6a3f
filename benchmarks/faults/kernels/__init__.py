"""Triton kernels with one known fault each, and their sound counterparts."""
