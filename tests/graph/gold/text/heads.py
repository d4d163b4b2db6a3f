def heads(q, k, v, grad_out):
    p = (0.5 * (q @ k.mT)).softmax(-1)
    out = p @ v
    grad_v = p.mT @ grad_out
    grad_p = grad_out @ v.mT
    g_scaled = 0.5 * (p * (grad_p - (grad_p * p).sum(-1, keepdim=True)))
    grad_q = g_scaled @ k
    grad_k = g_scaled.mT @ q
    return out, grad_q, grad_k, grad_v
