"""Graph, segment and sparse operators."""
import math
import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ScatterMean(Function):
    """Mean of the rows of src that share an index, as in torch_scatter."""

    @staticmethod
    def forward(ctx, src, index, dim_size):
        out = src.new_zeros(dim_size, src.size(1)).index_add_(0, index, src)
        count = torch.bincount(index, minlength=dim_size).to(src.dtype).clamp_min(1)
        ctx.save_for_backward(index, count)
        return out / count.unsqueeze(1)

    @staticmethod
    def backward(ctx, grad_output):
        index, count = ctx.saved_tensors
        return grad_output.index_select(0, index) / count.index_select(0, index).sum(), None, None


class SegmentSoftmax(Function):
    """Softmax of edge scores over the edges that enter the same node (GAT)."""

    @staticmethod
    def forward(ctx, score, dst, num_nodes):
        m = score.new_full((num_nodes,), -math.inf).scatter_reduce_(0, dst, score, "amax")
        e = (score - m[dst]).exp()
        z = score.new_zeros(num_nodes).index_add_(0, dst, e)
        out = e / z[dst]
        ctx.save_for_backward(out, dst)
        ctx.num_nodes = num_nodes
        return out

    @staticmethod
    def backward(ctx, grad_output):
        out, dst = ctx.saved_tensors
        inner = out * grad_output
        total = inner.new_zeros(ctx.num_nodes).index_add(0, dst, inner)
        return inner - total[dst], None, None


class SpMMCoo(Function):
    """y = A x for A in COO form (row, col, value); gradients for value and x."""

    @staticmethod
    def forward(ctx, row, col, value, x, num_rows):
        if row.shape != col.shape or row.shape != value.shape:
            raise ValueError("row, col and value must have one entry for each edge")
        ctx.save_for_backward(row, col, value, x)
        return x.new_zeros(num_rows, x.size(1)).index_add_(0, row, value.unsqueeze(1) * x[col])

    @staticmethod
    def backward(ctx, grad_output):
        row, col, value, x = ctx.saved_tensors
        grad_value = grad_x = None
        if ctx.needs_input_grad[2]:
            grad_value = (grad_output[row] * x[col]).sum(1)
        if ctx.needs_input_grad[2]:
            grad_x = torch.zeros_like(x).index_add(0, col, value.unsqueeze(1) * grad_output[row])
        return None, None, grad_value, grad_x, None


class SegmentMaxCsr(Function):
    """Maximum over the rows ptr[i]:ptr[i+1] of x; also returns the winning rows."""

    @staticmethod
    def forward(ctx, x, ptr):
        outs, args = [], []
        for lo, hi in zip(ptr[:-1].tolist(), ptr[1:].tolist()):
            if hi > lo:
                v, a = x[lo:hi].max(0)
                outs.append(v)
                args.append(a + lo)
            else:
                outs.append(x.new_zeros(x.size(1)))
                args.append(torch.zeros(x.size(1), dtype=torch.long))
        arg = torch.stack(args)
        ctx.save_for_backward(arg)
        ctx.mark_non_differentiable(arg)
        ctx.rows = x.size(0)
        return torch.stack(outs), arg

    @staticmethod
    def backward(ctx, grad_output, _grad_arg):
        arg, = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, grad_output.size(1))
        return grad.scatter_add(0, arg, grad_output), None


class GCNNormalise(Function):
    """Symmetric normalisation D^-1/2 A D^-1/2 of a dense weighted adjacency matrix."""

    @staticmethod
    def forward(ctx, adj):
        deg = adj.sum(1)
        inv = deg.clamp_min(1e-12).rsqrt()
        ctx.save_for_backward(adj)
        return inv.unsqueeze(1) * adj * inv.unsqueeze(0)

    @staticmethod
    def backward(ctx, grad_output):
        adj, = ctx.saved_tensors
        deg = adj.sum(1).clamp_min(1e-12)
        inv = deg.rsqrt()
        grad = inv.unsqueeze(1) * grad_output * inv.unsqueeze(0)
        inner = grad_output * adj
        d_inv = (inner * inv.unsqueeze(0)).sum(1) + (inner * inv.unsqueeze(1)).sum(0)
        d_deg = -0.5 * d_inv * inv / deg
        return grad + d_deg.unsqueeze(0)


