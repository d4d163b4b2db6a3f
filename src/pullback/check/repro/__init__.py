"""Repros: a finding shown in a few lines of plain PyTorch.

`writing` tries the forms of a rule, `context` is what a form is given, `retold` puts into the
finding what the program gave. Forms that several rules use stand in `gradients`, `calls`, `orders`
and `modes`; a form of one rule stands in the file of that rule.
"""
