"""`RungeKutta`, derived from `runge_kutta` by pullback (save='auto'): yours to keep."""

import torch


class RungeKutta(torch.autograd.Function):
    """One step of fourth order of a nonlinear oscillator.

    Saved for backward:
        y   the input itself, which costs nothing to keep
        dt  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, y, dt):
        position, speed = y.unbind(-1)
        k1 = torch.stack([speed, (1 - position**2) * speed - position], -1)
        ratio = dt / 2
        state = y + ratio * k1
        position_1, speed_1 = state.unbind(-1)
        k2 = torch.stack([speed_1, (1 - position_1**2) * speed_1 - position_1], -1)
        state_1 = y + ratio * k2
        position_2, speed_2 = state_1.unbind(-1)
        k3 = torch.stack([speed_2, (1 - position_2**2) * speed_2 - position_2], -1)
        state_2 = y + dt * k3
        position_3, speed_3 = state_2.unbind(-1)
        k4 = torch.stack([speed_3, (1 - position_3**2) * speed_3 - position_3], -1)
        out = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        ctx.save_for_backward(y, dt)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        y, dt = ctx.saved_tensors
        grad_k4 = grad_out * (dt / 6)
        position, speed = y.unbind(-1)
        diff = 1 - position**2
        k1 = torch.stack([speed, diff * speed - position], -1)
        ratio = dt / 2
        state = y + ratio * k1
        position_1, speed_1 = state.unbind(-1)
        diff_1 = 1 - position_1**2
        k2 = torch.stack([speed_1, diff_1 * speed_1 - position_1], -1)
        state_1 = y + ratio * k2
        position_2, speed_2 = state_1.unbind(-1)
        diff_2 = 1 - position_2**2
        k3 = torch.stack([speed_2, diff_2 * speed_2 - position_2], -1)
        state_2 = y + dt * k3
        position_3, speed_3 = state_2.unbind(-1)
        diff_3 = 1 - position_3**2
        k4 = torch.stack([speed_3, diff_3 * speed_3 - position_3], -1)
        g_scaled = 2 * grad_k4
        g_part = grad_k4[:, 1]
        grad_speed_3 = grad_k4[:, 0] + g_part * diff_3
        grad_position_3 = -g_part - g_part * speed_3 * (2 * position_3)
        grad_state_2 = torch.stack([grad_position_3, grad_speed_3], -1)
        g_ratio = (grad_out * (k1 + 2 * k2 + 2 * k3 + k4)).sum() / 6
        g_total = g_ratio + (grad_state_2 * k3).sum()
        grad_k3 = g_scaled + grad_state_2 * dt
        g_part_1 = grad_k3[:, 1]
        grad_speed_2 = grad_k3[:, 0] + g_part_1 * diff_2
        grad_position_2 = -g_part_1 - g_part_1 * speed_2 * (2 * position_2)
        grad_state_1 = torch.stack([grad_position_2, grad_speed_2], -1)
        grad_k2 = g_scaled + grad_state_1 * ratio
        g_part_2 = grad_k2[:, 1]
        grad_speed_1 = grad_k2[:, 0] + g_part_2 * diff_1
        grad_position_1 = -g_part_2 - g_part_2 * speed_1 * (2 * position_1)
        grad_state = torch.stack([grad_position_1, grad_speed_1], -1)
        grad_k1 = grad_k4 + grad_state * ratio
        grad_dt = g_total + (grad_state_1 * k2).sum() / 2 + (grad_state * k1).sum() / 2
        g_part_3 = grad_k1[:, 1]
        grad_speed = grad_k1[:, 0] + g_part_3 * diff
        grad_position = -g_part_3 - g_part_3 * speed * (2 * position)
        g_total_1 = grad_out + grad_state_2 + grad_state_1 + grad_state
        grad_y = g_total_1 + torch.stack([grad_position, grad_speed], -1)
        return grad_y, grad_dt
