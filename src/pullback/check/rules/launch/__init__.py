"""Kernels whose results depend on how and when they are launched."""
