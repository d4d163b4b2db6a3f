"""The subjects, one module per field; each has a list `SUBJECTS`."""
