import importlib, os, sys, time, warnings
import torch, torch.nn.functional as F
from torch.autograd import Function, gradcheck, gradgradcheck
warnings.filterwarnings("ignore")
torch.set_num_threads(1)
MODS = ["quantisation", "spiking_adaptation", "activations", "losses", "vision_rendering", "speech_signal",
        "nlp_attention", "graphs_sparse", "linalg_implicit", "memory_rnn_flows", "physics_complex_ops", "misc_patterns"]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

isT = lambda t: isinstance(t, torch.Tensor)
diffable = lambda t: isT(t) and (t.is_floating_point() or t.is_complex())
def cast(t, d64=True):
    if not diffable(t): return t.clone() if isT(t) else t
    dt = (torch.complex128 if d64 else torch.complex64) if t.is_complex() else (torch.float64 if d64 else torch.float32)
    return t.detach().to(dt).clone().requires_grad_(t.requires_grad)
def tup(o): return o if isinstance(o, tuple) else (o,)
def sym(a): return (a + a.mT) / 2
st = lambda hard, soft: hard.detach() + soft - soft.detach()

# ---- constraint projections: gradcheck runs on f(proj(free inputs))
PROJ = {
 "logdet_spd": lambda a: (sym(a),),
 "equality_qp": lambda q, p, a, b: (sym(q), p, a, b),
 "matrix_sqrt_spd": lambda a: (sym(a),),
 "symmetric_eigvals": lambda a: (sym(a),),
}
# ---- references (independent, plain differentiable torch)
def lsq_ref(x, s, qn, qp):
    import math
    g = 1 / math.sqrt(x.numel() * qp)
    s = (s * g) + (s - s * g).detach()
    v = (x / s).clamp(-qn, qp)
    return st(torch.round(v), v) * s
def lif_ref(x, v, tau, th):
    h = v + (x - v) / tau
    u = h - th
    tri = torch.where(u.abs() < 1, torch.where(u < 0, u + u * u / 2, u - u * u / 2), torch.zeros_like(u))
    s = st((u >= 0).to(h.dtype), tri)
    return s, h * (1 - s.detach())
def tern_ref(w, r):
    rows = []
    for row in w.detach().reshape(w.shape[0], -1):
        d = r * row.abs().mean(); keep = row.abs() > d; a = row.abs()[keep].mean()
        rows.append(torch.where(keep, a * row.sign(), torch.zeros_like(row)))
    return st(torch.stack(rows).reshape(w.shape), w)
def stoch_ref(x, step):
    s = x.detach() / step; lo = s.floor(); r = torch.rand_like(s)
    return st((lo + (r < s - lo).to(x.dtype)) * step, x)
def pot_ref(x, lo, hi):
    v = x.detach(); e = v.abs().log2().round().clamp(lo, hi)
    q = v.sign() * 2.0 ** e
    return st(torch.where(v.abs() < 2.0 ** (lo - 1), torch.zeros_like(q), q), x)
def vq_ref(z, cb):
    idx = torch.cdist(z.detach(), cb.detach()).argmin(1)
    c = cb[idx]
    return c + z - z.detach(), idx
def hook_ref(fn):
    def f(x, *a):
        y = x * 1.0
        y.register_hook(lambda g: fn(g, *a)); return y
    return f
