"""What PyTorch asks of a Function, and what it mends in silence."""
