"""Findings at inputs that no caller passes: the gradients are right where the contract holds.

Each function takes the step that the finding took (another size, rank or scale), with what the
package demands of its inputs kept, and asks `gradcheck`. It says whether the claim is shown.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.wild.settle import call_of, fails, in_double
from benchmarks.wild.subject import Subject, double, load, normal

gradcheck = torch.autograd.gradcheck


def pairs_of_other_sizes(subject: Subject) -> bool:
    """Real and imaginary part in a last dimension of two, which the package itself asks for."""
    sizes = ((5, 7, 2), (1, 3, 2), (2, 3, 4, 2))
    return any(fails(gradcheck, call_of(subject), (double(*size),)) for size in sizes)


def operands_of_one_shape(subject: Subject) -> bool:
    """All tensors at another rank and size together, as they are in every call."""
    call, (_, *rest) = call_of(subject), subject.inputs()
    shape = (2, 3, 2, 3)
    tensors = [double(*shape, seed=seed) for seed in range(5)]
    return fails(gradcheck, call, (*tensors, rest[-1]))


def skew_filters(subject: Subject) -> bool:
    """Other sizes of the image, more channels and larger filters, each of them skew."""
    call = call_of(subject)

    def skew(channels: int, scale: float) -> torch.Tensor:
        w = scale * double(channels, channels, 3, 3, grad=False)
        return w - w.transpose(0, 1).flip(2, 3)

    cases = [(2, 0.1, 3), (3, 0.1, 4), (2, 0.4, 5), (2, 0.8, 5)]
    return any(fails(gradcheck, call, (double(1, c, n, n), skew(c, s))) for c, s, n in cases)


def converged(subject: Subject) -> bool:
    """The same with the solver run until it has converged: then it is what backward assumes."""
    call = call_of(subject)

    def solved(activations: torch.Tensor, t: float) -> torch.Tensor:
        return call(activations, t, 200)  # type: ignore[no-any-return]

    return any(fails(gradcheck, solved, (double(4, n), 1.4)) for n in (6, 33))


def gauge(subject: Subject) -> bool:
    """What does not depend on which basis of the space was chosen: the projection onto it."""
    call = call_of(subject)

    def projection(x: torch.Tensor) -> torch.Tensor:
        basis = call(x)[0]
        return basis @ basis.mT  # type: ignore[no-any-return]

    return fails(gradcheck, projection, in_double(subject.inputs()))


def same_draws(subject: Subject) -> bool:
    """Another call between forward and backward, with the generator where it was: no difference."""
    call = call_of(subject)

    def gradient(*, other: bool) -> torch.Tensor:
        inputs = subject.inputs()
        out = call(*inputs)
        if other:
            call(*subject.inputs()).sum().backward()
        torch.manual_seed(7)
        return torch.autograd.grad(out.sum(), inputs[0])[0]

    return not torch.equal(gradient(other=False), gradient(other=True))


def square_matrices_together(subject: Subject) -> bool:
    """Both matrices of another size together: backward serves every size that they share."""
    call = call_of(subject)
    m, r = normal(2, 6, 6), normal(2, 6, 6, seed=1)
    try:
        call(m, r, 0.1).sum().backward()
    except RuntimeError:
        return True
    return False


def skew_directions(subject: Subject) -> bool:
    """The gradient in the directions that keep a matrix skew, against PyTorch's own solve."""
    (m,) = in_double(subject.inputs())
    g = double(4, 4, seed=3, grad=False)
    got = torch.autograd.grad(call_of(subject)(m.float()).double(), m, g)[0]
    eye = torch.eye(4, dtype=m.dtype)
    wanted = torch.autograd.grad(torch.linalg.solve(eye + m, eye - m), m, g)[0]
    error = (got - got.T) - (wanted - wanted.T)
    return bool(error.abs().max() > 1e-3)


def single_precision(subject: Subject) -> bool:
    """The gradient at the example in float32 is far from PyTorch's own in float64."""
    (m,) = subject.inputs()
    g = normal(*m.shape, seed=3, grad=False)
    got = torch.autograd.grad(call_of(subject)(m), m, g)[0].double()
    exact = m.detach().double().requires_grad_()
    wanted = torch.autograd.grad(torch.linalg.matrix_exp(exact), exact, g.double())[0]
    return bool((got - wanted).abs().max() > 1e-3 * wanted.abs().max())


