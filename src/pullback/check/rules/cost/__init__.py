"""Backward costs what it must, and not more."""
