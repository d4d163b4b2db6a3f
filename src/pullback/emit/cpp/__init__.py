"""C++: a Function as an op of PyTorch, with its forward and its backward."""
