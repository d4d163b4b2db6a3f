def cross_entropy(logits, target, grad_out):
    log_probs = logits.log_softmax(-1)
    out = torch.nn.functional.nll_loss(log_probs, target)
    count = (target != -100).sum()
    skip = (target == -100).unsqueeze(-1)
    classes = target.unsqueeze(-1).masked_fill(skip, 0)
    share = (-(grad_out / count)).masked_fill(skip, 0)
    g_placed = torch.zeros_like(log_probs).scatter(-1, classes, share)
    grad_logits = g_placed - log_probs.exp() * g_placed.sum(-1, keepdim=True)
    return out, grad_logits
