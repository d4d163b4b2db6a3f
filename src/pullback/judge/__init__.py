"""Judge: whether a gradient is right, beyond doubt, and by what pattern it is wrong."""
