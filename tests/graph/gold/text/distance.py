def distance(x, y, grad_out):
    diff = x - y
    out = (diff**2).sum(-1).sqrt()
    grad_x = (grad_out / (2 * out)).unsqueeze(-1) * (2 * diff)
    grad_y = -grad_x
    return out, grad_x, grad_y
