"""Defects that were found by reading, each shown by a run of a few lines."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.wild.settle import call_of
from benchmarks.wild.subject import Subject, normal


def checkpointed(subject: Subject) -> bool:
    """Backward fails under a checkpoint, and not without."""
    inputs = subject.inputs()
    call_of(subject)(*inputs).abs().sum().backward()
    try:
        checkpoint(call_of(subject), *inputs, use_reentrant=False).abs().sum().backward()
    except RuntimeError:
        return True
    return False


def first_row_only(subject: Subject) -> bool:
    """The gradient of a weighted sum of the log determinants, against the same in plain torch."""
    inputs = subject.inputs()
    estimator, net, x, terms, noise, coefficient = inputs[:6]
    weights = torch.arange(1.0, 5.0)
    got = torch.autograd.grad(call_of(subject)(*inputs)[1], x, weights)[0]
    plain = estimator(net(x), x, terms, noise, coefficient, True)
    wanted = torch.autograd.grad(plain, x, weights)[0]
    return not torch.allclose(got, wanted)


def strided_cotangent(subject: Subject) -> bool:
    """Backward fails for a cotangent that is transposed in memory."""
    inputs = subject.inputs()
    out = call_of(subject)(*inputs)
    g = torch.ones_like(out).transpose(0, 1).contiguous().transpose(0, 1)
    try:
        torch.autograd.grad(out, inputs[:2], g)
    except RuntimeError:
        return True
    return False


def conjugate_cotangent(subject: Subject) -> bool:
    """Backward fails for a cotangent that is a conjugate view, and not for a copy of it."""
    inputs = subject.inputs()
    out = call_of(subject)(*inputs)
    g = torch.ones_like(out)
    torch.autograd.grad(out, inputs[0], g, retain_graph=True)
    try:
        torch.autograd.grad(out, inputs[0], g.conj())
    except RuntimeError:
        return True
    return False


def one_element(subject: Subject) -> bool:
    """The gradient of one number is NaN."""
    x = normal(1)
    call_of(subject)(x).sum().backward()
    return x.grad is not None and bool(x.grad.isnan().all())


def optional_argument(subject: Subject) -> bool:
    """Backward fails when the optional argument of forward is given, as None."""
    x = normal(3, 5)
    try:
        call_of(subject)(x, 0.5, None).sum().backward()
    except RuntimeError:
        return True
    return False


def second_output(subject: Subject) -> bool:
    """The gradient through the second output alone is zero, and its derivative is not."""
    (x,) = subject.inputs()
    got = torch.autograd.grad(call_of(subject)(x)[1].sum(), x, allow_unused=True)[0]
    plain = 0.7 * x.abs().mean((3, 2, 1), keepdim=True)
    wanted = torch.autograd.grad(plain.sum(), x)[0]
    return got is None or not torch.allclose(got, wanted)


def tiny_numbers(subject: Subject) -> bool:
    """The gradient at 1e-25 is NaN, where its limit is zero."""
    x = torch.full((2,), 1e-25, requires_grad=True)
    call_of(subject)(x).sum().backward()
    return x.grad is not None and bool(x.grad.isnan().all())


def no_forward_mode(subject: Subject) -> bool:
    """The class has a `jvp`, and forward mode fails."""
    inputs = subject.inputs()
    call = call_of(subject)
    primals = tuple(x.detach() for x in inputs[:2])
    try:
        torch.func.jvp(lambda *xs: call(*xs, *inputs[2:]), primals, primals)
    except Exception:
        return True
    return False


def second_of_surrogate(subject: Subject) -> bool:
    """The surrogate's own derivative is not what a second backward gives."""
    call = call_of(subject)

    def first(factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = subject.inputs()
        x = (inputs[0].detach().double() + factor).requires_grad_()
        rest = [v.detach().double() if isinstance(v, torch.Tensor) else v for v in inputs[1:]]
        out = call(x, *rest)
        return x, torch.autograd.grad(out.sum(), x, create_graph=True)[0]

    x, g = first(0.0)
    step = 1e-6
    wanted = (first(step)[1] - first(-step)[1]).detach() / (2 * step)
    if not g.requires_grad:
        return bool(wanted.abs().max() > 1e-4)
    got = torch.autograd.grad(g.sum(), x, allow_unused=True)[0]
    got = torch.zeros_like(wanted) if got is None else got
    return not torch.allclose(got, wanted, atol=1e-4)


def guarded_qr(subject: Subject) -> bool:
    """The gradient of a tiny matrix is far from that of PyTorch's own QR."""
    found = []
    for call in (call_of(subject), torch.linalg.qr):
        a = (1e-9 * normal(4, 3, seed=3).double()).detach().requires_grad_()
        q, r = call(a)
        found.append(torch.autograd.grad(q[0].sum() + r.sum(), a)[0])
    got, wanted = found
    return bool((got - wanted).abs().max() > 0.05 * wanted.abs().max())


def rounded_in_eager_mode(subject: Subject) -> bool:
    """In float64, eager results are those of float32 to the bit, and compiled ones are not."""
    inputs = [
        x.detach().double() if torch.is_floating_point(x) else x for x in subject.inputs()[:2]
    ]
    call, rest = call_of(subject), subject.inputs()[2:]
    eager = call(*inputs, *rest)
    compiled = torch.compile(call, backend="aot_eager")(*inputs, *rest)
    is_rounded = torch.equal(eager, eager.float().double())
    return is_rounded and not torch.equal(eager, compiled)


def aliased_in_silence(subject: Subject) -> bool:
    """After a write into the output, what is made of the input has a gradient without that."""
    given, *rest = subject.inputs()
    x = given.detach().requires_grad_()
    inner = x * 1
    made = call_of(subject)(inner, *rest)
    (made[0] if isinstance(made, tuple) else made).mul_(3)
    got = torch.autograd.grad((inner**2).sum(), x)[0]
    is_changed = torch.equal(inner, 3 * x)
    return is_changed and not torch.allclose(got, 18 * x)


def small_matrix(subject: Subject) -> bool:
    """In float64, the gradient of a small matrix is far from that of PyTorch's own exponential."""
    found = []
    g = normal(4, 4, seed=3, grad=False).double()
    for call in (call_of(subject), torch.linalg.matrix_exp):
        m = (1e-3 * subject.inputs()[0].detach().double()).requires_grad_()
        found.append(torch.autograd.grad(call(m), m, g)[0])
    got, wanted = found
    return bool((got - wanted).abs().max() > 0.05 * wanted.abs().max())


def first_row_only_of_parameters(subject: Subject) -> bool:
    """The same as `first_row_only`, for the parameters of the net."""
    inputs = subject.inputs()
    estimator, net, x, terms, noise, coefficient = inputs[:6]
    weights, parameters = torch.arange(1.0, 5.0), tuple(net.parameters())
    got = torch.autograd.grad(call_of(subject)(*inputs)[1], parameters, weights)
    plain = estimator(net(x), x, terms, noise, coefficient, True)
    wanted = torch.autograd.grad(plain, parameters, weights, allow_unused=True)
    pairs = [(a, b) for a, b in zip(got, wanted, strict=True) if b is not None]
    return not all(torch.allclose(a, b) for a, b in pairs)


def dropped_anew(subject: Subject) -> bool:
    """Backward runs the second inner module again on the same numbers, and dropout drops others."""

    class Dropped(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.nn.functional.dropout(super().forward(x))
            calls.append((x.detach().clone(), y.detach().clone()))
            return y

    calls: list[tuple[torch.Tensor, torch.Tensor]] = []
    x, first, _ = subject.inputs()[:3]
    second = Dropped(3, 3)
    out = call_of(subject)(x, first, second, *first.parameters(), *second.parameters())
    out.sum().backward()
    (given, y), *again = calls
    same = [other for other_given, other in again if torch.equal(other_given, given)]
    return bool(same) and not any(torch.equal(other, y) for other in same)
