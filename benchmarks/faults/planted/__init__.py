"""Functions with one known fault each; the field `where` of its case says what is wrong."""
