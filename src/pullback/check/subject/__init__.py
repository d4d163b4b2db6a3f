"""A target at its inputs, and what several rules ask of it, answered once."""
