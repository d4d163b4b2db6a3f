"""Gradients are as good as the dtype allows, in every dtype that forward accepts."""
