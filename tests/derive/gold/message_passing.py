"""`MessagePassing`, derived from `message_passing` by pullback (save='auto'): yours to keep."""

import torch


class MessagePassing(torch.autograd.Function):
    """Each node takes up the messages that its neighbours send.

    Saved for backward:
        nodes     the input itself, which costs nothing to keep
        source    the input itself, which costs nothing to keep
        target    the input itself, which costs nothing to keep
        w         the input itself, which costs nothing to keep
        messages  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, nodes, source, target, w):
        messages = (nodes[source] @ w).tanh()
        inbox = torch.zeros_like(nodes).index_add(0, target, messages)
        out = nodes + inbox
        ctx.save_for_backward(nodes, source, target, w, messages)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        nodes, source, target, w, messages = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            messages = (nodes[source] @ w).tanh()
        grad_messages = grad_out.index_select(0, target)
        g_scaled = grad_messages * (1 - messages**2)
        grad_w = nodes[source].T @ g_scaled
        g_product = g_scaled @ w.T
        g_placed = torch.zeros_like(nodes).index_put((source,), g_product, accumulate=True)
        grad_nodes = grad_out + g_placed
        return grad_nodes, None, None, grad_w
