"""`SquareSin`: The square of x, times the sine of y.

Written by pullback from `square_sin`, and yours: it needs torch and nothing else.
Run it to test it: outputs against what `square_sin` gave, gradients against differences.
"""

import torch


class SquareSin(torch.autograd.Function):
    """The square of x, times the sine of y.

    Saved for backward:
        x  the input itself, which costs nothing to keep
        y  the input itself, which costs nothing to keep
    """

    @staticmethod
    def forward(ctx, x, y):
        square = x * x
        out = square * y.sin()
        ctx.save_for_backward(x, y)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, y = ctx.saved_tensors
        square = x * x
        grad_square = grad_out * y.sin()
        grad_y = grad_out * square * y.cos()
        grad_x = 2 * x * grad_square
        return grad_x, grad_y


# ---- self-test: `python square_sin.py` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for, in double precision."""
    x = spread(0, -1.5, 1.9, 5).requires_grad_()
    y = spread(1, 0.3, 2.0, 5).requires_grad_()
    return x, y


RECORDED = {
    "output 0": [
        0.04051219618, 1.829323595, 0.106854316, 0.4745870083, 1.271777952,
    ],
    "the gradient of `x`": [
        -0.2012372806, -1.829323595, 0.3554017982, -1.701348541, 2.717577452,
    ],
    "the gradient of `y`": [
        -0.0005650508176, 0.9824928965, 0.3454309545, 0.1327448931, 2.258824286,
    ],
}
"""What `square_sin` gave for these inputs when this was written."""


def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.linspace(0.5 + i, 1.5 + i, y.numel(), dtype=torch.float64, device=y.device)
    return row.reshape(y.shape).to(y.dtype)


def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    got = got.detach()
    expected = torch.tensor(RECORDED[what], dtype=got.dtype, device=got.device)
    allowed = {"rtol": 1e-07, "atol": 1e-07, "equal_nan": True}
    said = f"{what} is not as recorded: "
    torch.testing.assert_close(got, expected, **allowed, msg=lambda text: said + text)


def called(function, given):
    """The tensors that `function` gives, always with the same random numbers."""
    torch.manual_seed(0)
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    return tuple(y for y in outputs if isinstance(y, torch.Tensor))


def self_test():
    """Raise unless outputs and gradients are as recorded, and gradients as differences say."""
    given = inputs()
    outputs = called(SquareSin.apply, given)
    for i, y in enumerate(outputs):
        same(y, f"output {i}")
    live = [y for y in outputs if y.requires_grad]
    wanted = {"x": given[0], "y": given[1]}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{name}`")
    torch.autograd.gradcheck(lambda *given: called(SquareSin.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"SquareSin FAILED its self-test\n{error}")
    print("SquareSin: outputs and gradients are right")
