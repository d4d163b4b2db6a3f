"""Define: `Function` and its context, the whole documented contract in Python."""
