def fused_layer_norm(x, w, b, grad_out):
    mean = x.mean(-1, keepdim=True)
    rstd = (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    xhat = (x - mean) * rstd
    out = xhat * w + b
    grad_xhat = grad_out * w
    slope = (grad_xhat * xhat).mean(-1, keepdim=True)
    grad_x = rstd * (grad_xhat - grad_xhat.mean(-1, keepdim=True) - xhat * slope)
    grad_w = (grad_out * xhat).sum(0)
    grad_b = grad_out.sum(0)
    return out, grad_x, grad_w, grad_b
