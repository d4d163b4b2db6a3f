"""Kernels: forward and backward graphs as Triton kernels over rows and columns.

A captured program is rewritten in ops that a kernel can compute element by element (`primitives`),
its dimensions become axes that all of its tensors share (`axes`), what it stores and sums up is
grouped by the rows and columns that a kernel goes over (`plan`), and each group is written as one
kernel (`writer`, by the table of `expressions`) with the lines that launch it (`host`). Backend
"triton" runs that text, and `pb.emit(f, "triton")` prints it.
"""
