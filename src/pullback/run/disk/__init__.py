"""Disk: the cache of compiled code, libraries that are built into it, and who may write there."""
