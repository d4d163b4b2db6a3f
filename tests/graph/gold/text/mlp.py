def mlp(x, w1, b1, w2, b2, grad_out):
    h = (x @ w1 + b1).tanh()
    out = h @ w2 + b2
    grad_b2 = grad_out.sum(0)
    grad_w2 = h.T @ grad_out
    grad_h = grad_out @ w2.T
    g_scaled = grad_h * (1 - h**2)
    grad_b1 = g_scaled.sum(0)
    grad_w1 = x.T @ g_scaled
    grad_x = g_scaled @ w1.T
    return out, grad_x, grad_w1, grad_b1, grad_w2, grad_b2
