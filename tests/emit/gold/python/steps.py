"""`Steps`: Several Functions, an op with two results, and one without recording.

Written by pullback from `steps`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
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
    """

    @staticmethod
    def forward(ctx, scale, largest, y):
        div = scale / largest
        var_mean, var_mean_1 = torch.var_mean(div)
        square = var_mean * var_mean
        scale_1 = 0.5 * y
        add = square + scale_1
        ctx.save_for_backward(largest, div, var_mean, scale)
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


def reference(x, y):
    """What `Steps` computes, in plain PyTorch: for comparison."""
    largest = y.abs().max()
    width, middle = torch.var_mean(3 * x / largest)
    square = x * x
    summed = width * width + 0.5 * y + x * square
    mean = summed.mean(-1, keepdim=True)
    rstd = (summed.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    out0 = (summed - mean) * rstd
    return out0, middle


# ---- self-test: `python steps.py` ----


def spread(low, high, *shape):
    """Numbers between two, one from each of equal parts, in random order."""
    count = torch.Size(shape).numel()
    places = torch.randperm(count) + torch.rand(count, dtype=torch.float64)
    return (low + (high - low) * places / max(count, 1)).reshape(shape)


def inputs():
    """Seeded inputs like those that this was written for, in double precision."""
    torch.manual_seed(0)
    x = spread(-1.5, 1.9, 5).requires_grad_()
    y = spread(0.3, 2.0, 5)
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
    got, expected = called(steps, given), called(reference, given)
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
    torch.autograd.gradcheck(lambda *given: called(steps, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Steps FAILED its self-test\n{error}")
    print("Steps: outputs and gradients are right")
