"""`Noisy`: x, a part of it dropped.

Written by pullback from `noisy`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
"""

import torch


class Noisy(torch.autograd.Function):
    """x, a part of it dropped.

    Saved for backward:
        x                 the input itself, which costs nothing to keep
        native_dropout_0  computed in forward, and cheaper to keep than to compute again
        native_dropout_1  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x):
        native_dropout_0, native_dropout_1 = torch.native_dropout(x, 0.5, train=True)
        out = native_dropout_0 * x
        ctx.save_for_backward(x, native_dropout_0, native_dropout_1)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, native_dropout_0, native_dropout_1 = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError(
                "`Noisy` is differentiable once: it keeps what it drew or what others computed"
            )
        g_scaled = grad_out * x
        g_native_dropout = torch.ops.aten.native_dropout_backward.default(
            g_scaled, native_dropout_1, 2.0
        )
        grad_x = grad_out * native_dropout_0 + g_native_dropout
        return grad_x


def reference(x):
    """What `Noisy` computes, in plain PyTorch: for comparison."""
    native_dropout_x = torch.native_dropout(x, 0.5, train=True)
    out = native_dropout_x[0] * x
    return out


# ---- self-test: `python noisy.py` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for, in double precision."""
    x = spread(0, -1.5, 1.9, 5).requires_grad_()
    return (x,)


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def self_test():
    """Raise unless outputs are those of `reference`, and gradients as differences say."""
    given = inputs()
    outputs = called(Noisy.apply, given)
    for y, z in zip(outputs, called(reference, given)):
        torch.testing.assert_close(y, z, msg=lambda text: f"an output is not right: {text}")
    torch.autograd.gradcheck(lambda *given: called(Noisy.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Noisy FAILED its self-test\n{error}")
    print("Noisy: outputs and gradients are right")
