"""Verify every case of this folder by plain PyTorch.  python verify.py [module or case names]"""
import importlib, itertools, os, sys, time, traceback, warnings
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import support
torch.set_num_threads(1)
warnings.filterwarnings("ignore")
T = torch.Tensor


def call_of(target):
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        return target.apply
    return target


def tens(outs):
    return [o for o in (outs if isinstance(outs, (tuple, list)) else (outs,)) if isinstance(o, T)]


def diffable(outs):
    return [o for o in tens(outs) if o.requires_grad]


def widen(a):
    if isinstance(a, T):
        to = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(a.dtype, a.dtype)
        return a.detach().to(to).clone().requires_grad_(a.requires_grad)
    return a


def narrow(a, dt=torch.float32):
    if isinstance(a, T):
        to = {torch.float64: dt, torch.float32: dt, torch.complex128: torch.complex64}.get(a.dtype, a.dtype)
        return a.detach().to(to).clone().requires_grad_(a.requires_grad)
    return a


def fresh(args, mask=None):
    out, k = [], 0
    for a in args:
        if isinstance(a, T):
            r = a.requires_grad
            b = a.detach().clone()
            if r:
                b.requires_grad_(mask is None or mask[k])
                k += 1
            out.append(b)
        else:
            out.append(a)
    return out


def close(a, b, tol=1e-9):
    if a is None or b is None:
        z = a if b is None else b
        return z is None or not bool((z != 0).any())
    return a.shape == b.shape and torch.allclose(a.to(b.dtype), b, rtol=tol, atol=tol, equal_nan=True)


class Bad(Exception):
    pass


def need(ok, *words):
    if not ok:
        raise Bad(" ".join(map(str, words)))


def cotangents(outs, seed=7):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=g, dtype=torch.complex128 if o.is_complex() else torch.float64).to(o.dtype)
            for o in outs]


