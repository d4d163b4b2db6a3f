"""Results have memory of their own."""
