"""Where a hand-written backward goes wrong, and which edit repairs it."""