import math
REF = {
 "round_ste": lambda x: st(torch.round(x), x),
 "fake_quantize_per_tensor": lambda x, s, z, lo, hi: st((torch.clamp(torch.round(x.detach() / s) + z, lo, hi) - z) * s,
       x * ((torch.round(x.detach() / s) + z >= lo) & (torch.round(x.detach() / s) + z <= hi))),
 "learned_step_size": lsq_ref,
 "binarize_hardtanh": lambda x: st(torch.sign(x.detach()), F.hardtanh(x)),
 "ternarize_weights": tern_ref, "stochastic_round": stoch_ref, "power_of_two_quantize": pot_ref, "vector_quantize_st": vq_ref,
 "lower_bound": lambda x, b: (lambda y: torch.clamp(x.detach(), min=b) + y - y.detach())(hook_ref(lambda g: torch.where((x < b) & (g >= 0), torch.zeros_like(g), g))(x)),
 "gradient_reversal": lambda x, l: x.detach() * (1 + l) - l * x,
 "fast_sigmoid_spike": lambda x: st((x > 0).to(x.dtype), x / (1 + 25 * x.abs())),
 "atan_spike": lambda x, a: st((x >= 0).to(x.dtype), torch.atan(math.pi / 2 * a * x) / math.pi),
 "erf_spike": lambda x, s: st((x >= 0).to(x.dtype), 0.5 * torch.erf(x / (s * math.sqrt(2)))),
 "lif_step": lif_ref,
 "clamp_gradient": hook_ref(lambda g, l: g.clamp(-l, l)), 
 "scale_gradient": lambda x, s: s * x + (1 - s) * x.detach(),
 "hard_argmax_st": lambda x, t: st(F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype), torch.softmax(x / t, -1)),
 "bernoulli_st": lambda p: st(torch.bernoulli(p.detach()), p),
 "topk_mask": lambda s, r: st((s.detach() >= s.detach().flatten().sort(descending=True).values[int(round(r * s.numel())) - 1]).to(s.dtype), s),
 "trunc_exp": lambda x: torch.exp(x),
 # extra references for exact ones
 "sigmoid_focal_loss": lambda x, t, g, a: (a * t + (1 - a) * (1 - t)) * (1 - (torch.sigmoid(x) * t + (1 - torch.sigmoid(x)) * (1 - t))) ** g * F.binary_cross_entropy_with_logits(x, t, reduction="none"),
 "label_smoothing_ce": lambda x, t, s, i: F.cross_entropy(x, t, label_smoothing=s, ignore_index=i, reduction="none"),
 "ctc_nll": lambda lp, l, b: (lambda: -ctc_brute(lp, l.tolist(), b))(),
 "chunked_attention": lambda q, k, v, c, b: F.scaled_dot_product_attention(q, k, v, is_causal=c),
 "rms_norm": lambda x, w, e: F.rms_norm(x, x.shape[-1:], w, e), "rms_norm_no_gain": lambda x, w, e: F.rms_norm(x, x.shape[-1:], None, e),
 "fused_linear_cross_entropy": lambda h, w, t, c: F.cross_entropy(h @ w.t(), t),
 "batch_norm_train": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
 "matrix_sqrt_spd": lambda a: (lambda e: (e[1] * e[0].sqrt()) @ e[1].mT)(torch.linalg.eigh(a)),
 "logdet_spd": lambda a: torch.logdet(a), "symmetric_eigvals": lambda a: torch.linalg.eigvalsh(a),
 "unit_sphere_project": lambda x, e: F.normalize(x, dim=-1),
 "bias_gelu_op": lambda x, b: F.gelu(x + b, approximate="tanh"), "np_sinc_op": lambda x: torch.sin(x) / x,
 "memory_efficient_swish": F.silu, "mish": F.mish, "complex_linear": lambda x, w: x @ w,
 "masked_softmax": lambda s, m: torch.nan_to_num(torch.softmax(s.masked_fill(~m, -1e30), -1)) * m,
 "linear_optional_bias": F.linear,
 "blackbox_rank": lambda x, lam: (lambda y: y + torch.stack([torch.tensor([1.0 + sum(float(b) > float(a) for b in r) for a in r], dtype=x.dtype) for r in x.detach()]) - y.detach())(
     hook_ref(lambda g: torch.stack([torch.tensor([(sum(float(b) > float(a) for b in r2) - sum(float(b) > float(a) for b in r1)) / lam for a1, a in []] or
        [(sum(float(b) > float(r2[k]) for b in r2) - sum(float(b) > float(r1[k]) for b in r1)) / lam for k in range(len(r1))], dtype=x.dtype)
        for r1, r2 in zip(x.detach(), x.detach() + lam * g)]))(x)),
 "ridge_solve": lambda x, y, l: torch.linalg.lstsq(torch.cat([x, l.sqrt() * torch.eye(x.shape[1], dtype=x.dtype)]), torch.cat([y, y.new_zeros(x.shape[1], y.shape[1])])).solution,
 "cumulative_max": lambda x: torch.cummax(x, -1).values, "softplus_beta": lambda x, b: F.softplus(x, b), "inplace_axpy": lambda y, x, a: y + a * x,
 "checkpointed_mlp": lambda x, a, b: F.dropout(torch.tanh(x @ a), 0.3, True) @ b, "permute_features": lambda x, p, i: x[..., p],
 "crf_log_partition": lambda e, t: crf_brute(e, t), "haar_analysis": lambda x: ((x[..., ::2] + x[..., 1::2]) / 2 ** .5, (x[..., ::2] - x[..., 1::2]) / 2 ** .5),
 "fft_convolve": lambda s, k: sum(torch.roll(s, i, -1) * k[i] for i in range(k.numel())),
}
import itertools
def ctc_brute(lp, labels, blank):
    T, C = lp.shape; terms = []
    for path in itertools.product(range(C), repeat=T):
        out = [k for k, _ in itertools.groupby(path) if k != blank]
        if out == labels: terms.append(sum(lp[t, k] for t, k in enumerate(path)))
    return torch.logsumexp(torch.stack(terms), 0)
