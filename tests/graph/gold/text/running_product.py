def running_product(x, y, grad_out):
    out = (x * y).cumsum(-1).tanh()
    g_moved = (grad_out * (1 - out**2)).flip(-1).cumsum(-1).flip(-1)
    grad_y = g_moved * x
    grad_x = g_moved * y
    return out, grad_x, grad_y
