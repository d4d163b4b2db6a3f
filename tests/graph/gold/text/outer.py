def outer(x, y, grad_out):
    out = x.unsqueeze(-1) * y.unsqueeze(0)
    grad_y = (grad_out * x.unsqueeze(-1)).sum(0)
    grad_x = (grad_out * y.unsqueeze(0)).sum(-1)
    return out, grad_x, grad_y
