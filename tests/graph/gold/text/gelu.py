def gelu(x, grad_out):
    out = torch.nn.functional.gelu(x)
    cdf = 0.5 * ((0.7071067811865476 * x).erf() + 1)
    pdf = 0.3989422804014327 * (-0.5 * x ** 2).exp()
    grad_x = grad_out * (cdf + x * pdf)
    return out, grad_x
