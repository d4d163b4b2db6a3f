def polynomial(x, grad_out):
    out = x**3 - 2 * x**2 + x
    grad_x = grad_out - 4 * grad_out * x + grad_out * (3 * x**2)
    return out, grad_x
