"""Helpers shared by the case modules: inputs, reference gradients, evidence."""
import gc
import warnings
import weakref

import torch
from torch.autograd import Function

F32, F64 = torch.float32, torch.float64
C64, C128 = torch.complex64, torch.complex128


def rnd(*shape, seed=0, dtype=F64, grad=True, scale=1.0, shift=0.0):
    """Seeded normal tensor."""
    g = torch.Generator().manual_seed(seed)
    base = C128 if dtype.is_complex else F64
    t = torch.randn(*shape, generator=g, dtype=base) * scale + shift
    t = t.to(dtype)
    return t.requires_grad_() if grad else t


def uni(*shape, seed=0, lo=0.0, hi=1.0, dtype=F64, grad=True):
    """Seeded uniform tensor."""
    g = torch.Generator().manual_seed(seed)
    t = (torch.rand(*shape, generator=g, dtype=F64) * (hi - lo) + lo).to(dtype)
    return t.requires_grad_() if grad else t


def ten(values, dtype=F64, grad=True):
    t = torch.tensor(values, dtype=dtype)
    return t.requires_grad_() if grad else t


def ints(*values):
    return torch.tensor(list(values), dtype=torch.long)


def call(target, inputs):
    if isinstance(target, type) and issubclass(target, Function):
        return target.apply(*inputs)
    return target(*inputs)


def is_diff(t):
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


def float_outs(out):
    if isinstance(out, torch.Tensor):
        out = (out,)
    return [o for o in out if is_diff(o)]


def leaves(inputs):
    return [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]


def cotangents(outs, seed=7):
    g = torch.Generator().manual_seed(seed)
    cots = []
    for o in outs:
        base = C128 if o.is_complex() else F64
        cots.append(torch.randn(o.shape, generator=g, dtype=base).to(o.dtype))
    return cots


def grads(target, inputs, seed=7):
    """Gradients for random dense cotangents on every floating output."""
    outs = float_outs(call(target, inputs))
    cots = cotangents(outs, seed)
    pairs = [(o, c) for o, c in zip(outs, cots) if o.requires_grad]
    xs = leaves(inputs)
    if not pairs:
        return [torch.zeros_like(x) for x in xs]
    gs = torch.autograd.grad([o for o, _ in pairs], xs, [c for _, c in pairs],
                             allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach() for x, g in zip(xs, gs)]


def to64(inputs):
    res = []
    for t in inputs:
        if is_diff(t):
            d = t.detach().clone().to(C128 if t.is_complex() else F64)
            res.append(d.requires_grad_(t.requires_grad))
        elif isinstance(t, torch.Tensor):
            res.append(t.clone())
        else:
            res.append(t)
    return tuple(res)


def numeric(target, inputs, seed=7, h=1e-6):
    """Central differences in float64 of Re<cot, out>."""
    base = to64(inputs)

    def value(i=None, flat=None, delta=None):
        args = []
        for j, t in enumerate(base):
            if isinstance(t, torch.Tensor):
                t = t.detach().clone()
                if j == i:
                    t.view(-1)[flat] += delta
            args.append(t)
        with torch.no_grad():
            outs = float_outs(call(target, tuple(args)))
            cots = cotangents(outs, seed)
            total = 0.0
            for o, c in zip(outs, cots):
                p = c.conj() * o if c.is_complex() else c * o
                total = total + (p.real if p.is_complex() else p).sum().double()
        return total

    res = []
    for i, t in enumerate(base):
        if not (isinstance(t, torch.Tensor) and t.requires_grad):
            continue
        g = torch.zeros(t.shape, dtype=t.dtype).contiguous()
        gf = g.view(-1)
        for k in range(t.numel()):
            gf[k] += (value(i, k, h) - value(i, k, -h)) / (2 * h)
            if t.is_complex():
                gf[k] += 1j * (value(i, k, 1j * h) - value(i, k, -1j * h)) / (2 * h)
        res.append(g)
    return res


def tolerance(t):
    if t.dtype in (torch.float16, torch.bfloat16):
        return 5e-2
    if t.dtype in (F32, C64):
        return 2e-3
    return 1e-5