class EdgeDotProduct(Function):
    """SDDMM: for each edge (u, v) the dot product of q[u] and k[v]."""

    @staticmethod
    def forward(ctx, q, k, src, dst):
        ctx.save_for_backward(q, k, src, dst)
        return (q[src] * k[dst]).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        q, k, src, dst = ctx.saved_tensors
        g = grad_output.unsqueeze(-1)
        grad_q = torch.zeros_like(q)
        grad_k = torch.zeros_like(k)
        grad_q[src] += g * k[dst]
        grad_k = grad_k.index_add(0, dst, g * q[src])
        return grad_q, grad_k, None, None


class EmbeddingBagSum(Function):
    """Sum of the embeddings of each bag; bags are given by offsets as in nn.EmbeddingBag."""

    @staticmethod
    def forward(ctx, weight, indices, offsets, padding_idx=-1):
        bag = torch.searchsorted(offsets, torch.arange(indices.numel()), right=True) - 1
        keep = indices != padding_idx
        ctx.save_for_backward(indices, bag)
        ctx.rows = weight.size(0)
        out = weight.new_zeros(offsets.numel(), weight.size(1))
        return out.index_add_(0, bag[keep], weight[indices[keep]])

    @staticmethod
    def backward(ctx, grad_output):
        indices, bag = ctx.saved_tensors
        grad = grad_output.new_zeros(ctx.rows, grad_output.size(1))
        return grad.index_add(0, indices, grad_output[bag]), None, None, None


class TopKSparsify(Function):
    """Keeps the k entries of largest magnitude of each row, zero elsewhere."""

    @staticmethod
    def forward(ctx, x, k):
        if not 0 < k <= x.size(-1):
            raise ValueError("k out of range")
        idx = x.abs().topk(k, dim=-1).indices
        vals = x.gather(-1, idx)
        ctx.save_for_backward(vals, idx)
        ctx.shape = x.shape
        return torch.zeros_like(x).scatter_(-1, idx, vals)

    @staticmethod
    def backward(ctx, grad_output):
        vals, idx = ctx.saved_tensors
        mask = torch.zeros(ctx.shape, dtype=vals.dtype).scatter_(-1, idx, vals) != 0
        return grad_output * mask, None


class CsrMatVecNumpy(Function):
    """Sparse matrix times vector through NumPy: y = A x, A in CSR form."""

    @staticmethod
    def forward(ctx, data, indices, indptr, x):
        d, i, p = data.detach().numpy(), indices.numpy(), indptr.numpy()
        rows = np.repeat(np.arange(len(p) - 1), np.diff(p))
        y = np.zeros(len(p) - 1, dtype=d.dtype)
        np.add.at(y, rows, d * x.detach().numpy()[i])
        ctx.save_for_backward(data, indices, x)
        ctx.rows = rows
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        data, indices, x = ctx.saved_tensors
        g = grad_output.numpy().astype(np.float32)[ctx.rows]
        i = indices.numpy()
        grad_data = torch.from_numpy((g * x.detach().numpy()[i]).astype(data.numpy().dtype))
        grad_x = np.zeros(x.shape, dtype=x.detach().numpy().dtype)
        np.add.at(grad_x, i, data.detach().numpy() * g)
        return grad_data, None, None, torch.from_numpy(grad_x)


class DiffusionPropagate(Function):
    """K steps of personalised PageRank propagation z <- (1 - a) P z + a h (APPNP)."""

    @staticmethod
    def forward(ctx, h, prop, steps=4, teleport=0.1):
        states = [h]
        z = h
        for _ in range(steps):
            z = (1 - teleport) * (prop @ z) + teleport * h
            states.append(z)
        ctx.save_for_backward(prop, *states)
        ctx.steps, ctx.teleport = steps, teleport
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        prop, *states = ctx.saved_tensors
        a, g = ctx.teleport, grad_output
        grad_h = torch.zeros_like(grad_output)
        grad_prop = torch.zeros_like(prop) if ctx.needs_input_grad[1] else None
        for t in range(ctx.steps - 1, -1, -1):
            grad_h = grad_h + a * g
            if grad_prop is not None:
                grad_prop = grad_prop + (1 - a) * (states[t] @ g.t())
            g = (1 - a) * (prop.t() @ g)
        return grad_h + g, grad_prop, None, None


# ------------------------------------------------------------------ tests ---

def _t(seed, *shape, grad=True, dtype=torch.float64, scale=1.0):
    gen = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=gen, dtype=dtype) * scale).requires_grad_(grad)


