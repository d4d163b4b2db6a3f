"""`SelfAttention`, derived from `self_attention` by pullback (save='auto'): yours to keep."""

import torch


class SelfAttention(torch.autograd.Function):
    """Attention of two heads, with its projections.

    Saved for backward:
        x          the input itself, which costs nothing to keep
        w_in       the input itself, which costs nothing to keep
        w_out      the input itself, which costs nothing to keep
        product    computed in forward, and cheaper to keep than to compute again
        probs      computed in forward, and cheaper to keep than to compute again
        product_1  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x, w_in, w_out):
        product = x @ w_in
        reshaped = product.reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = reshaped.unbind()
        probs = (q @ k.mT / 2).softmax(-1)
        product_1 = probs @ v
        mixed = product_1.transpose(1, 2).flatten(2, 3)
        out = mixed @ w_out
        ctx.save_for_backward(x, w_in, w_out, product, probs, product_1)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, w_in, w_out, product, probs, product_1 = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            product = x @ w_in
            reshaped = product.reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
            q, k, v = reshaped.unbind()
            probs = (q @ k.mT / 2).softmax(-1)
            product_1 = probs @ v
        mixed = product_1.transpose(1, 2).flatten(2, 3)
        grad_w_out = mixed.flatten(0, 1).T @ grad_out.flatten(0, 1)
        grad_mixed = grad_out @ w_out.T
        g_reshaped = grad_mixed.reshape(grad_out.shape[0], grad_out.shape[1], 2, 4)
        g_transposed = g_reshaped.transpose(1, 2)
        grad_v = probs.mT @ g_transposed
        reshaped = product.reshape(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = reshaped.unbind()
        grad_probs = g_transposed @ v.mT
        g_scaled = probs * (grad_probs - (grad_probs * probs).sum(-1, keepdim=True))
        g_ratio = g_scaled / 2
        grad_q = g_ratio @ k
        grad_k = g_ratio.mT @ q
        g_reshaped_1 = torch.stack([grad_q, grad_k, grad_v]).permute(1, 3, 0, 2, 4)
        g_reshaped_2 = g_reshaped_1.flatten(2, 4)
        grad_w_in = x.flatten(0, 1).T @ g_reshaped_2.flatten(0, 1)
        grad_x = g_reshaped_2 @ w_in.T
        return grad_x, grad_w_in, grad_w_out
