def elu(x, grad_out):
    out = torch.nn.functional.elu(x)
    grad_x = torch.ops.aten.elu_backward.default(grad_out, 1.0, 1, 1, False, x)
    return out, grad_x
