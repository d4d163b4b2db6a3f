"""Helpers shared by the case modules: seeded inputs, finite differences, small probes."""
import contextlib
import functools
import gc
import math
import weakref

import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import TorchDispatchMode

amp_fwd = torch.amp.custom_fwd(device_type="cpu")
amp_bwd = torch.amp.custom_bwd(device_type="cpu")
f64 = torch.float64


def randn(*shape, seed=0, dtype=f64, grad=True, scale=1.0, shift=0.0):
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(*shape, generator=g, dtype=dtype) * scale + shift
    return t.requires_grad_(grad)


def rand(*shape, seed=0, dtype=f64, grad=True, lo=0.0, hi=1.0):
    g = torch.Generator().manual_seed(seed)
    t = torch.rand(*shape, generator=g, dtype=f64 if not dtype.is_complex else dtype)
    return (t * (hi - lo) + lo).to(dtype).requires_grad_(grad)


def tensor(data, dtype=f64, grad=True):
    return torch.tensor(data, dtype=dtype).requires_grad_(grad)


def fn_of(target):
    if isinstance(target, type) and issubclass(target, Function):
        return target.apply
    return target


def is_diff(t):
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


def as_tuple(out):
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def copies(inputs, all_grad=False, dtype=None, only=None):
    """Fresh leaves with the strides and requires_grad flags of ``inputs``."""
    new = []
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor):
            y = x.detach().clone()
            if is_diff(x):
                if dtype is not None and not x.is_complex():
                    y = y.to(dtype)
                need = True if all_grad else x.requires_grad
                if only is not None:
                    need = i in only
                y.requires_grad_(need)
            new.append(y)
        else:
            new.append(x)
    return tuple(new)


def make_cots(outs, seed=1):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=g, dtype=torch.complex128 if o.is_complex() else f64).to(o.dtype)
            for o in outs]


def run(target, inputs, inplace=False):
    torch.manual_seed(0)
    args = [x.clone() if inplace and isinstance(x, torch.Tensor) else x for x in inputs]
    return as_tuple(fn_of(target)(*args))


def picked(outs):
    return [i for i, o in enumerate(outs) if is_diff(o) and o.requires_grad]


def analytic(target, inputs, cots=None, create_graph=False, inplace=False):
    """Gradients of sum <cot, out> with respect to the inputs that require grad."""
    outs = run(target, inputs, inplace)
    idx = picked(outs)
    sel = [outs[i] for i in idx]
    if cots is None:
        cots = make_cots(sel)
    wrt = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    gs = torch.autograd.grad(sel, wrt, cots if create_graph else [c.clone() for c in cots],
                             create_graph=create_graph, allow_unused=True)
    gs = [torch.zeros_like(w) if g is None else g for g, w in zip(gs, wrt)]
    return gs, cots, idx


def numeric(target, inputs, cots, idx, eps=1e-6, inplace=False):
    """Central differences of sum <cot, out> with respect to the inputs that require grad."""
    base = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in inputs]
    flags = [isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]

    def value():
        fresh = [x.clone().requires_grad_(r) if isinstance(x, torch.Tensor) else x for x, r in zip(base, flags)]
        outs = run(target, fresh, inplace)
        tot = 0.0
        for i, c in zip(idx, cots):
            o = outs[i].detach()
            if o.is_complex():
                tot += float((o * c.conj()).real.sum())
            else:
                tot += float((o.to(f64) * c.to(f64)).sum())
        return tot

    res = []
    for x, r in zip(base, flags):
        if not r:
            continue
        g = torch.zeros(x.shape, dtype=x.dtype)
        for k in range(x.numel()):
            where = torch.unravel_index(torch.tensor(k), x.shape) if x.dim() else ()
            where = tuple(int(w) for w in where)
            old = x[where].clone()
            steps = (1.0, 1j) if x.is_complex() else (1.0,)
            tot = 0.0
            for s in steps:
                x[where] = old + eps * s
                up = value()
                x[where] = old - eps * s
                dn = value()
                x[where] = old
                tot = tot + s * (up - dn) / (2 * eps)
            g[where] = tot
        res.append(g)
    return res


def close(a, b, rtol=1e-4, atol=1e-5):
    if a.shape != b.shape:
        return False
    return torch.allclose(a.to(torch.complex128), b.to(torch.complex128), rtol=rtol, atol=atol)


def all_close(xs, ys, **kw):
    return len(xs) == len(ys) and all(close(x, y, **kw) for x, y in zip(xs, ys))