def _u(seed, *shape, grad=True, dtype=torch.float64, lo=0.1, hi=0.9):
    gen = torch.Generator().manual_seed(seed)
    return (torch.rand(*shape, generator=gen, dtype=dtype) * (hi - lo) + lo).requires_grad_(grad)


def _i(seed, high, *shape):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, shape, generator=gen)


def _fn(target):
    return target.apply if isinstance(target, type) else target


def _copy(args):
    return [a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a for a in args]


def _outs(out):
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _isf(o):
    return torch.is_tensor(o) and (o.is_floating_point() or o.is_complex())


def _cots(outs, seed=7):
    gen = torch.Generator().manual_seed(seed)
    return [torch.randn(o.shape, generator=gen, dtype=o.dtype) for o in outs]


def _grads(target, args, keep=None, cots=None):
    """Reverse-mode gradients; keep = indices of the outputs that get a cotangent."""
    xs = _copy(args)
    torch.manual_seed(11)
    outs = _outs(_fn(target)(*xs))
    if keep is None:
        keep = [k for k, o in enumerate(outs) if _isf(o) and o.requires_grad]
    picked = [outs[k] for k in keep]
    if cots is None:
        cots = _cots(picked)
    wrt = [x for x in xs if torch.is_tensor(x) and x.requires_grad]
    got = torch.autograd.grad(picked, wrt, [c.clone() for c in cots], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g.detach().clone() for g, x in zip(got, wrt)], keep, cots


def _numeric(target, args, keep, cots, eps=1e-6):
    def value(xs):
        torch.manual_seed(11)
        with torch.no_grad():
            outs = _outs(_fn(target)(*_copy(xs)))
        total = 0.0
        for k, c in zip(keep, cots):
            total += (outs[k] * c.conj()).sum().real.item()
        return total
    res = []
    for n, a in enumerate(args):
        if not (torch.is_tensor(a) and a.requires_grad):
            continue
        base = a.detach().clone()
        cplx = base.is_complex()
        real = torch.view_as_real(base).clone() if cplx else base.clone()
        out = torch.zeros(real.numel(), dtype=real.dtype)
        for j in range(real.numel()):
            vals = []
            for sgn in (1, -1):
                p = real.clone().contiguous()
                p.view(-1)[j] += sgn * eps
                xs = list(args)
                xs[n] = (torch.view_as_complex(p) if cplx else p).requires_grad_(True)
                vals.append(value(xs))
            out[j] = (vals[0] - vals[1]) / (2 * eps)
        out = out.view(real.shape)
        res.append(torch.view_as_complex(out) if cplx else out)
    return res


def _agrees(target, args, ref=None, keep=None, cots=None, tol=1e-5):
    got, keep, cots = _grads(target, args, keep, cots)
    want = _grads(ref, args, keep, cots)[0] if ref is not None else _numeric(target, args, keep, cots)
    return all(g.shape == w.shape and torch.allclose(g, w.to(g.dtype), rtol=tol, atol=tol) for g, w in zip(got, want))


def _wrong(target, args, ref=None, **kw):
    return not _agrees(target, args, ref, **kw)


def _second_ok(target, args):
    return torch.autograd.gradgradcheck(_fn(target), tuple(_copy(args)), raise_exception=False)


def _raises(target, args, **kw):
    try:
        _grads(target, args, **kw)
    except Exception:
        return True
    return False


def _ops(call, name):
    """How often the aten operator `name` runs inside call()."""
    from torch.utils._python_dispatch import TorchDispatchMode
    seen = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Count():
        call()
    return sum(1 for n in seen if n == name)


def _saved_numel(out):
    return [t.numel() for t in out.grad_fn.saved_tensors if t is not None]


def _smean_in():
    return (_t(0, 6, 3), torch.tensor([0, 1, 0, 2, 2, 0]), 3)


def _spmm_in():
    return (torch.tensor([0, 0, 1, 2, 3]), torch.tensor([1, 2, 0, 2, 1]), _t(0, 5), _t(1, 3, 4), 4)


def _ev_spmm():
    r, c, v, x, n = _spmm_in()
    return _wrong(SpMMCoo, (r, c, v.detach(), x, n))


def _edge_in():
    return (_t(0, 4, 3), _t(1, 5, 3), torch.tensor([0, 1, 2, 3]), torch.tensor([4, 0, 0, 2]))


