def complex_multiply(x, y, grad_out):
    out = x * y
    grad_y = grad_out * x.conj()
    grad_x = grad_out * y.conj()
    return out, grad_x, grad_y