def far(got, ref):
    for a, b in zip(got, ref):
        tol = tolerance(a)
        a, b = (t.to(C128) if a.is_complex() or b.is_complex() else t.double() for t in (a, b))
        if a.shape != b.shape:
            return True
        if a.numel() == 0:
            continue
        if not (a - b).abs().max().item() <= tol * (1 + b.abs().max().item()):
            return True
    return False


def wrong(target, inputs, twin=None, seed=7):
    """True where gradients at these inputs differ from the plain reference."""
    ref_inputs = to64(inputs)
    if twin is not None:
        ref = grads(twin, ref_inputs, seed)
    else:
        ref = numeric(target, ref_inputs, seed)
    return far(grads(target, inputs, seed), ref)


def ok(target, inputs, twin=None, seed=7):
    return not wrong(target, inputs, twin, seed)


def same_value(target, twin, inputs):
    """The twin computes the same outputs as the Function."""
    a = float_outs(call(target, inputs))
    b = float_outs(call(twin, to64(inputs)))
    return not far([t.detach() for t in a], [t.detach() for t in b])


def nonfinite(target, inputs, seed=7):
    return any(not torch.isfinite(torch.view_as_real(g) if g.is_complex() else g).all()
               for g in grads(target, inputs, seed))


def raises(fn, *kinds):
    try:
        fn()
    except (kinds or (Exception,)):
        return True
    return False


def second_wrong(target, inputs):
    """gradcheck holds (first order), gradgradcheck does not."""
    xs = to64(inputs)
    fn = (lambda *a: call(target, a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = torch.autograd.gradcheck(fn, xs, raise_exception=False)
        second = torch.autograd.gradgradcheck(fn, xs, raise_exception=False)
    return first and not second


def jvp_wrong(target, inputs, h=1e-6):
    """Forward-mode tangent differs from a central difference along the same direction."""
    import torch.autograd.forward_ad as fw
    base = to64(inputs)
    g = torch.Generator().manual_seed(11)
    tan = [torch.randn(t.shape, generator=g, dtype=F64) if isinstance(t, torch.Tensor) and t.requires_grad
           else None for t in base]

    def at(s):
        with torch.no_grad():
            return [o.clone() for o in float_outs(call(target, tuple(
                t.detach() + s * d if d is not None else t for t, d in zip(base, tan))))]

    ref = [(p - m) / (2 * h) for p, m in zip(at(h), at(-h))]
    with fw.dual_level():
        duals = tuple(fw.make_dual(t.detach(), d) if d is not None else t for t, d in zip(base, tan))
        got = []
        for o in float_outs(call(target, duals)):
            t = fw.unpack_dual(o).tangent
            got.append(torch.zeros_like(o) if t is None else t)
    return far(got, ref)


def saved_numel(target, inputs):
    """Elements handed to save_for_backward by the call (distinct storages not merged)."""
    sizes = []

    def pack(t):
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = call(target, inputs)
    del out
    return sum(sizes)


def outlives(target, inputs):
    """True where an output stays alive after its last reference is gone (cycle through ctx)."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        out = call(target, inputs)
        refs = [weakref.ref(o) for o in float_outs(out)]
        del out
        return any(r() is not None for r in refs)
    finally:
        if was:
            gc.enable()
        gc.collect()


def case(name, target, inputs, fault, kind="wrong", visible=True, evidence=None,
         twin=None, elsewhere=None, where=None):
    """One benchmark entry.  Default evidence: gradients are wrong at the example, or,
    where `elsewhere` gives other inputs, right at the example and wrong there."""
    if evidence is None:
        if elsewhere is not None:
            def evidence():
                return ok(target, inputs(), twin) and wrong(target, elsewhere(), twin)
        else:
            def evidence():
                return wrong(target, inputs(), twin)
    entry = dict(name=name, target=target, inputs=inputs, fault=fault, kind=kind,
                 visible=visible, evidence=evidence)
    if twin is not None:
        entry["twin"] = twin
    if elsewhere is not None:
        entry["elsewhere"] = elsewhere
    if where is not None:
        entry["where"] = where
    return entry
