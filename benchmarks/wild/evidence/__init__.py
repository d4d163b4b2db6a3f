"""Runs that settle a finding where none of the settlements of `settle.py` can, by field."""
