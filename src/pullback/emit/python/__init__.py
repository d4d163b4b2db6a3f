"""Python: a Function as one module that imports only torch, and tests itself."""
