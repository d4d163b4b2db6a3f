"""Each gradient is the one that forward implies."""
