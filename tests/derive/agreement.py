"""A program against what is made of it: class, text and composition."""

import torch

import pullback as pb
from pullback.capture.trees import tensor_leaves


def made_of(program, *examples, text=True):
    """What is made of a program, by name; each takes the arguments of the program."""
    derived = pb.derive(program, *examples)
    made = {
        "class": derived.apply,
        "composition": pb.combine(program, *examples, backend="eager").apply,
    }
    if text:
        space = {}
        exec(derived.source(), space)
        made["text"] = next(
            value.apply
            for value in space.values()
            if isinstance(value, type) and issubclass(value, torch.autograd.Function)
        )
    return made


def results_of(function, args):
    """Outputs and gradients, of the first order and by way of a graph of the second, by name."""
    args = [x.detach().requires_grad_(x.requires_grad) if _is_tensor(x) else x for x in args]
    inputs = [x for x in args if _is_tensor(x) and x.requires_grad]
    outputs = tensor_leaves(function(*args))
    linked = [y for y in outputs if y.requires_grad]
    cotangents = [_waves(y).requires_grad_() for y in linked]
    first = torch.autograd.grad(
        linked, inputs, [c.detach() for c in cotangents], retain_graph=True, allow_unused=True
    )
    again = torch.autograd.grad(linked, inputs, cotangents, create_graph=True, allow_unused=True)
    bent = [g for g in again if g is not None and g.requires_grad]
    second = torch.autograd.grad(
        bent, [*inputs, *cotangents], [_waves(g) for g in bent], materialize_grads=True
    )
    return {"outputs": outputs, "gradients": first, "second": second}


def _waves(like):
    numbers = torch.arange(like.numel(), dtype=torch.float64, device=like.device).add(1).cos()
    return numbers.reshape(like.shape).to(like.dtype)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def assert_agrees(program, *examples, at=None, text=True):
    """Require all that is made of a program with `examples` to agree with it at `at`."""
    args = examples if at is None else at
    expected = results_of(program, args)
    for name, function in made_of(program, *examples, text=text).items():
        got = results_of(function, args)
        for kind, values in expected.items():
            torch.testing.assert_close(
                got[kind], values, equal_nan=True, msg=lambda m, n=name, k=kind: f"{n}, {k}: {m}"
            )
