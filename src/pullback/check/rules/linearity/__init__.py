"""Backward is a linear map of the cotangent."""
