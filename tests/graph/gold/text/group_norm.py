def group_norm(x, w, b, grad_out):
    reshaped = x.reshape(x.shape[0], 2, -1)
    mean = reshaped.mean(-1, keepdim=True)
    rstd = (reshaped.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    reshaped_1 = w.reshape(-1, 1)
    out = ((reshaped - mean) * rstd).reshape(x.shape) * reshaped_1 + b.reshape(-1, 1)
    xhat = (x.reshape(grad_out.shape[0], 2, -1) - mean) * rstd
    grad_xhat = (grad_out * reshaped_1).reshape(grad_out.shape[0], 2, -1)
    slope = (grad_xhat * xhat).mean(-1, keepdim=True)
    g_scaled_3 = rstd * (grad_xhat - grad_xhat.mean(-1, keepdim=True) - xhat * slope)
    grad_x = g_scaled_3.reshape(x.shape)
    grad_w = (grad_out * xhat.reshape(x.shape)).sum((0, 2))
    grad_b = grad_out.sum((0, 2))
    return out, grad_x, grad_w, grad_b
