"""`SquareSin`: The square of x, times the sine of y.

Written by pullback from `square_sin`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
"""

import torch


class SquareMul(torch.autograd.Function):
    """Derived.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        sin     the input itself, which costs nothing to keep
        square  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x, sin):
        square = x * x
        mul = square * sin
        ctx.save_for_backward(x, sin, square)
        return mul

    @staticmethod
    def backward(ctx, grad_mul):
        x, sin, square = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            square = x * x
        grad_sin = grad_mul * square
        grad_square = grad_mul * sin
        grad_x = 2 * x * grad_square
        return grad_x, grad_sin


def square_sin(x, y):
    """`SquareSin`: 1 node and 1 unit as written."""
    sin = y.sin()
    mul = SquareMul.apply(x, sin)
    return mul


def reference(x, y):
    """What `SquareSin` computes, in plain PyTorch: for comparison."""
    square = x * x
    out = square * y.sin()
    return out


# ---- self-test: `python square_sin.py` ----


def spread(low, high, *shape):
    """Numbers between two, one from each of equal parts, in random order."""
    count = torch.Size(shape).numel()
    places = torch.randperm(count) + torch.rand(count, dtype=torch.float64)
    return (low + (high - low) * places / max(count, 1)).reshape(shape)


def inputs():
    """Seeded inputs like those that this was written for, in double precision."""
    torch.manual_seed(0)
    x = spread(-1.5, 1.9, 5).requires_grad_()
    y = spread(0.3, 2.0, 5).requires_grad_()
    return x, y


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
    got, expected = called(square_sin, given), called(reference, given)
    for i, (y, z) in enumerate(zip(got, expected)):
        same(y, z, f"output {i} is not that of `reference`")
    live = [i for i, y in enumerate(got) if y.requires_grad and expected[i].requires_grad]
    wanted = {"x": given[0], "y": given[1]}
    cotangents = [torch.randn_like(got[i]) for i in live]
    pulled = [
        torch.autograd.grad(
            [ys[i] for i in live], list(wanted.values()), cotangents, materialize_grads=True
        )
        for ys in (got, expected)
    ]
    for name, x, y in zip(wanted, *pulled):
        same(x, y, f"the gradient of `{name}` is not that of `reference`")
    torch.autograd.gradcheck(lambda *given: called(square_sin, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"SquareSin FAILED its self-test\n{error}")
    print("SquareSin: outputs and gradients are right")
