def segment_sum(x, index, grad_out):
    out = torch.zeros_like(grad_out).index_add(0, index, x)
    grad_x = grad_out.index_select(0, index)
    return out, grad_x
