"""Derive: a backward, and every further derivative, from the forward by PyTorch's own rules."""
