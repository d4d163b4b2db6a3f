def gelu(x, grad_out):
    out = torch.nn.functional.gelu(x)
    cdf = 0.5 * ((2**-0.5 * x).erf() + 1)
    pdf = (2 * torch.pi) ** -0.5 * (-0.5 * x**2).exp()
    grad_x = grad_out * (cdf + x * pdf)
    return out, grad_x
