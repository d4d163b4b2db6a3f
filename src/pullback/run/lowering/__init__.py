"""Lowering: graphs by PyTorch's Inductor, and what it writes, read again."""
