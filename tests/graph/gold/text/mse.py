def mse(x, y, grad_out):
    diff = x - y
    out = (diff**2).mean()
    grad_x = 2 * diff * grad_out / x.numel()
    grad_y = -2 * diff * grad_out / y.numel()
    return out, grad_x, grad_y
