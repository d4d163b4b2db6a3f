def embedding(index, table, grad_out):
    out = 2 * torch.nn.functional.embedding(index, table)
    g_scaled = 2 * grad_out
    grad_table = torch.zeros_like(table).index_put((index,), g_scaled, accumulate=True)
    return out, grad_table
