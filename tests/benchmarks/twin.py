"""Run a function and its plain twin in the same way, and give what each computed."""

import itertools

import torch

from benchmarks.faults.sound.entry import Sound


def call_of(target):
    """The function as something to call."""
    return getattr(target, "apply", target)


def tensors_of(value):
    """The tensors among the arguments or the outputs, in order."""
    values = value if isinstance(value, tuple | list) else (value,)
    return [x for x in values if isinstance(x, torch.Tensor)]


def converted(args, change):
    """The arguments with `change` applied to every floating or complex tensor, as leaves."""

    def convert(x):
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x.clone() if isinstance(x, torch.Tensor) else x
        return change(x.detach()).requires_grad_(x.requires_grad)

    return tuple(convert(x) for x in args)


def leaves_of(args):
    """The tensors among the arguments that require grad."""
    return [x for x in tensors_of(args) if x.requires_grad]


def needing(args, wanted):
    """New leaves of the same values, of which only those numbered in `wanted` require grad."""
    numbers = itertools.count()
    return tuple(
        x.detach().clone().requires_grad_(next(numbers) in wanted)
        if isinstance(x, torch.Tensor) and x.requires_grad
        else x
        for x in args
    )


# ---- other sizes ----


def cut_to(args, old, new):
    """The arguments with every dimension of size `old` cut to `new`."""

    def cut(x):
        for d in range(x.dim()):
            if x.shape[d] == old:
                x = x.narrow(d, 0, new)
        return x.clone()

    return tuple(
        cut(x.detach()).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in args
    )


def raised_to(args, rank):
    """The arguments with one dimension more in front of each tensor, or with one less."""
    return tuple(
        (x.detach()[None] if rank > 0 else x.detach()[0]).clone().requires_grad_(x.requires_grad)
        if isinstance(x, torch.Tensor) and (rank > 0 or x.dim())
        else x
        for x in args
    )


def variants_of(args):
    """Arguments of other sizes and ranks, not all of which make sense."""
    sizes = {n for x in tensors_of(args) for n in x.shape}
    yield from (cut_to(args, old, new) for old in sizes for new in (0, 1, 2) if new < old)
    yield from (raised_to(args, rank) for rank in (-1, 1))


# ---- cotangents ----


def contiguous(shape, dtype, rng):
    """Normal numbers."""
    return torch.randn(shape, generator=rng, dtype=dtype)


def transposed(shape, dtype, rng):
    """Normal numbers with the strides in the opposite order."""
    return torch.randn(shape[::-1], generator=rng, dtype=dtype).permute(
        tuple(range(len(shape)))[::-1]
    )


def sliced(shape, dtype, rng):
    """Every other one of normal numbers, from the second on."""
    base = torch.randn([2 * n + 1 for n in shape], generator=rng, dtype=dtype)
    return base[tuple(slice(1, None, 2) for _ in shape)]


def expanded(shape, dtype, rng):
    """One number with stride 0 everywhere: what `sum` hands back."""
    return torch.randn((), generator=rng, dtype=dtype).expand(shape)


LAYOUTS = (contiguous, transposed, sliced, expanded)


def floating(outputs):
    """The outputs that may have a gradient by their dtype."""
    return [y for y in outputs if y.is_floating_point() or y.is_complex()]


def cotangents_for(outputs, layout=contiguous, seed=0):
    """One cotangent per floating or complex output, of that output's dtype."""
    rng = torch.Generator().manual_seed(seed)
    return [layout(tuple(y.shape), y.dtype, rng) for y in floating(outputs)]


def laid_out(args, layout):
    """The arguments with the same values in memory of another layout."""
    rng = torch.Generator().manual_seed(0)
    return converted(args, lambda x: layout(tuple(x.shape), x.dtype, rng).copy_(x))


# ---- gradients ----


def run(call, args, dirty=False):
    """The outputs; a function that writes into its inputs gets copies that have a history.

    Every run starts from one seed, so that two functions that draw alike drop alike.
    """
    torch.manual_seed(0)
    if dirty:
        args = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    return tensors_of(call(*args))


def pull(outputs, args, cotangents, **options):
    """The gradients of the arguments that require grad; zeros where there is none."""
    pairs = zip(floating(outputs), cotangents, strict=True)
    live = [(y, c) for y, c in pairs if y.requires_grad]
    if not live or not leaves_of(args):
        return [torch.zeros_like(x) for x in leaves_of(args)]
    options["materialize_grads"] = True
    ys, cs = zip(*live, strict=True)
    return list(torch.autograd.grad(ys, leaves_of(args), cs, **options))


def gradients(call, args, cotangents, dirty=False, **options):
    """Run the function and pull the cotangents back."""
    return pull(run(call, args, dirty), args, cotangents, **options)


def directional(call, args, cotangents, dirty):
    """The sum of (gradient . direction), or None when no gradient has a history."""
    first = gradients(call, args, cotangents, dirty, create_graph=True)
    rng = torch.Generator().manual_seed(9)
    parts = [
        (g * torch.randn(g.shape, generator=rng, dtype=g.dtype)).sum().real
        for g in first
        if g.requires_grad
    ]
    return sum(parts) if parts else None


def second(call, args, cotangents, dirty=False):
    """The gradients of (gradients . directions), by the arguments and by the cotangents."""
    cotangents = [c.detach().clone().requires_grad_() for c in cotangents]
    total = directional(call, args, cotangents, dirty)
    wanted = [*leaves_of(args), *cotangents]
    if total is None:
        return [torch.zeros_like(x) for x in wanted]
    return list(torch.autograd.grad(total, wanted, materialize_grads=True))


def second_backward(call, args, cotangents, dirty=False):
    """Differentiate twice by `backward`, which runs every node: a refusal is raised here."""
    cotangents = [c.detach().clone().requires_grad_() for c in cotangents]
    directional(call, args, cotangents, dirty).backward()


def both(entry: Sound, args, cotangents, order=1):
    """What the function and its plain twin give, as two lists of gradients."""
    work = gradients if order == 1 else second
    ours = work(call_of(entry.target), args, cotangents, entry.dirty)
    return ours, work(entry.plain, args, cotangents)


def assert_equal(ours, theirs, rtol=1e-9, atol=1e-11):
    """Same values, shapes and dtypes, whatever the strides."""
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
