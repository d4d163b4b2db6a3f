"""Repros: how each kind of finding is shown in a few lines of plain PyTorch."""
