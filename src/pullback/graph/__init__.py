"""Passes over `torch.fx` graphs of aten ops: each takes a graph and gives a graph, or reads one."""
