"""Repros: a finding shown in a few lines of plain PyTorch.

`writing` tries the forms of a rule, `scene` is what a form is given, `retold` tells the finding of
what the program gave. Forms that several rules use stand in `gradients`, `calls`, `orders` and
`modes`; a form of one rule stands in the file of that rule.
"""
