"""`Scale`: x times a plain number.

Written by pullback from `Scale`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
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


def tested(x):
    """`Scale` with the plain arguments that this was written for."""
    return Scale.apply(x, 3.0)


def reference(x):
    """What `Scale` computes, in plain PyTorch: for comparison."""
    out = 3 * x
    return out


# ---- self-test: `python scale.py` ----


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
    got, expected = called(tested, given), called(reference, given)
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
    torch.autograd.gradcheck(lambda *given: called(tested, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"Scale FAILED its self-test\n{error}")
    print("Scale: outputs and gradients are right")
