"""A gradient can be differentiated again, or says that it cannot."""
