"""Backends: one for each file, which is called like it and has it as `BACKEND`."""
