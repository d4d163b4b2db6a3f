"""Functions of public packages that run Triton kernels, each with a plain PyTorch reference."""
