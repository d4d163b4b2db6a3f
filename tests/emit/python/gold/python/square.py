"""`Square`: The square of x.

Written by pullback from `Square`, and yours: it needs torch and nothing else.
Run it to test it: outputs against what `Square` gave, gradients against differences.
"""

import torch


# Saved for backward:
#     x  an input, which costs nothing to keep
class Square(torch.autograd.Function):
    """The square of x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


# ---- self-test: `python square.py` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for, in double precision."""
    x = spread(0, -1.5, 1.9, 5).requires_grad_()
    return (x,)


RECORDED = {
    "output 0": [0.0405279554, 2.25, 0.3615804048, 0.4863233499, 1.971066295],
    "the gradient of `x`": [
        -0.2013155617, -2.25, 1.202631124, -1.743422191, 4.211840056,
    ],
}
"""What `Square` gave for these inputs when this was written."""


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
    outputs = called(Square.apply, given)
    for i, y in enumerate(outputs):
        same(y, f"output {i}")
    live = [y for y in outputs if y.requires_grad]
    wanted = {"x": given[0]}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{name}`")
    torch.autograd.gradcheck(lambda *given: called(Square.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Square FAILED its self-test\n{error}")
    print("Square: outputs and gradients are right")
