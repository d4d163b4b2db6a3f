def linear_relu(x, w, b, grad_out):
    h = torch.nn.functional.linear(x, w, b)
    out = h.relu()
    grad_h = grad_out.masked_fill(out <= 0, 0)
    grad_x = grad_h @ w
    grad_b = grad_h.sum(0)
    grad_w = grad_h.T @ x
    return out, grad_x, grad_w, grad_b
