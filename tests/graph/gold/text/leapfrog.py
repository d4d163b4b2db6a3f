def leapfrog(q, p, grad_q_1, grad_p_1):
    diff = p - 0.05 * q.sin()
    total = q + 0.1 * diff
    diff_1 = diff - 0.1 * total.sin()
    total_1 = total + 0.1 * diff_1
    diff_2 = diff_1 - 0.1 * total_1.sin()
    q_1 = total_1 + 0.1 * diff_2
    p_1 = diff_2 - 0.05 * q_1.sin()
    grad_q_2 = grad_q_1 - 0.05 * grad_p_1 * q_1.cos()
    g_total = grad_p_1 + 0.1 * grad_q_2
    g_diff = grad_q_2 - 0.1 * g_total * total_1.cos()
    g_total_1 = g_total + 0.1 * g_diff
    g_diff_1 = g_diff - 0.1 * g_total_1 * total.cos()
    grad_p = g_total_1 + 0.1 * g_diff_1
    grad_q = g_diff_1 - 0.05 * grad_p * q.cos()
    return q_1, p_1, grad_q, grad_p
