"""`Steps`: Several Functions, an op with two results, and one without recording.

Written by pullback from `steps`, and yours: it needs torch and nothing else.
Run it to test it: outputs against what `steps` gave, gradients against differences.
Not compared, because the program cuts them off by `no_grad` or `detach`: the gradients
of `y`.
"""

import torch


# Saved for backward:
#     nothing
class Scale(torch.autograd.Function):
    """x times a plain number."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class DivVarMeanSquareAnd2(torch.autograd.Function):
    """Derived.

    Saved for backward:
        largest   the input itself, which costs nothing to keep
        div       computed in forward, and cheaper to keep than to compute again
        var_mean  computed in forward, and cheaper to keep than to compute again
        scale     the input itself, to be differentiated again

    Written for sizes with 2 <= scale.shape[0].
    """

    @staticmethod
    def forward(ctx, scale, largest, y):
        if scale.shape[0] < 2:
            raise ValueError(
                "`DivVarMeanSquareAnd2`: scale.shape[0] must be at least 2, "
                f"got {scale.shape[0]}"
            )
        div = scale / largest
        var_mean, var_mean_1 = torch.var_mean(div)
        square = var_mean * var_mean
        scale_1 = 0.5 * y
        add = square + scale_1
        ctx.save_for_backward(largest, div, var_mean, scale)
        ctx.mark_non_differentiable(
            *([] if ctx.needs_input_grad[0] or ctx.needs_input_grad[1] else [var_mean_1]),
        )
        return var_mean_1, add

    @staticmethod
    def backward(ctx, grad_var_mean_1, grad_add):
        largest, div, var_mean, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated again: with their history
            div = scale / largest
            var_mean = torch.var_mean(div)[0]
        grad_square = grad_add.sum()
        grad_y = 0.5 * grad_add
        grad_var_mean = 2 * var_mean * grad_square
        g_scaled = 2 / (div.shape[0] - 1) * grad_var_mean * (div - div.mean())
        grad_div = g_scaled + grad_var_mean_1 / div.shape[0]
        grad_scale = grad_div / largest
        grad_largest = -(grad_div * (div / largest)).sum()
        return grad_scale, grad_largest, grad_y


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


def layer_norm_1(summed):
    getitem_2 = (summed.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    getitem = (summed - summed.mean(-1, keepdim=True)) * getitem_2
    return getitem


def steps(x, y):
    """`Steps`: 1 node and 6 units as written."""
    with torch.no_grad():
        abs_1 = y.abs()
    largest = abs_1.max()
    scale = Scale.apply(x, 3.0)
    var_mean_1, add = DivVarMeanSquareAnd2.apply(scale, largest, y)
    cube = Cube.apply(x)
    summed = add + cube
    layer_norm = layer_norm_1(summed)
    return layer_norm, var_mean_1


# ---- self-test: `python steps.py` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for, in double precision."""
    x = spread(0, -1.5, 1.9, 5).requires_grad_()
    y = spread(1, 0.3, 2.0, 5)
    return x, y


RECORDED = {
    "output 0": [
        0.233770567, -1.689467183, 0.01299653056, -0.003280108815, 1.445980194,
    ],
    "output 1": -0.1476547273,
    "the gradient of `x`": [
        0.5282474669, 0.9049130026, 0.5614532958, 0.7535022044, 1.187753636,
    ],
}
"""What `steps` gave for these inputs when this was written."""


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
    outputs = called(steps, given)
    for i, y in enumerate(outputs):
        same(y, f"output {i}")
    live = [y for y in outputs if y.requires_grad]
    wanted = {"x": given[0]}
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    leaves = list(wanted.values())
    pulled = torch.autograd.grad(live, leaves, cotangents, materialize_grads=True)
    for name, gradient in zip(wanted, pulled):
        same(gradient, f"the gradient of `{name}`")
    torch.autograd.gradcheck(lambda *given: called(steps, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Steps FAILED its self-test\n{error}")
    print("Steps: outputs and gradients are right")
