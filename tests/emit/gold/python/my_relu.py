"""`MyReLU`: `max(x, 0)`, with forward mode and a batching rule.

Written by pullback from `MyReLU`, and yours: it needs torch and nothing else.
Run it to test it: outputs against `reference`, gradients against differences.
"""

import torch


# Saved for backward:
#     output  an output, which the caller keeps anyway
class MyReLU(torch.autograd.Function):
    """`max(x, 0)`, with forward mode and a batching rule.

    Backward masks the cotangent where the output is 0; `jvp` masks the tangent in the same way.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        # The output tells as much as the input, and the next layer keeps it anyway.
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx, cotangent):
        (output,) = ctx.saved_tensors
        # Not `cotangent * (output > 0)`: that makes inf * 0 = nan out of an infinite cotangent.
        return cotangent.masked_fill(output <= 0, 0)

    @staticmethod
    def jvp(ctx, tangent):
        (output,) = ctx.saved_tensors
        return tangent.masked_fill(output <= 0, 0)


def reference(x):
    """What `MyReLU` computes, in plain PyTorch: for comparison."""
    out = x.clamp(min=0)
    return out


# ---- self-test: `python my_relu.py` ----


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
    got, expected = called(MyReLU.apply, given), called(reference, given)
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
    torch.autograd.gradcheck(lambda *given: called(MyReLU.apply, given), given)


if __name__ == "__main__":
    try:
        self_test()
    except Exception as error:
        raise SystemExit(f"MyReLU FAILED its self-test\n{error}")
    print("MyReLU: outputs and gradients are right")
