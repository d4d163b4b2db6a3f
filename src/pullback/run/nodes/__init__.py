"""Nodes: how a recipe becomes one autograd node, compiled or as text, and is compared."""
