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


def spread(low, high, *shape):
    """Numbers between two, one from each of equal parts, in random order."""
    count = torch.Size(shape).numel()
    places = torch.randperm(count) + torch.rand(count, dtype=torch.float64)
    return (low + (high - low) * places / max(count, 1)).reshape(shape)


def inputs():
    """Seeded inputs like those that this was written for, in double precision."""
    torch.manual_seed(0)
    x = spread(-1.5, 1.9, 5).requires_grad_()
    return (x,)


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def same(got, expected, what):
    """Raise, and name `what` it is, unless two tensors are equal but for rounding."""
    allowed = {"rtol": 1e-07, "atol": 1e-08, "equal_nan": True}
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: f"{what}: {text}")


def self_test():
    """Raise unless outputs and gradients are those of `reference` and finite differences."""
    given = inputs()
    got, expected = called(Noisy.apply, given), called(reference, given)
    for i, (y, z) in enumerate(zip(got, expected)):
        same(y, z, f"output {i} is not that of `reference`")
    live = [i for i, y in enumerate(got) if y.requires_grad and expected[i].requires_grad]
    wanted = {"x": given[0]}
    cotangents = [torch.randn_like(got[i]) for i in live]
    pulled = [
        torch.autograd.grad(
            [ys[i] for i in live], list(wanted.values()), cotangents, materialize_grads=True
        )
        for ys in (got, expected)
    ]
    for name, x, y in zip(wanted, *pulled):
        same(x, y, f"the gradient of `{name}` is not that of `reference`")
    torch.autograd.gradcheck(lambda *given: called(Noisy.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Noisy FAILED its self-test\n{error}")
    print("Noisy: outputs and gradients are right")
