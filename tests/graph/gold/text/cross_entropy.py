def cross_entropy(logits, target, grad_out):
    log_probs = logits.log_softmax(-1)
    skip = (target == -100).unsqueeze(-1)
    classes = target.unsqueeze(-1).masked_fill(skip, 0)
    count = (target != -100).sum().to(torch.float32)
    out = (-log_probs.gather(-1, classes)).masked_fill(skip, 0).sum() / count
    placed = torch.zeros_like(log_probs).scatter(-1, classes, -1.0)
    masked_1 = placed.masked_fill(skip, 0)
    g_scaled = masked_1 * (grad_out / count)
    grad_logits = g_scaled - log_probs.exp() * g_scaled.sum(-1, keepdim=True)
    return out, grad_logits