def shared_weights(subject: Subject) -> bool:
    """Two parts that share a weight: its gradient against that of the same block in plain torch."""
    x, fm, gm, *_ = in_double(subject.inputs())
    inner = (lambda m: m.inner) if hasattr(fm, "inner") else (lambda m: m)
    inner(gm).weight = inner(fm).weight
    parameters = (*fm.parameters(), *gm.parameters())
    g = torch.ones_like(x)
    got = torch.autograd.grad(call_of(subject)(x, fm, gm, *parameters), inner(fm).weight, g)[0]
    is_inverse = "Inverse" in subject.id
    wanted = torch.autograd.grad(_coupled(x, fm, gm, is_inverse), inner(fm).weight, g)[0]
    return not torch.allclose(got, wanted)


def _coupled(x: torch.Tensor, fm: torch.nn.Module, gm: torch.nn.Module, is_inverse: bool) -> Any:
    """An additive or affine coupling, or its inverse, in plain torch."""

    def parts(m: torch.nn.Module, v: torch.Tensor) -> tuple[Any, Any]:
        out = m(v)
        return out if isinstance(out, tuple) else (1.0, out)

    a, b = x.chunk(2, dim=1)
    if is_inverse:
        scale, shift = parts(gm, a)
        second = (b - shift) / scale
        scale, shift = parts(fm, second)
        return torch.cat([(a - shift) / scale, second], 1)
    scale, shift = parts(fm, b)
    first = a * scale + shift
    scale, shift = parts(gm, first)
    return torch.cat([first, b * scale + shift], 1)


def plain_momentum(subject: Subject) -> bool:
    """Another gradient than that of the same network in plain torch, at the example or far out."""
    return any(_momentum_differs(subject, scale) for scale in (1.0, 4.0, 40.0))


def _momentum_differs(subject: Subject, scale: float) -> bool:
    x, v, gamma, functions, *_ = subject.inputs()
    x = (scale * x).detach().requires_grad_()
    params = [p for f in functions for p in f.parameters()]
    out = call_of(subject)(x, v, gamma, functions, None, True, 0, *params)
    got = torch.autograd.grad(out.sum(), [x, *params])
    y, speed = x, v
    for function in functions:
        speed = gamma * speed + (1 - gamma) * function(y)
        y = y + speed
    wanted = torch.autograd.grad(y.sum(), [x, *params])
    return not all(torch.allclose(a, b, rtol=1e-4) for a, b in zip(got, wanted, strict=True))


def small_numbers(subject: Subject) -> bool:
    """At small inputs the gradient is off by the number that is added to the denominator."""
    x = torch.full((3,), 1e-8, dtype=torch.float64, requires_grad=True)
    _, eps = subject.inputs()
    got = torch.autograd.grad(call_of(subject)(x, eps).sum(), x)[0]
    wanted = torch.autograd.grad(x.sqrt().sum(), x)[0]
    return bool(((got - wanted).abs() > 1e-3 * wanted).all())


