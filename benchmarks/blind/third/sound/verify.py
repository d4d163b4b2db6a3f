"""Plain PyTorch checks of every case.   python verify.py [module ...] [-v]"""
import gc
import importlib
import itertools
import sys
import time
import traceback
import warnings
import weakref

import torch
from torch.autograd import Function, gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from charts import CHARTS, DIRTY, VARIANTS

MODULES = ["activations", "losses", "quantize", "spiking", "gradflow", "norms_attention",
           "memory_layers", "implicit", "sparse_index", "geometry", "spectral",
           "sampling_transport", "numpy_ops"]
CLEAR = (RuntimeError, NotImplementedError, ValueError, TypeError)


def is_float(t):
    return isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())


def is_leafable(t):
    return is_float(t) and t.requires_grad


def fresh(inputs, dtype=None, want=None):
    out = []
    for i, t in enumerate(inputs):
        if isinstance(t, torch.Tensor):
            rg = t.requires_grad if want is None else i in want
            d = t.detach().clone()
            if dtype is not None and is_float(t):
                cd = {torch.float64: torch.complex128, torch.float32: torch.complex64}[dtype]
                d = d.to(cd if t.is_complex() else dtype)
            out.append(d.requires_grad_(rg) if is_float(d) else d)
        else:
            out.append(t)
    return tuple(out)


def caller(case):
    target = case["target"]
    f = target.apply if isinstance(target, type) and issubclass(target, Function) else target
    dirty = case["name"] in DIRTY

    def call(*inputs):
        torch.manual_seed(1234)
        if dirty:
            inputs = [t.clone() if is_float(t) else t for t in inputs]
        return f(*inputs)
    return call


def outs(y):
    y = y if isinstance(y, (tuple, list)) else (y,)
    return tuple(o for o in y if isinstance(o, torch.Tensor))


def diff_outs(y):
    return tuple(o for o in outs(y) if o.requires_grad)


def cotangents(ys, seed):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(y.shape, generator=g, dtype=y.dtype) for y in ys)


def grads(ys, xs, cts, retain=True):
    gs = torch.autograd.grad(ys, xs, cts, retain_graph=retain, allow_unused=True)
    return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(gs, xs))


def same(a, b, tol):
    if len(a) != len(b):
        return False
    for u, v in zip(a, b):
        if u.shape != v.shape or u.dtype != v.dtype:
            return False
        if not torch.allclose(u, v, rtol=tol, atol=tol, equal_nan=False):
            return False
    return True


def strided(t):
    """The same values, laid out with gaps and junk in between."""
    if not isinstance(t, torch.Tensor) or t.dim() == 0:
        return t
    junk = torch.full_like(t, 77) if not t.dtype == torch.bool else ~t
    v = torch.stack([t.detach(), junk.detach()], -1)[..., 0]
    if v.dim() >= 2:
        v = v.detach().transpose(0, -1).clone(memory_format=torch.preserve_format).transpose(0, -1)
        if v.is_contiguous():
            v = torch.stack([t.detach(), junk.detach()], -1)[..., 0]
    return v.detach().requires_grad_(t.requires_grad) if is_float(t) else v.detach()


def twice_backward(fn, free):
    """Second backward with .backward(), which reaches once_differentiable's delayed error."""
    xs = tuple(t.detach().clone().requires_grad_() for t in free)
    ys = fn(*xs)
    cts = tuple(c.requires_grad_() for c in cotangents(ys, 21))
    first = torch.autograd.grad(ys, xs, cts, create_graph=True, allow_unused=True)
    sum((g * g.conj()).real.sum() for g in first if g is not None).backward()


def leaves(inp):
    return [t for t in inp if is_leafable(t)]


