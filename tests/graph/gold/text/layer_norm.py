def layer_norm(x, w, b, grad_out):
    mu = x.mean(-1, keepdim=True)
    xc = x - mu
    var = (xc * xc).mean(-1, keepdim=True)
    rstd = (var + 1e-5).rsqrt()
    scaled = xc * rstd
    out = scaled * w + b
    grad_b = grad_out.sum(0)
    g_scaled = grad_out * w
    grad_w = (grad_out * scaled).sum(0)
    grad_rstd = (g_scaled * xc).sum(-1, keepdim=True)
    grad_xc = g_scaled * rstd - grad_rstd * rstd**3 / grad_out.shape[1] * xc
    grad_x = grad_xc - grad_xc.mean(-1, keepdim=True)
    return out, grad_x, grad_w, grad_b
