"""Nothing is written into that belongs to the caller."""