def fourth_power(subject: Subject) -> bool:
    """Backward makes a tensor with the fourth power of the matrix size, where forward has none."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest = max(largest, out.numel())
            return out

    m = double(1, 8, 8)
    out = call_of(subject)(m, True, 1e-5)[0]
    with Watch():
        torch.autograd.grad(out.sum(), m)
    return largest >= 8**4


def attached(subject: Subject) -> bool:
    """Other inputs with the gradient that belongs to them: what is attached is what is asked."""
    call = call_of(subject)
    function = subject.inputs()[2]

    def attach(x: torch.Tensor) -> torch.Tensor:
        return call(x, 2 * x.detach(), function)  # type: ignore[no-any-return]

    return any(fails(gradcheck, attach, (double(2, 3, scale=s),)) for s in (-4.0, 1.0, 4.0))


def fields_of_one_shape(subject: Subject) -> bool:
    """Both fields of another size together."""
    fields = double(2, 3, 4, 5), double(2, 3, 4, 5, seed=1, grad=False)
    return fails(gradcheck, call_of(subject), (*fields, double(4, 5, grad=False).abs()))


def places_in_the_grid(subject: Subject) -> bool:
    """More places, in as many coordinates as the grid has dimensions."""
    first, *rest = in_double(subject.inputs())
    call = call_of(subject)
    generator = torch.Generator().manual_seed(5)

    def places(*shape: int) -> torch.Tensor:
        values = 4 * torch.rand(*shape, 2, generator=generator, dtype=torch.float64) + 0.01
        return values.requires_grad_()

    if first.shape[-1] == 2:
        return any(fails(gradcheck, call, (places(*n), *rest)) for n in ((2, 3, 4), (1, 6, 7)))
    images = double(2, 2, 5, 6)
    return fails(gradcheck, call, (images, places(2, 3, 4), *rest[1:]))


def symmetric_system(subject: Subject) -> bool:
    """The system in directions that keep the matrix symmetric, as its caller promises."""
    call = call_of(subject)

    def solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return call(0.5 * (a + a.mT), b)  # type: ignore[no-any-return]

    a, b = in_double(subject.inputs())
    scaled = (4 * a).detach().requires_grad_(), (4 * b).detach().requires_grad_()
    return any(
        fails(check, solved, inputs)
        for check in (gradcheck, torch.autograd.gradgradcheck)
        for inputs in ((a, b), scaled)
    )


def enough_nodes(subject: Subject) -> bool:
    """The integral of more periods, with as many nodes as it takes, against its closed form."""
    quad = load("xitorch.integrate:quad")
    a, b = (4 * x.detach() for x in in_double(subject.inputs()))
    a.requires_grad_()

    def integrand(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.cos(a * x)

    options = {"n": 400}
    got = quad(integrand, torch.zeros_like(b), b, params=(a,), bck_options=options, **options)
    wanted = torch.sin(a * b) / a
    ours, exact = (torch.autograd.grad(y.sum(), a)[0] for y in (got, wanted))
    return not torch.allclose(ours, exact, rtol=1e-4)


def linked_parameters(subject: Subject) -> bool:
    """The net's own parameters as arguments, as its caller passes them: each gets a gradient."""
    inputs = subject.inputs()
    parameters = list(inputs[1].parameters())
    outs = call_of(subject)(*inputs)
    found = torch.autograd.grad([o.sum() for o in outs], parameters, allow_unused=True)
    return any(g is None for g in found)


def explained_refusal(subject: Subject) -> bool:
    """Backward after `training=False` says what to do; it gives no wrong number."""
    inputs = list(subject.inputs())
    inputs[6] = False
    try:
        sum(o.sum() for o in call_of(subject)(*inputs)).backward()
    except ValueError as error:
        return "training=True" not in str(error)
    return True


def filters_of_the_package(subject: Subject) -> bool:
    """Images of other sizes, with the filters that the package makes: each equal to its flip."""
    inputs = in_double(subject.inputs())
    images = [k for k, x in enumerate(inputs) if isinstance(x, torch.Tensor) and x.requires_grad]
    for size in (12, 16):
        larger = list(inputs)
        for k in images:
            shape = [size * n // 8 if n % 4 == 0 else n for n in inputs[k].shape]
            larger[k] = double(*shape, seed=k)
        call = call_of(subject)
        if fails(partial(gradcheck, fast_mode=True), call, larger):
            return True
    return False


def served(subject: Subject) -> bool:
    """The call at the example ends in an error or not at all."""
    inputs = subject.inputs()
    try:
        call_of(subject)(*inputs).sum().backward()
    except Exception:
        return True
    return False


def symmetric_directions(subject: Subject) -> bool:
    """The eigenvalues in directions that keep the matrix symmetric, as PyTorch's own are tested."""
    call = call_of(subject)

    def values(a: torch.Tensor) -> torch.Tensor:
        return call(0.5 * (a + a.mT))[0]  # type: ignore[no-any-return]

    checks = (gradcheck, torch.autograd.gradgradcheck)
    return any(fails(check, values, in_double(subject.inputs())) for check in checks)


def implicit_slope(subject: Subject) -> bool:
    """The gradient of a root of `tanh(a y + b) + y / 2` is not the implicit one, for small `a`."""
    a = torch.full((3,), 1.3e-6, dtype=torch.float64, requires_grad=True)
    b = torch.tensor([0.661, 0.267, 0.0617], dtype=torch.float64)
    y = call_of(subject)(a, b.requires_grad_())
    got = torch.autograd.grad(y.sum(), a)[0]
    exact = -2 * torch.tanh(b.detach())  # the root, but for terms of the size of `a`
    steep = 1 - torch.tanh(b.detach()) ** 2
    return not torch.allclose(got, -2 * steep * exact, rtol=1e-3)
