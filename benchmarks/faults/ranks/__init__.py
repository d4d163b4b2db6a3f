"""Functions that communicate: sound ones of both conventions, and planted faults."""
