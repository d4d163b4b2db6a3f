"""What PyTorch asks of a Function, and what it repairs in silence."""
