def swish(x, grad_out):
    sigmoid_x = x.sigmoid()
    out = x * sigmoid_x
    grad_x = grad_out * sigmoid_x + grad_out * x * (1 - sigmoid_x) * sigmoid_x
    return out, grad_x
