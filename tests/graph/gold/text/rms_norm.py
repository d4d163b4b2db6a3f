def rms_norm(x, w, grad_out):
    r = ((x**2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    scaled = x * r
    out = scaled * w
    g_scaled = grad_out * w
    grad_w = (grad_out * scaled).sum(0)
    grad_r = (g_scaled * x).sum(-1, keepdim=True)
    grad_x = g_scaled * r - grad_r * r**3 / grad_out.shape[1] * x
    return out, grad_x, grad_w
