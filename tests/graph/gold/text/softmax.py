def softmax(x, grad_out):
    out = x.softmax(-1)
    grad_x = out * (grad_out - (grad_out * out).sum(-1, keepdim=True))
    return out, grad_x
