def rope(x, cos, sin, grad_out):
    a = x[:, :4]
    b = x[:, 4:]
    out = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    g_part, g_part_1 = grad_out.split([4, 4], -1)
    grad_b = g_part_1 * cos - g_part * sin
    grad_sin = g_part_1 * a - g_part * b
    grad_a = g_part_1 * sin + g_part * cos
    grad_cos = g_part_1 * b + g_part * a
    grad_x = torch.cat([grad_a, grad_b], -1)
    return out, grad_x, grad_cos, grad_sin
