"""Triton: a Function as one file of kernels that imports torch and triton alone, and tests itself."""
