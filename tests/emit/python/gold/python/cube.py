"""`Cube`: x to the third; saves an intermediate, and names its gradient.

Written by pullback from `Cube`, and yours: it needs torch and nothing else.
Run it to test it: outputs against what `Cube` gave, gradients against differences.
"""

import torch


class Cube(torch.autograd.Function):
    """x to the third; saves an intermediate, and names its gradient.

    Saved for backward:
        x       the input itself, which costs nothing to keep
        square  computed in forward, and cheaper to keep than to compute again
    """

    @staticmethod
    def forward(ctx, x):
        square = x * x
        out = x * square
        ctx.save_for_backward(x, square)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, square = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            square = x * x
        grad_x = grad_out * (2 * x * x + square)
        return grad_x


# ---- self-test: `python cube.py` ----


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
    "output 0": [-0.008158908108, -3.375, 0.2174239242, -0.3391467681, 2.767271991],
    "the gradient of `x`": [
        0.0607919331, 5.0625, 1.084741214, 1.823712562, 8.869798328,
    ],
}
"""What `Cube` gave for these inputs when this was written."""


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
    outputs = called(Cube.apply, given)
    for i, y in enumerate(outputs):
        same(y, f"output {i}")
    live = [y for y in outputs if y.requires_grad]
    wanted = {"x": given[0]}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{name}`")
    torch.autograd.gradcheck(lambda *given: called(Cube.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Cube FAILED its self-test\n{error}")
    print("Cube: outputs and gradients are right")
