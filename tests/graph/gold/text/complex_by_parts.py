def complex_by_parts(x, y, grad_out):
    xr = x[:, 0]
    xi = x[:, 1]
    yr = y[:, 0]
    yi = y[:, 1]
    out = torch.stack([xr * yr - xi * yi, xr * yi + xi * yr], -1)
    g_part = grad_out[:, 0]
    g_part_1 = grad_out[:, 1]
    grad_xi = g_part_1 * yr - g_part * yi
    grad_yi = g_part_1 * xr - g_part * xi
    grad_xr = g_part_1 * yi + g_part * yr
    grad_yr = g_part_1 * xi + g_part * xr
    grad_y = torch.stack([grad_yr, grad_yi], -1)
    grad_x = torch.stack([grad_xr, grad_xi], -1)
    return out, grad_x, grad_y