def wrong_first(target, inputs, inplace=False, all_grad=True, only=None):
    """True iff the first-order gradient differs from finite differences."""
    low = any(isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != f64 for x in inputs)
    args = copies(inputs, all_grad=all_grad, only=only)
    gs, cots, idx = analytic(target, args, inplace=inplace)
    args = copies(inputs, all_grad=all_grad, only=only)
    if low:
        up = copies(inputs, all_grad=all_grad, only=only, dtype=f64)
        num = numeric(target, up, cots, idx, inplace=inplace)
        return not all_close(gs, num, rtol=3e-3, atol=1e-3)
    num = numeric(target, args, cots, idx, inplace=inplace)
    return not all_close(gs, num)


def wrong_second(target, inputs, inplace=False, only=None):
    """True iff differentiating the gradient runs silently yet disagrees with differences of it."""
    args = copies(inputs, all_grad=only is None, only=only)
    outs = run(target, args, inplace)
    nout = [outs[i] for i in picked(outs)]
    cots = [c.requires_grad_() for c in make_cots(nout)]
    n = len(args)

    def first(*both):
        gs, _, _ = analytic(target, both[:n], cots=list(both[n:]), create_graph=True, inplace=inplace)
        if any(type(g.grad_fn).__name__ == "Error" for g in gs):
            raise RuntimeError("marked with once_differentiable")
        return tuple(g if g.requires_grad else g + 0 * sum(c.sum() for c in both[n:]) for g in gs)

    both = tuple(args) + tuple(cots)
    gs, vs, idx = analytic(first, both)
    num = numeric(first, both, vs, idx, eps=1e-5)
    return not all_close(gs, num, rtol=1e-3, atol=1e-4)


def differs_from(target, ref, inputs, inplace=False):
    """True iff gradients disagree with those of ``ref`` (plain operations), outputs being equal."""
    a = copies(inputs, all_grad=True)
    b = copies(inputs, all_grad=True)
    ga, cots, _ = analytic(target, a, inplace=inplace)
    gb, _, _ = analytic(ref, b, cots=cots)
    return not all_close(ga, gb)


def subset_differs(target, inputs, only):
    """True iff gradients for the inputs ``only`` change when the others stop requiring grad."""
    full = copies(inputs, all_grad=True)
    part = copies(inputs, only=only)
    gf, cots, _ = analytic(target, full)
    pos = [i for i, x in enumerate(full) if isinstance(x, torch.Tensor) and x.requires_grad]
    try:
        gp, _, _ = analytic(target, part, cots=cots)
    except RuntimeError:
        return True
    return not all_close([gf[pos.index(i)] for i in sorted(only)], gp)


def raises(fn, text="", kind=Exception):
    try:
        fn()
    except kind as err:
        return text.lower() in str(err).lower()
    return False


def twice_differs(target, inputs):
    """True iff two backward passes over one graph disagree (or the second raises)."""
    args = copies(inputs, all_grad=True)
    outs = run(target, args)
    sel = [outs[i] for i in picked(outs)]
    cots = make_cots(sel)
    wrt = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    one = [g.clone() for g in torch.autograd.grad(sel, wrt, cots, retain_graph=True)]
    try:
        two = torch.autograd.grad(sel, wrt, cots, retain_graph=True)
    except Exception:
        return True
    return not all_close(one, two)


def saved_elems(target, inputs):
    """Number of elements held for backward in distinct tensors by one call."""
    seen = {}

    def pack(t):
        seen[t.data_ptr()] = t.numel()
        return t

    args = copies(inputs)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run(target, args)
    return sum(seen.values())


class OpLog(TorchDispatchMode):
    """Records the name and the largest output of every operation."""

    def __init__(self):
        super().__init__()
        self.ops = []
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.ops.append(func.overloadpacket.__name__)
        for o in as_tuple(out):
            if isinstance(o, torch.Tensor):
                self.largest = max(self.largest, o.numel())
        return out


def backward_log(target, inputs, only=None):
    args = copies(inputs, all_grad=only is None, only=only)
    outs = run(target, args)
    sel = [outs[i] for i in picked(outs)]
    cots = make_cots(sel)
    wrt = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    with OpLog() as log:
        torch.autograd.grad(sel, wrt, cots, allow_unused=True)
    return log


def survives(make):
    """True iff the tensor made by ``make`` outlives its last name (reference cycle)."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        t = make()
        ref = weakref.ref(t)
        del t
        return ref() is not None
    finally:
        if was:
            gc.enable()
        gc.collect()


def transposed(t):
    """Same values, other strides."""
    return t.transpose(-1, -2).contiguous().transpose(-1, -2)
