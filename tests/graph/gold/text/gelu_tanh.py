def gelu_tanh(x, grad_out):
    out = torch.nn.functional.gelu(x, approximate="tanh")
    t = ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()
    scaled_6 = (2 * torch.pi) ** -0.5 * x * (1 - t**2) * (0.134145 * x**2 + 1)
    total_3 = 0.5 * (t + 1) + scaled_6
    grad_x = grad_out * total_3
    return out, grad_x