def verify(c):
    o = support.CHECKS[c["name"]]
    raw = call_of(c["target"])
    lift = o.get("lift")
    inplace = o.get("inplace", ())

    def call(*a):
        if o.get("random"):
            torch.manual_seed(3)
        a = [x.clone() if i in inplace else x for i, x in enumerate(a)]
        return raw(*a)

    makers = [c["inputs"]] + list(o.get("more", ()))
    second = o.get("second", "right")
    exact = "ref" not in o
    need(c["inputs"]() is not None, "inputs")
    for m, maker in enumerate(makers):
        tag = f"[inputs {m}]"
        args = [widen(a) for a in maker()]
        fn = (lambda *a: call(*lift(*a))) if lift else call
        quick = o.get("fast", False) or sum(a.numel() for a in args if isinstance(a, T) and a.requires_grad) > 300
        chk = lambda *a: tuple(diffable(fn(*a))) or fn(*a)
        grads_in = [a for a in args if isinstance(a, T) and a.requires_grad]
        need(grads_in, "nothing to differentiate")
        numel0 = any(a.numel() == 0 for a in grads_in)
        first = fn(*fresh(args))
        nd = diffable(first)
        need(nd, tag, "no differentiable output")
        if exact and not numel0:
            try:
                gradcheck(chk, args, eps=o.get("eps", 1e-6), atol=o.get("atol", 1e-5), rtol=1e-3,
                          check_forward_ad=o.get("jvp", False), fast_mode=quick)
            except Exception as e:
                raise Bad(tag, "gradcheck:", str(e)[:900])
        elif not exact:
            a1, a2 = fresh(args), fresh(args)
            o1, o2 = diffable(fn(*a1)), diffable(o["ref"](*a2))
            cot = cotangents(o1)
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            i2 = [a for a in a2 if isinstance(a, T) and a.requires_grad]
            for x, y in zip(torch.autograd.grad(o1, i1, cot, allow_unused=True),
                            torch.autograd.grad(o2, i2, cot, allow_unused=True)):
                need(close(x, y), tag, "surrogate differs from its reference", x, y)
        if second == "right" and not numel0:
            if exact or o.get("second_ref", True):
                try:
                    if exact:
                        gradgradcheck(chk, args, eps=o.get("eps", 1e-6), atol=o.get("atol2", 1e-4), rtol=1e-3,
                                      fast_mode=quick)
                except Exception as e:
                    raise Bad(tag, "gradgradcheck:", str(e)[:900])
        elif second == "refused":
            a1 = fresh(args)
            o1 = diffable(fn(*a1))
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            cot = [t.requires_grad_() for t in cotangents(o1)]
            try:
                gs = torch.autograd.grad(o1, i1, cot, create_graph=True, allow_unused=True)
                sum((g.abs() ** 2).sum() for g in gs if g is not None).backward()
            except Exception:
                pass
            else:
                raise Bad(tag, "second order not refused")
        # reference gradients
        base = fresh(args)
        snap = [a.detach().clone() if isinstance(a, T) else a for a in base]
        outs = call(*base) if not lift else call(*[x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, T) else x for x in lift(*base)])
        if lift:
            args = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, T) else x for x in lift(*fresh(args))]
            base = fresh(args)
            snap = [a.detach().clone() if isinstance(a, T) else a for a in base]
            outs = call(*base)
        od = diffable(outs)
        ins = [a for a in base if isinstance(a, T) and a.requires_grad]
        cot = cotangents(od)
        want = torch.autograd.grad(od, ins, cot, retain_graph=True, allow_unused=True)
        again = torch.autograd.grad(od, ins, cot, allow_unused=True)
        for a, b in zip(want, again):
            need(close(a, b, 0), tag, "second backward differs")
        for a, b in zip(base, snap):
            if isinstance(a, T):
                need(torch.equal(a.detach(), b) or bool(torch.isnan(b.abs().sum())), tag, "an input was changed")
        for x in od:
            f = x.grad_fn
            for k, v in getattr(f, "__dict__", {}).items():
                vs = v if isinstance(v, (tuple, list)) else v.values() if isinstance(v, dict) else (v,)
                need(not any(isinstance(q, T) for q in vs), tag, "tensor attribute on ctx:", k)
        # output types
        kinds = {a.dtype for a in base if isinstance(a, T) and a.requires_grad}
        if len(kinds) == 1 and not o.get("dtype_free"):
            for x in od:
                need(x.real.dtype == next(iter(kinds)) or x.real.dtype == torch.empty(0, dtype=next(iter(kinds))).real.dtype,
                     tag, "output dtype", x.dtype)
        # layouts of inputs
        def relaid(kind):
            res = []
            for a in fresh(args):
                if not isinstance(a, T) or a.ndim == 0:
                    res.append((a, a)); continue
                d = a.detach()
                if kind == "transposed":
                    b = d.transpose(0, -1).contiguous().transpose(0, -1)
                elif kind == "strided":
                    big = torch.zeros(*d.shape[:-1], 2 * d.shape[-1], dtype=d.dtype)
                    big[..., ::2] = d
                    b = big[..., ::2]
                else:
                    big = torch.zeros(d.numel() + 3, dtype=d.dtype)
                    big[3:] = d.reshape(-1)
                    b = big[3:].view(d.shape)
                if a.requires_grad:
                    b.requires_grad_()
                res.append((b, b))
            return [r[0] for r in res]
        tol = o.get("tol", 1e-8)
        for kind in ("transposed", "strided", "offset"):
            a1 = relaid(kind)
            o1 = diffable(call(*a1))
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            for p, q in zip(o1, od):
                need(close(p.detach(), q.detach(), tol), tag, kind, "output differs")
            for a, b in zip(torch.autograd.grad(o1, i1, cot, allow_unused=True), want):
                need(close(a, b, tol), tag, kind, "gradient differs")
        # layouts of cotangents
        def grads_with(cots, argset=None):
            a1 = argset or fresh(args)
            o1 = diffable(call(*a1))
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            keep = [t.clone() for t in cots]
            r = torch.autograd.grad(o1, i1, cots, allow_unused=True)
            for s, t in zip(keep, cots):
                need(torch.equal(s, t), tag, "a cotangent was changed")
            return r
        tr = [t.transpose(0, -1).contiguous().transpose(0, -1) if t.ndim > 1 else t for t in cot]
        st = []
        for t in cot:
            if t.ndim:
                big = torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype); big[..., ::2] = t; t = big[..., ::2]
            st.append(t)
        for nm, cc in (("transposed", tr), ("strided", st)):
            for a, b in zip(grads_with(cc), want):
                need(close(a, b, tol), tag, "gradient differs for", nm, "cotangent")
        ex = [torch.ones((), dtype=t.dtype).expand(t.shape) for t in cot]
        for a, b in zip(grads_with(ex), grads_with([t.contiguous() for t in ex])):
            need(close(a, b, tol), tag, "gradient differs for expanded cotangent")
        # subsets
        n = len(ins)
        for mask in itertools.islice(itertools.product((True, False), repeat=n), 32):
            a1 = fresh(args, mask)
            o1 = diffable(call(*a1))
            if not any(mask):
                need(not o1, tag, "requires grad without an input that does")
                continue
            if len(o1) != len(od):
                pick = [i for i, (x, y) in enumerate(zip(tens(call(*fresh(args, mask))), tens(outs))) if x.requires_grad]
                need(o.get("sub_outputs"), tag, "fewer differentiable outputs for subset", mask)
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            cc = cot if len(o1) == len(od) else [t for x, t in zip(tens(outs), cot) if x.requires_grad][:0]
            if len(cc) != len(o1):
                continue
            got = torch.autograd.grad(o1, i1, cc, allow_unused=True)
            for a, b in zip(got, [w for w, k in zip(want, mask) if k]):
                need(close(a, b, tol), tag, "gradient differs for subset", mask)
        # one output at a time, with set_to_none-like undefined others
        if len(od) > 1:
            acc = [None] * n
            for k in range(len(od)):
                a1 = fresh(args)
                o1 = diffable(call(*a1))
                i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                r = torch.autograd.grad(o1[k], i1, cot[k], allow_unused=True)
                acc = [x if y is None else y if x is None else x + y for x, y in zip(acc, r)]
            for a, b in zip(acc, want):
                need(close(a, b, tol), tag, "outputs one by one differ")
        # checkpoint
        a1 = fresh(args)
        o1 = diffable(checkpoint(call, *a1, use_reentrant=False))
        i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
        for a, b in zip(torch.autograd.grad(o1, i1, cot, allow_unused=True), want):
            need(close(a, b, tol), tag, "checkpoint differs")
        # every saved tensor is read: spoiling it must change the gradients or raise
        if m == 0 and not o.get("unspoilable"):
            count, packed = [0], {}
            def pack(t):
                count[0] += 1
                return (count[0], t)
            def make_unpack(k):
                def unpack(q):
                    i, t = q
                    if i != k:
                        return t
                    if t.is_floating_point() or t.is_complex():
                        return t * 1.37 + 0.21
                    return ~t if t.dtype == torch.bool else t.flip(-1) if not torch.equal(t.flip(-1), t) else t + 1
                return unpack
            k = 1
            while True:
                count[0] = 0
                a1 = fresh(args)
                with torch.autograd.graph.saved_tensors_hooks(pack, make_unpack(k)):
                    o1 = diffable(call(*a1))
                if k > count[0]:
                    break
                i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                try:
                    got = torch.autograd.grad(o1, i1, cot, allow_unused=True)
                except Exception:
                    pass
                else:
                    if all(close(a, b, 1e-13) for a, b in zip(got, want)):
                        print(f"   {c['name']} {tag}: saved tensor {k} of {count[0]} looks unread")
                k += 1
        # batched backward: right or refused
        try:
            a1 = fresh(args)
            o1 = diffable(call(*a1))
            i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
            bat = torch.autograd.grad(o1, i1, [torch.stack([t, 2 * t]) for t in cot], is_grads_batched=True, allow_unused=True)
        except Exception as e:
            if VERBOSE and m == 0:
                print("     ", c["name"], "batched backward refused:", str(e)[:80].replace("\n", " "))
        else:
            if not o.get("nonlinear"):
                for a, w in zip(bat, want):
                    need((a is None) == (w is None) or w is None, tag, "batched backward None")
                    if w is not None:
                        need(close(a[0], w, tol) and close(a[1], 2 * w, tol), tag, "batched backward differs")
        # an output overwritten afterwards: right or refused
        if len(tens(outs)) == 1:
            try:
                a1 = fresh(args)
                y = call(*a1)
                y.mul_(2)
                i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                got = torch.autograd.grad(y, i1, cot[0], allow_unused=True)
            except RuntimeError:
                pass
            else:
                if not o.get("nonlinear"):
                    for a, w in zip(got, want):
                        need(close(a, None if w is None else 2 * w, tol), tag, "output overwritten in place: silently wrong")
        # extreme values: finite forward, finite backward
        for factor in (0.0, 1e-6, 40.0, 1e3):
            a1 = [(a.detach() * factor).requires_grad_(a.requires_grad) if isinstance(a, T) and (a.is_floating_point() or a.is_complex()) and a.requires_grad else a for a in args]
            try:
                o1 = diffable(call(*a1))
            except (ValueError, RuntimeError, TypeError):
                continue
            if o1 and all(bool(torch.isfinite(t.detach().abs()).all()) for t in o1):
                i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                try:
                    gs = torch.autograd.grad(o1, i1, [torch.ones_like(t) for t in o1], allow_unused=True)
                except (ValueError, RuntimeError):
                    continue        # refused aloud
                for gg in gs:
                    need(gg is None or bool(torch.isfinite(gg.abs()).all()), tag, f"inputs times {factor}: gradient not finite")
        # custom ops
        if isinstance(c["target"], torch._library.custom_ops.CustomOpDef):
            torch.library.opcheck(c["target"], tuple(fresh(args)))
            torch.library.opcheck(c["target"], tuple(relaid("transposed")))
        # autocast, float32
        if not o.get("only64"):
            lo = [narrow(a) for a in args]
            def run(cast_f, cast_b):
                a1 = fresh(lo)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast_f):
                    o1 = diffable(call(*a1))
                i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                cc = [t.to(x.dtype) for t, x in zip(cot, o1)]
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast_b):
                    return o1, torch.autograd.grad(o1, i1, cc, allow_unused=True)
            p0, g0 = run(False, False)
            for w, gg in zip(want, g0):
                if gg is not None and not o.get("loose32"):
                    need(close(gg.to(w.dtype), w, o.get("tol32", 2e-3)), tag, "float32 gradient far from float64",
                         (gg - w).abs().max() if gg.numel() else "")
            for bw in (False, True):
                p1, g1 = run(True, bw)
                at = o.get("autocast_tol", 1e-5)
                for a, b in zip(p1, p0):
                    need(a.dtype == b.dtype or at > 1e-4, tag, "autocast changes output dtype")
                    need(close(a.detach(), b.detach(), at), tag, "autocast output differs")
                for a, b in zip(g1, g0):
                    need(close(a, b, at), tag, "autocast gradient differs, backward inside" if bw else "autocast gradient differs")
            # low precision: right or refused
            for dt in () if any(isinstance(a, T) and a.is_complex() for a in args) else (torch.bfloat16, torch.float16):
                lo = [narrow(a, dt) if not (isinstance(a, T) and a.is_complex()) else a for a in args]
                try:
                    a1 = fresh(lo)
                    o1 = diffable(call(*a1))
                    i1 = [a for a in a1 if isinstance(a, T) and a.requires_grad]
                    g1 = torch.autograd.grad(o1, i1, [t.to(x.dtype) for t, x in zip(cot, o1)], allow_unused=True)
                except Exception as e:
                    if m == 0 and VERBOSE:
                        print("     ", c["name"], dt, "refused:", str(e)[:100])
                    continue
                for x in o1:
                    need(x.is_complex() or x.dtype == dt or o.get("dtype_free"), tag, "low precision output dtype", x.dtype)
                for w, gg in zip(want, g1):
                    if gg is None or gg.numel() == 0 or o.get("loose16"):
                        continue
                    need(bool(torch.isfinite(gg.abs()).all()), tag, dt, "gradient not finite")
                    a, b = gg.reshape(-1).to(w.dtype), w.reshape(-1)
                    err = (a - b).norm() / b.norm().clamp_min(1e-3)
                    need(float(err) < 0.15, tag, dt, "gradient far off in low precision", float(err))
        # complex: right or refused
        if exact and not any(isinstance(a, T) and a.is_complex() for a in args):
            ca = [a.detach().to(torch.complex128).mul(1 + 0.3j).requires_grad_() if isinstance(a, T) and a.requires_grad else a for a in args]
            try:
                q = diffable(call(*ca))
            except Exception:
                pass
            else:
                try:
                    gradcheck(chk if not lift else (lambda *a: tuple(diffable(call(*a)))), ca, atol=1e-5)
                except Exception as e:
                    raise Bad(tag, "accepts complex numbers and is wrong there:", str(e)[:300])
        if o.get("vmap"):
            dims = tuple(0 if isinstance(a, T) else None for a in args)
            st2 = [torch.stack([a.detach(), a.detach() * (1 if not a.is_floating_point() else 1.01)]) if isinstance(a, T) else a for a in args]
            v = tens(torch.func.vmap(call, in_dims=dims)(*st2))
            l = [tens(call(*[a[k] if isinstance(a, T) else a for a in st2])) for k in range(2)]
            for j, x in enumerate(v):
                need(close(x, torch.stack([l[0][j], l[1][j]]), 1e-8), tag, "vmap differs")
    for bad in o.get("refuses", ()):
        try:
            call(*bad())
        except (ValueError, TypeError, RuntimeError, NotImplementedError, IndexError):
            pass
        else:
            raise Bad("accepted what it should refuse")


