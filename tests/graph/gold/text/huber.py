def huber(x, y, grad_out):
    d = x - y
    abs_d = d.abs()
    mask = abs_d < 1
    scaled = 0.5 * d
    out = torch.where(mask, scaled * d, abs_d - 0.5).sum()
    g_masked = torch.where(mask, grad_out, 0.0)
    g_total = torch.where(mask, 0.0, grad_out) * d.sign() + g_masked * scaled
    grad_x = g_total + 0.5 * (g_masked * d)
    grad_y = -grad_x
    return out, grad_x, grad_y
