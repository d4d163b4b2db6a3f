"""Variants of the user's examples: shapes, layouts, dtypes and domains that forward accepts."""
