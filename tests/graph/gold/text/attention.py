def attention(q, k, v, grad_out):
    p = (q @ k.mT / 2).softmax(-1)
    out = p @ v
    grad_v = p.mT @ grad_out
    grad_p = grad_out @ v.mT
    g_ratio = p * (grad_p - (grad_p * p).sum(-1, keepdim=True)) / 2
    grad_q = g_ratio @ k
    grad_k = g_ratio.mT @ q
    return out, grad_q, grad_k, grad_v
