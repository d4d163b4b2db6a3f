def mse(x, y, grad_out):
    diff = x - y
    out = (diff**2).mean()
    grad_x = 2 * (diff / x.numel()) * grad_out
    grad_y = -2 * (diff / y.numel()) * grad_out
    return out, grad_x, grad_y