def check(case):
    problems = []
    name = case["name"]
    call = caller(case)
    base = case["inputs"]()
    want = [i for i, t in enumerate(base) if is_leafable(t)]
    if not want:
        return ["no input requires grad"]

    # which precisions are served
    served = []
    for dt in (torch.float64, torch.float32):
        try:
            y = call(*fresh(base, dt))
            served.append(dt)
            if not any(o.requires_grad for o in outs(y)):
                problems.append(f"{dt}: nothing requires grad")
                continue
            inp = fresh(base, dt)
            ys = diff_outs(call(*inp))
            for g, x in zip(grads(ys, leaves(inp), cotangents(ys, 1)), leaves(inp)):
                if g.dtype != x.dtype or g.shape != x.shape or not torch.isfinite(g).all():
                    problems.append(f"{dt}: bad grad {g.dtype} {tuple(g.shape)}")
        except TypeError:
            pass
        except Exception as e:
            problems.append(f"{dt}: {type(e).__name__}: {e}")
    if not served:
        return problems + ["no precision served"]
    dt = served[0]
    tol = 1e-9 if dt == torch.float64 else 2e-4
    base = fresh(base, dt)

    # mutation, finite, the base result
    inp = fresh(base)
    keep = [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in inp]
    versions = [t._version if isinstance(t, torch.Tensor) else None for t in inp]
    y = call(*inp)
    ys = diff_outs(y)
    cts = cotangents(ys, 7)
    ct_keep = [c.clone() for c in cts]
    xs = leaves(inp)
    ref = grads(ys, xs, cts)
    for t, k, v in zip(inp, keep, versions):
        if isinstance(t, torch.Tensor) and (t._version != v or not torch.equal(t, k)):
            problems.append("an input was mutated")
    if any(not torch.equal(a, b) for a, b in zip(cts, ct_keep)):
        problems.append("a cotangent was mutated")
    for o in outs(y):
        if is_float(o) and not torch.isfinite(o).all():
            problems.append("non-finite output")
    if any(not torch.isfinite(g).all() for g in ref):
        problems.append("non-finite grad")
    yref = [o.detach().clone() for o in outs(y)]

    # twice in a row on one graph, then a second whole run
    if not same(grads(ys, xs, cts), ref, tol):
        problems.append("second backward differs")
    inp2 = fresh(base)
    y2 = call(*inp2)
    if not all(torch.equal(a, b) for a, b in zip(yref, [o.detach() for o in outs(y2)])):
        problems.append("second forward differs")
    if not same(grads(diff_outs(y2), leaves(inp2), cts), ref, tol):
        problems.append("second run differs")

    # linear in the cotangent
    c1, c2 = cotangents(ys, 11), cotangents(ys, 12)
    g1, g2 = grads(ys, xs, c1), grads(ys, xs, c2)
    mix = grads(ys, xs, tuple(2.0 * a - 3.0 * b for a, b in zip(c1, c2)))
    if not same(mix, tuple(2.0 * a - 3.0 * b for a, b in zip(g1, g2)), tol * 50):
        problems.append("not linear in the cotangent")
    zero = grads(ys, xs, tuple(torch.zeros_like(c) for c in cts))
    if any(g.abs().max() > 0 for g in zero if g.numel()):
        problems.append("zero cotangent gives a gradient")

    # one output at a time adds up
    if len(ys) > 1:
        total = None
        for o, c in zip(ys, cts):
            g = grads((o,), xs, (c,))
            total = g if total is None else tuple(a + b for a, b in zip(total, g))
        if not same(total, ref, tol * 50):
            problems.append("outputs one at a time do not add up")

    # layouts
    inp = tuple(strided(t) for t in fresh(base))
    yn = call(*inp)
    if not same([o.detach() for o in outs(yn)], yref, tol):
        problems.append("non-contiguous inputs: forward differs")
    if not same(grads(diff_outs(yn), leaves(inp), tuple(strided(c) for c in cts)), ref, tol):
        problems.append("non-contiguous: grads differ")
    ex = tuple(torch.ones((), dtype=o.dtype).expand(o.shape) for o in ys)
    if not same(grads(ys, xs, ex), grads(ys, xs, tuple(e.contiguous() for e in ex)), tol):
        problems.append("expanded cotangent differs")

    # every subset of inputs
    subsets = itertools.chain.from_iterable(
        itertools.combinations(want, r) for r in range(1, len(want) + 1))
    for sub in itertools.islice(subsets, 40):
        inp = fresh(base, want=set(sub))
        yo = outs(call(*inp))
        pairs = [(o, c) for o, c in zip([o for o, q in zip(yo, outs(y)) if q.requires_grad], cts)
                 if o.requires_grad]
        if not pairs:
            problems.append(f"subset {sub}: nothing requires grad")
            continue
        if len(pairs) != len(cts):
            problems.append(f"subset {sub}: some outputs lost requires_grad")
            continue
        g = grads([p[0] for p in pairs], leaves(inp), [p[1] for p in pairs])
        if not same(g, [ref[want.index(i)] for i in sub], tol):
            problems.append(f"subset {sub}: grads differ")
    with torch.no_grad():
        yo = outs(call(*fresh(base)))
        if any(o.grad_fn is not None for o in yo) or not same(yo, yref, tol):
            problems.append("no_grad forward differs")

    # checkpoint, both kinds
    for reentrant in (False, True):
        inp = fresh(base)
        f = case["target"].apply if isinstance(case["target"], type) and issubclass(
            case["target"], Function) else case["target"]
        if name in DIRTY:
            raw = f
            f = lambda *a: raw(*[t.clone() if is_float(t) else t for t in a])
        torch.manual_seed(1234)
        yc = checkpoint(f, *inp, use_reentrant=reentrant)
        ysc = diff_outs(yc)
        pairs = [(o, c) for o, c in zip([o for o, q in zip(outs(yc), outs(y)) if q.requires_grad], cts)]
        if reentrant:
            torch.autograd.backward([p[0] for p in pairs], [p[1] for p in pairs])
            g = tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves(inp))
        else:
            g = grads([p[0] for p in pairs], leaves(inp), [p[1] for p in pairs], retain=False)
        if not same(g, ref, tol):
            problems.append(f"checkpoint(use_reentrant={reentrant}) differs")

    # nothing keeps the graph alive
    gc.collect()
    gc.disable()
    try:
        inp = fresh(base)
        yl = call(*inp)
        refs = [weakref.ref(o) for o in outs(yl)] + [weakref.ref(o.grad_fn) for o in diff_outs(yl)
               if type(o.grad_fn).__module__ == case["target"].__module__] \
            + [weakref.ref(t) for t in inp if isinstance(t, torch.Tensor)]
        torch.autograd.backward(diff_outs(yl), cts)
        del yl, inp, o
        try:
            del t
        except UnboundLocalError:
            pass
        alive = [r for r in refs if r() is not None]
        if alive:
            problems.append(f"{len(alive)} of {len(refs)} objects kept alive")
    finally:
        gc.enable()

    # the numbers
    extra = [i for i, t in enumerate(base) if is_float(t) and i not in want]
    allowed = list(want)
    for i in extra:
        try:
            inp = fresh(base, want={i})
            ys = diff_outs(call(*inp))
            if ys:
                torch.autograd.grad(ys, leaves(inp), cotangents(ys, 3), allow_unused=True)
            allowed.append(i)
        except CLEAR:
            pass
    allowed.sort()
    if name in CHARTS:
        free, build = CHARTS[name]
        free = tuple(t.detach().clone().requires_grad_(True) for t in free())

        def fn(*p):
            return diff_outs(call(*build(*p)))
    else:
        full = fresh(base, want=set(allowed))
        free = tuple(full[i] for i in allowed)

        def fn(*p):
            a = list(full)
            for i, t in zip(allowed, p):
                a[i] = t
            return diff_outs(call(*a))
    kw = dict(eps=1e-6, atol=1e-5, rtol=1e-3) if dt == torch.float64 else \
        dict(eps=1e-2, atol=1e-2, rtol=2e-2)
    double = "-"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not case["surrogate"]:
            try:
                gradcheck(fn, free, **kw, check_batched_grad=False, nondet_tol=0.0)
            except Exception as e:
                problems.append(f"gradcheck: {type(e).__name__}: {str(e)[:600]}")
        try:
            twice_backward(fn, free)
        except CLEAR as e:
            double = f"refused ({str(e).splitlines()[0][:70]})"
        else:
            try:
                gradgradcheck(fn, free, **kw, nondet_tol=0.0)
                double = "right"
            except Exception as e:
                problems.append(f"gradgradcheck: {type(e).__name__}: {str(e)[:600]}")
    if isinstance(case["target"], torch.nn.Module) and list(case["target"].parameters()):
        mod = case["target"]
        names = [n for n, _ in mod.named_parameters()]
        params = tuple(p.detach().clone().requires_grad_() for p in mod.parameters())
        torch.manual_seed(0)
        ok = gradcheck(lambda *p: torch.func.functional_call(mod, dict(zip(names, p)), tuple(fresh(base))),
                       params, raise_exception=False, **kw)
        if not ok and not case["surrogate"]:
            problems.append("gradcheck of the module's parameters")
    case["_double"] = double
    case["_served"] = [str(s)[6:] for s in served]
    return problems


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("-")]
    verbose = "-v" in sys.argv
    names, good, bad, surr, refused, variants = set(), 0, 0, 0, 0, 0
    for mod in args or MODULES:
        t0 = time.time()
        try:
            cases = importlib.import_module(mod).CASES
        except ModuleNotFoundError as e:
            if e.name != mod:
                raise
            print(f"-- {mod}: not there")
            continue
        for case in cases:
            assert set(case) == {"name", "target", "inputs", "note", "declares", "surrogate"}, case
            assert case["name"] not in names, case["name"]
            names.add(case["name"])
            try:
                problems = check(case)
                for k, alt in enumerate(VARIANTS.get(case["name"], ())):
                    other = dict(case, inputs=alt)
                    problems += [f"variant {k}: {p}" for p in check(other)]
                    variants += 1
            except Exception:
                problems = [traceback.format_exc()]
            surr += bool(case["surrogate"])
            refused += case.get("_double", "").startswith("refused")
            if problems:
                bad += 1
                print(f"FAIL {mod}.{case['name']}")
                for p in problems:
                    print("     ", p)
            else:
                good += 1
                if verbose:
                    print(f"ok   {mod}.{case['name']}  {case['_served']}  double: {case['_double']}")
        print(f"-- {mod}: {len(cases)} cases, {time.time() - t0:.1f}s", flush=True)
    print(f"tally: {good + bad} cases, {good} pass, {bad} fail; {surr} surrogates; "
          f"double backward refused aloud in {refused}; {variants} further argument sets")
    return bad


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(1 if main() else 0)