def crf_brute(e, tr):
    T, K = e.shape
    return torch.logsumexp(torch.stack([sum(e[t, p[t]] for t in range(T)) + sum(tr[p[t], p[t + 1]] for t in range(T - 1))
                                        for p in itertools.product(range(K), repeat=T)]), 0)
NOGRADCHECK = {n for n in ()}  # filled from declares
def ok(a, b, tol=1e-9): return (a is None and b is None) or torch.allclose(a, b, rtol=tol, atol=tol)

def run(case):
    name, T = case["name"], case["target"]
    fn0 = T.apply if isinstance(T, type) and issubclass(T, Function) else T
    def fn(*a):
        torch.manual_seed(7)
        return fn0(*a)
    how = []
    mk = lambda d64=True: tuple(cast(t, d64) for t in case["inputs"]())
    ins = mk(); before = [t.detach().clone() if isT(t) else t for t in ins]
    dout = lambda o: tuple(t for t in tup(o) if diffable(t) and t.requires_grad)
    pos = [i for i, t in enumerate(ins) if isT(t) and t.requires_grad]
    assert pos
    proj = PROJ.get(name, lambda *a: a)
    # other integer / bool outputs must not require grad
    def closed(*free):
        full = list(ins)
        for i, t in zip(pos, free): full[i] = t
        return dout(fn(*proj(*full)))
    def noproj(*free):
        full = list(ins)
        for i, t in zip(pos, free): full[i] = t
        return dout(fn(*full))
    free = [ins[i] for i in pos]
    surrogate = bool(case["declares"])
    if not surrogate or name == "trunc_exp":
        assert gradcheck(closed, free, atol=1e-6, rtol=1e-4), "gradcheck"
        scaled = [(t.detach() * 1.05).requires_grad_() for t in free]
        assert gradcheck(closed, scaled, atol=1e-6, rtol=1e-4), "gradcheck scaled"
        how.append("gradcheck" + ("(proj)" if name in PROJ else ""))
        if name == "softplus_beta":
            assert gradcheck(lambda a: T.apply(a, 2.0), free, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
            assert torch.allclose(torch.vmap(lambda r: T.apply(r, 2.0))(ins[0]), T.apply(ins[0], 2.0)); how.append("forward AD, vmap")
        if name.endswith("_op"):
            torch.library.opcheck(T, ins); how.append("opcheck")
    # double backward
    outs = noproj(*free)
    gos = [torch.randn_like(o) for o in outs]
    try:
        g1 = torch.autograd.grad(outs, free, [g.clone().requires_grad_() for g in gos], create_graph=True, allow_unused=True)
        sc = sum((g.abs() ** 2).sum() for g in g1 if g is not None and g.requires_grad)
        sc.backward() if isT(sc) and sc.requires_grad else None  # backward(), as autograd.grad prunes the DelayedError node
        for t in free: t.grad = None
        double = True
    except RuntimeError as e:
        assert "once_differentiable" in str(e), e
        double = False
    if double and (not surrogate or name == "trunc_exp"):
        assert gradgradcheck(closed, free, atol=1e-5, rtol=1e-3), "gradgradcheck"
        how.append("gradgradcheck")
    elif not double: how.append("double refused")
    # reference
    def fr(*free):
        full = list(ins)
        for i, t in zip(pos, free): full[i] = t
        torch.manual_seed(7)
        return dout(REF[name](*proj(*full)))
    base = torch.autograd.grad(noproj(*free), free, gos, allow_unused=True)
    if name in REF:
        ro, fo = fr(*free), closed(*free)
        assert len(ro) == len(fo)
        for a, b in zip(ro, fo): assert torch.allclose(a, b, atol=1e-8), ("ref fwd", (a - b).abs().max())
        ga = torch.autograd.grad(ro, free, gos); gb = torch.autograd.grad(fo, free, gos)
        for a, b in zip(ga, gb): assert torch.allclose(a, b, atol=1e-8), ("ref grad", (a - b).abs().max())
        how.append("reference")
        if double and surrogate and name not in ("clamp_gradient",):
            def second(f):
                gg = [g.clone().requires_grad_() for g in gos]
                g = torch.autograd.grad(f(*free), free, gg, create_graph=True)
                s = sum((x * torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view_as(x)).sum() for x in g)
                r = torch.autograd.grad(s, list(free) + gg, allow_unused=True)
                return [torch.zeros(1) if x is None else x for x in r]
            for a, b in zip(second(closed), second(fr)): assert torch.allclose(a.double(), b.double(), atol=1e-8), "ref 2nd"
            how.append("reference 2nd")
    assert not surrogate or name in REF
    # unmodified
    for a, b in zip(ins, before): assert not isT(a) or torch.equal(a.detach(), b), "input modified"
    # non-contiguous cotangents
    for style in ("T", "stride", "expand"):
        o = noproj(*free)
        if style == "T": gs = [g.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1) if g.dim() > 1 else g for g in gos]; want = base
        elif style == "stride": gs = [torch.stack([g, g + 9], -1)[..., 0] for g in gos]; want = base
        else:
            gs = [torch.ones((), dtype=g.dtype).expand(g.shape) for g in gos]
            want = torch.autograd.grad(noproj(*free), free, [torch.ones_like(g) for g in gos])
        keep = [g.clone() for g in gs]
        got = torch.autograd.grad(o, free, gs, retain_graph=True); got2 = torch.autograd.grad(o, free, gs)
        assert all(torch.equal(g, k) for g, k in zip(gs, keep)), "cotangent modified"
        for a, b, c, t in zip(got, want, got2, free):
            assert torch.allclose(a, b) and torch.equal(a, c) and a.shape == t.shape and a.dtype == t.dtype, ("cot", style)
    # non-contiguous inputs
    def nc(t, mode):
        if not isT(t) or t.dim() == 0: return t
        d = t.detach()
        r = torch.stack([d, d], -1)[..., 0] if mode == 0 or d.dim() < 2 else d.transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)
        return r.requires_grad_(t.requires_grad)
    for mode in (0, 1):
        nin = [nc(t, mode) for t in ins]
        o = dout(fn(*nin)); got = torch.autograd.grad(o, [nin[i] for i in pos], gos)
        for a, b in zip(got, base): assert torch.allclose(a, b), "noncontig in"
    # needs_input_grad subsets
    for i, b in zip(pos, base):
        sub = [t.detach().requires_grad_(j == i) if diffable(t) else t for j, t in enumerate(ins)]
        o = dout(fn(*sub)); idx = [k for k, t in enumerate(x for x in tup(fn(*ins)) if diffable(x) and x.requires_grad)]
        fo = [t for t in tup(fn(*sub)) if diffable(t)]
        allo = [t for t in tup(fn(*ins)) if diffable(t) and t.requires_grad]
        go = gos if len(o) == len(gos) else None
        if go: assert torch.allclose(torch.autograd.grad(o, sub[i], go)[0], b), "subset"
    # no grad
    with torch.no_grad(): fn(*[t.detach() if isT(t) else t for t in ins])
    # each output alone
    full = noproj(*free)
    parts = [torch.autograd.grad(noproj(*free)[k], free, gos[k], allow_unused=True) for k in range(len(full))]
    if name not in ("clamp_gradient", "lower_bound", "blackbox_rank"):
        for j, b in enumerate(base):
            s = sum(p[j] for p in parts if p[j] is not None)
            assert torch.allclose(s, b), "outputs alone"
    # float32
    i32 = mk(False); o = dout(fn(*i32)); f32 = [i32[i] for i in pos]
    g = torch.autograd.grad(o, f32, [x.to(y.dtype) for x, y in zip(gos, o)])
    for a, b, t in zip(g, base, f32):
        assert a.dtype == t.dtype and torch.isfinite(torch.view_as_real(a) if a.is_complex() else a).all(), "f32"
        if name not in ("stochastic_round", "locked_dropout", "dropout_add_residual"):
            assert torch.allclose(a.to(b.dtype), b, rtol=2e-3, atol=2e-3 * max(1.0, float(b.abs().max()))), ("f32 value", (a - b).abs().max())
    for x in o: assert x.dtype in (torch.float32, torch.complex64), "f32 out"
    return how

names, bad = {}, 0
only = set(sys.argv[1:])
for m in MODS:
    mod = importlib.import_module(m)
    for c in mod.CASES + getattr(mod, "EXTRA_CASES", []):
        assert c["name"] not in names, c["name"]; names[c["name"]] = m
        if only and c["name"] not in only: continue
        t0 = time.time()
        try: print(f"{m:20s} {c['name']:28s} OK  {', '.join(run(c))}  [{time.time()-t0:.1f}s]")
        except Exception as e:
            bad += 1; print(f"{m:20s} {c['name']:28s} FAIL {type(e).__name__}: {str(e)[:600]}")
print(len(names), "cases,", bad, "failed")