def _csr_in():
    return (_t(0, 6), torch.tensor([0, 2, 1, 0, 3, 2]), torch.tensor([0, 2, 3, 6]), _t(1, 4))


def _appnp_in():
    return (_t(0, 4, 3), _u(1, 4, 4))


def _ev_topk():
    x = torch.tensor([[0.0, 0.0, 0.0, 2.0]], dtype=torch.float64, requires_grad=True)
    g, = torch.autograd.grad(TopKSparsify.apply(x, 3).sum(), x)
    return int((g != 0).sum()) != 3


def _f32_loss():
    d, i, p, x = _csr_in()
    g = _t(3, 3, grad=False)
    got, = torch.autograd.grad(CsrMatVecNumpy.apply(d, i, p, x), x, g)
    rows = torch.tensor([0, 0, 1, 2, 2, 2])
    want = torch.zeros(4, dtype=torch.float64).index_add(0, i, d.detach() * g[rows])
    return bool((got - want).abs().max() > 1e-10)


CASES = [
    dict(name="scatter_mean", target=ScatterMean, inputs=_smean_in,
         fault="backward divides by the sum of all gathered counts instead of each row's own count",
         kind="wrong", visible=True, evidence=lambda: _wrong(ScatterMean, _smean_in())),
    dict(name="segment_softmax", target=SegmentSoftmax,
         inputs=lambda: (_t(0, 6), torch.tensor([0, 0, 1, 1, 1, 2]), 3),
         fault="the summed inner product is not multiplied by the softmax output",
         kind="wrong", visible=True,
         evidence=lambda: _wrong(SegmentSoftmax, (_t(0, 6), torch.tensor([0, 0, 1, 1, 1, 2]), 3))),
    dict(name="spmm_coo", target=SpMMCoo, inputs=_spmm_in,
         fault="needs_input_grad[2] is asked for x (index 3): with constant edge values the gradient of x is dropped",
         kind="wrong", visible=False, evidence=_ev_spmm),
    dict(name="segment_max_csr", target=SegmentMaxCsr,
         inputs=lambda: (_t(0, 7, 3), torch.tensor([0, 3, 5, 7])),
         fault="empty segments get argmax 0, so their cotangent is added to row 0",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(SegmentMaxCsr, (_t(0, 7, 3), torch.tensor([0, 3, 3, 7])))),
    dict(name="gcn_normalise", target=GCNNormalise, inputs=lambda: (_u(0, 4, 4),),
         fault="the degree gradient is broadcast along columns (unsqueeze(0)) instead of rows",
         kind="wrong", visible=True, evidence=lambda: _wrong(GCNNormalise, (_u(0, 4, 4),))),
    dict(name="edge_dot_product", target=EdgeDotProduct, inputs=_edge_in,
         fault="grad_q[src] += ... does not accumulate repeated indices; wrong once a source node has two edges",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(EdgeDotProduct, _edge_in()[:2] + (torch.tensor([0, 0, 2, 3]), torch.tensor([4, 0, 0, 2])))),
    dict(name="embedding_bag_sum", target=EmbeddingBagSum,
         inputs=lambda: (_t(0, 6, 3), torch.tensor([0, 2, 5, 2, 1]), torch.tensor([0, 2, 4])),
         fault="backward does not leave out padding_idx: the padding row gets a gradient once it is used",
         kind="wrong", visible=False,
         evidence=lambda: _wrong(EmbeddingBagSum, (_t(0, 6, 3), torch.tensor([0, 2, 5, 2, 1]), torch.tensor([0, 2, 4]), 2))),
    dict(name="topk_sparsify", target=TopKSparsify, inputs=lambda: (_t(0, 3, 6), 2),
         fault="the mask is rebuilt as kept values != 0: selected entries equal to zero get no gradient (all-zero initial rows)",
         kind="wrong", visible=False, evidence=_ev_topk),
    dict(name="csr_matvec_numpy", target=CsrMatVecNumpy, inputs=_csr_in,
         fault="the cotangent is cast to float32 in backward; float64 gradients are good to 1e-7 only",
         kind="wrong", visible=False, evidence=_f32_loss),
    dict(name="appnp_propagate", target=DiffusionPropagate, inputs=_appnp_in,
         fault="the gradient of the propagation matrix is transposed (state g^T instead of g state^T)",
         kind="wrong", visible=True, evidence=lambda: _wrong(DiffusionPropagate, _appnp_in())),
]
