"""`KlDivergence`, derived from `kl_divergence` by pullback (save='auto'): yours to keep."""

import torch


class KlDivergence(torch.autograd.Function):
    """How far the distribution of q is from that of p.

    Saved for backward:
        p_logits  the input itself, which costs nothing to keep
        q_logits  the input itself, which costs nothing to keep

    Written for sizes with p_logits.dim() == 2, q_logits.shape == p_logits.shape.
    """

    @staticmethod
    def forward(ctx, p_logits, q_logits):
        if p_logits.dim() != 2:
            raise ValueError(
                "`KlDivergence`: p_logits.dim() must be 2, "
                f"got {p_logits.dim()}"
            )
        if q_logits.shape != p_logits.shape:
            raise ValueError(
                "`KlDivergence`: q_logits.shape must be p_logits.shape, "
                f"got {tuple(q_logits.shape)} and {tuple(p_logits.shape)}"
            )
        log_p = p_logits.log_softmax(-1)
        log_q = q_logits.log_softmax(-1)
        out = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
        ctx.save_for_backward(p_logits, q_logits)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        p_logits, q_logits = ctx.saved_tensors
        g_ratio = grad_out / p_logits.shape[0]
        log_p = p_logits.log_softmax(-1)
        exp_log_p = log_p.exp()
        g_scaled = g_ratio * exp_log_p
        log_q = q_logits.log_softmax(-1)
        grad_log_q = -g_scaled
        grad_log_p = g_scaled + g_ratio * (log_p - log_q) * exp_log_p
        grad_q_logits = grad_log_q - log_q.exp() * grad_log_q.sum(-1, keepdim=True)
        grad_p_logits = grad_log_p - exp_log_p * grad_log_p.sum(-1, keepdim=True)
        return grad_p_logits, grad_q_logits
