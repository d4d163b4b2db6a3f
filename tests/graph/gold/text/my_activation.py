def my_activation(x, grad_out):
    s = x.sigmoid()
    exp_x = x.exp()
    rsqrt = (exp_x + 1).rsqrt()
    out = s * rsqrt
    grad_s = grad_out * rsqrt
    grad_x = grad_s * (1 - s) * s - 0.5 * (grad_out * s) * rsqrt**3 * exp_x
    return out, grad_x
