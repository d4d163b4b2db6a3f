"""Triton: a Function as one file of kernels that needs torch and triton, and tests itself."""
