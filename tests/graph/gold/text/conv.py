def conv(x, w, b, grad_out):
    out = torch.nn.functional.conv2d(x, w, b, stride=2, padding=1).relu()
    g_masked = grad_out.masked_fill(out <= 0, 0)
    grad_b = g_masked.sum((0, 2, 3))
    grad_x = torch.nn.grad.conv2d_input(x.shape, w, g_masked, stride=2, padding=1)
    grad_w = torch.nn.grad.conv2d_weight(x, w.shape, g_masked, stride=2, padding=1)
    return out, grad_x, grad_w, grad_b
