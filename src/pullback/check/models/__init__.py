"""Check of a whole model: its gradients, its parameters, and every Function inside it.

`program` calls a module on given tensors, `observer` watches one pass through it, `gradients`
compares slopes with differences, `savings` measures what backward keeps, `rules` has the rules and
their pages, and `runner` makes the report.
"""
