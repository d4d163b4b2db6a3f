"""Kernels that leave the memory of their tensors."""