VERBOSE = "-v" in sys.argv
for a in sys.argv[1:]:
    if a.startswith("--shift="):        # other random inputs than those of the benchmark
        def shifted(f, by=int(a[8:])):
            return lambda *s, seed=0, **k: f(*s, seed=seed + by, **k)
        for n in ("rand", "uniform", "integers", "crandn"):
            setattr(support, n, shifted(getattr(support, n)))


def main():
    want = [a for a in sys.argv[1:] if not a.startswith("-")]
    mods = sorted(f[:-3] for f in os.listdir(HERE) if f.endswith(".py") and f not in ("support.py", "verify.py"))
    good, bad, names = 0, [], set()
    for mname in mods:
        mod = importlib.import_module(mname)
        k = 0
        for c in mod.CASES:
            if want and mname not in want and c["name"] not in want:
                continue
            assert c["name"] not in names
            assert set(c) == {"name", "target", "inputs", "declares", "note"}
            names.add(c["name"])
            t = time.time()
            try:
                verify(c)
                good += 1; k += 1
                if time.time() - t > 5:
                    print(f"   {c['name']}: {time.time() - t:.1f} s")
            except Exception as e:
                bad.append(c["name"])
                print(f"FAIL {mname}.{c['name']}: {' '.join(map(str, e.args))[:1500]}")
                if not isinstance(e, Bad):
                    traceback.print_exc(limit=-4)
        if k or not want:
            print(f"{mname}: {k} good of {len(mod.CASES)}", flush=True)
    print(f"TALLY: {good} verified, {len(bad)} failing {bad or ''}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
