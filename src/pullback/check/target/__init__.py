"""What is checked: found by its name, with its places, its schema and its spelling."""
