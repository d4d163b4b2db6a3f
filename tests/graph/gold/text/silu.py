def silu(x, grad_out):
    out = torch.nn.functional.silu(x)
    s = x.sigmoid()
    grad_x = grad_out * s * (x * (1 - s) + 1)
    return out, grad_x
