def softmax_by_hand(x, grad_out):
    max_ = x.amax(-1, keepdim=True)
    e = (x - max_).exp()
    sum_e = e.sum(-1, keepdim=True)
    out = e / sum_e
    grad_e = grad_out / sum_e - (grad_out * (out / sum_e)).sum(-1, keepdim=True)
    g_scaled = grad_e * e
    mask = max_ == x
    g_scaled_2 = g_scaled.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True) * mask
    grad_x = g_scaled - g_scaled_2
    return out, grad_x
