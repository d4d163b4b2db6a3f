"""Forward and backward of a function as a graph to explore.

`picture` has what is drawn, as plain values; `drawn` makes it of a Function, program, module or
plan; `timing` measures the nodes; `page` is the HTML page.
"""
