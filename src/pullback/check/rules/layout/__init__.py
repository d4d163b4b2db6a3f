"""Gradients do not depend on how tensors lie in memory."""
