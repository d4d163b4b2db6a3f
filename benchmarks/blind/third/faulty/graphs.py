"""Graph, scatter and sparse operations."""
from support import *


def _zeros(src, n):
    return src.new_zeros((n,) + tuple(src.shape[1:]))


class ScatterMax(Function):
    """Maximum of the entries of a vector for each index; empty groups are zero."""

    @staticmethod
    def forward(ctx, src, index, n):
        out = src.new_full((n,), float("-inf")).scatter_reduce_(0, index, src, "amax")
        arg = torch.full((n,), src.numel(), dtype=torch.long)
        pos = torch.arange(src.numel())
        hit = src == out[index]
        arg.scatter_reduce_(0, index[hit], pos[hit], "amin")
        arg = arg.clamp(max=src.numel() - 1)
        ctx.save_for_backward(arg)
        ctx.size = src.numel()
        return out.masked_fill(out == float("-inf"), 0.0)

    @staticmethod
    def backward(ctx, grad_output):
        arg, = ctx.saved_tensors
        return grad_output.new_zeros(ctx.size).index_add(0, arg, grad_output), None, None


class SegmentSoftmax(Function):
    """Softmax of edge scores (E, H) among the edges of each target node."""

    @staticmethod
    def forward(ctx, score, index, n):
        idx = index[:, None].expand_as(score)
        top = score.new_full((n, score.size(1)), float("-inf")).scatter_reduce(0, idx, score, "amax")
        e = torch.exp(score - top[index])
        out = e / _zeros(e, n).index_add_(0, index, e)[index]
        ctx.save_for_backward(out, index)
        ctx.n = n
        return out

    @staticmethod
    def backward(ctx, grad_output):
        out, index = ctx.saved_tensors
        g = grad_output * out
        return g - out * g.sum(0), None, None


class SpMM(Function):
    """out[row] += value * dense[col] for a matrix given by coordinates."""

    @staticmethod
    def forward(ctx, row, col, value, dense, n):
        ctx.save_for_backward(row, col, value, dense)
        return _zeros(dense, n).index_add_(0, row, value[:, None] * dense[col])

    @staticmethod
    def backward(ctx, grad_output):
        row, col, value, dense = ctx.saved_tensors
        gv = gd = None
        if ctx.needs_input_grad[3]:
            gv = (grad_output[row] * dense[col]).sum(1)
        if ctx.needs_input_grad[3]:
            gd = torch.zeros_like(dense).index_add(0, col, value[:, None] * grad_output[row])
        return None, None, gv, gd, None


def spmm(value, dense, row, col, n):
    return SpMM.apply(row, col, value, dense, n)


def _edges():
    return torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 2, 0, 2, 1])


def _spmm_inputs():
    return (randn(5), randn(3, 2, seed=1)) + _edges() + (3,)


class BroadcastAdd(Function):
    """Messages (B, T, D) plus an edge term that broadcasts against them."""

    @staticmethod
    def forward(ctx, msg, term):
        ctx.shapes = msg.shape, term.shape
        return msg + term

    @staticmethod
    def backward(ctx, grad_output):
        def reduce(grad, shape):
            while grad.dim() > len(shape):
                grad = grad.sum(0)
            for i, s in enumerate(shape):
                if s == 1 and i < grad.dim() and grad.size(i) != 1:
                    grad = grad.sum(i)
            return grad.reshape(shape)

        a, b = ctx.shapes
        return (reduce(grad_output, a) if ctx.needs_input_grad[0] else None,
                reduce(grad_output, b) if ctx.needs_input_grad[1] else None)


@torch.library.custom_op("faultyops::padded_gather", mutates_args=())
def padded_gather(x: torch.Tensor, nbr: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` by neighbour lists padded with -1; padding gives zero rows."""
    return x[nbr.clamp(min=0)] * (nbr >= 0).unsqueeze(-1)


@padded_gather.register_fake
def _(x, nbr):
    return x.new_empty(tuple(nbr.shape) + (x.size(1),))


def _padded_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.n = inputs[0].size(0)


def _padded_backward(ctx, grad):
    nbr, = ctx.saved_tensors
    flat = grad.reshape(-1, grad.size(-1))
    return _zeros(flat, ctx.n).index_add(0, nbr.reshape(-1) % ctx.n, flat), None


padded_gather.register_autograd(_padded_backward, setup_context=_padded_setup)


class TopKPool(Function):
    """The k largest scores of every row, with their positions."""

    @staticmethod
    def forward(ctx, score, k):
        val, idx = score.topk(k, -1)
        ctx.save_for_backward(idx)
        ctx.shape = score.shape
        ctx.mark_non_differentiable(idx)
        return val, idx

    @staticmethod
    def backward(ctx, grad_val, _):
        idx, = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter(-1, idx, grad_val), None


class CooMatVec(Function):
    """Sparse matrix (coordinates) times a block of vectors."""

    @staticmethod
    def forward(ctx, row, col, value, x, n):
        ctx.save_for_backward(row, col, value, x)
        ctx.n = n
        return _zeros(x, n).index_add_(0, row, value[:, None] * x[col])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        row, col, value, x = ctx.saved_tensors
        gv = gx = None
        if ctx.needs_input_grad[2]:
            gv = (grad_output[row] * x[col]).sum(1)
        if ctx.needs_input_grad[3]:
            dense = value.new_zeros(ctx.n, x.size(0))
            dense.index_put_((row, col), value, accumulate=True)
            gx = dense.t() @ grad_output
        return None, None, gv, gx, None


def coo_matvec(value, x, row, col, n):
    return CooMatVec.apply(row, col, value, x, n)


def _coo_inputs(n=40):
    i = torch.arange(n)
    return randn(n), randn(n, 2, seed=1), i, (i * 7) % n, n


class RowGather(Function):
    """x[index] for a vector of row numbers."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(x, index)
        return x[index]

    @staticmethod
    def backward(ctx, grad_output):
        x, index = ctx.saved_tensors
        return _zeros(grad_output, x.size(0)).index_add(0, index, grad_output), None


@torch.library.custom_op("faultyops::segment_sum", mutates_args=())
def segment_sum(x: torch.Tensor, index: torch.Tensor, n: int) -> torch.Tensor:
    """Sum of the rows of x for each index."""
    return x.new_zeros((n,) + tuple(x.shape[1:])).index_add_(0, index, x)


@segment_sum.register_fake
def _(x, index, n):
    return x.new_empty((n,) + tuple(x.shape[1:]))


def _segment_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _segment_backward(ctx, grad):
    index, = ctx.saved_tensors
    return grad[index], None, None


segment_sum.register_autograd(_segment_backward, setup_context=_segment_setup)


@segment_sum.register_vmap
def _segment_vmap(info, in_dims, x, index, n):
    xb, ib, _ = in_dims
    if ib is not None:
        parts = [segment_sum(x.select(xb, k) if xb is not None else x, index.select(ib, k), n)
                 for k in range(info.batch_size)]
        return torch.stack(parts), 0
    moved = x.movedim(xb, -1)
    return segment_sum(moved, index, n), 0


def _segment_vmap_wrong():
    x = randn(3, 4, 3, grad=False)
    idx = torch.tensor([0, 1, 1, 2])
    got = torch.vmap(lambda t: segment_sum(t, idx, 3))(x)
    want = torch.stack([segment_sum(t, idx, 3) for t in x])
    return got.shape != want.shape or not close(got, want)


def _idx(*v):
    return torch.tensor(v)


CASES = [
    {"name": "scatter_max_empty_group", "target": ScatterMax, "inputs": lambda: (randn(5), _idx(0, 2, 1, 0, 2), 3),
     "fault": "The position of an empty group is clamped, so its cotangent reaches the last element.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(ScatterMax, (randn(4), _idx(0, 2, 0, 2), 3))},
    {"name": "segment_softmax_global_sum", "target": SegmentSoftmax,
     "inputs": lambda: (randn(4, 2), _idx(0, 0, 0, 0), 1),
     "fault": "backward sums over all edges, not over the edges of each node.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(SegmentSoftmax, (randn(4, 2), _idx(0, 1, 1, 0), 2))},
    {"name": "spmm_value_alone", "target": spmm, "inputs": _spmm_inputs,
     "fault": "The test for the value gradient looks at the flag of the dense matrix, so it is None when only the values require grad.",
     "kind": "wrong", "visible": False, "evidence": lambda: subset_differs(spmm, _spmm_inputs(), (0,))},
    {"name": "broadcast_add_two_unit_dims", "target": BroadcastAdd,
     "inputs": lambda: (randn(2, 4, 3), randn(1, 4, 3, seed=1)),
     "fault": "Dimensions are dropped while being counted, so for a (1, 1, D) term the wrong ones are summed if T equals D.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(BroadcastAdd, (randn(2, 3, 3), randn(1, 1, 3, seed=1)))},
    {"name": "padded_gather_wraps", "target": padded_gather,
     "inputs": lambda: (randn(3, 2), torch.tensor([[0, 1], [2, 0]])),
     "fault": "Padding (-1) wraps round in backward and adds its cotangent to the last row.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(padded_gather, (randn(3, 2), torch.tensor([[0, -1], [2, 1]])))},
    {"name": "topk_pool_double", "target": TopKPool, "inputs": lambda: (randn(2, 5, dtype=torch.float32), 2),
     "fault": "The gradient buffer has the default dtype, so backward fails for double or half scores.",
     "kind": "fragile", "visible": False,
     "evidence": lambda: raises(lambda: analytic(TopKPool, (randn(2, 5), 2)), "dtype")},
    {"name": "coo_matvec_densified", "target": coo_matvec, "inputs": lambda: _coo_inputs(12),
     "fault": "backward densifies the n x n sparse matrix to multiply by its transpose.",
     "kind": "wasteful", "visible": False, "evidence": lambda: backward_log(coo_matvec, _coo_inputs()).largest >= 1600},
    {"name": "row_gather_saves_input", "target": RowGather, "inputs": lambda: (randn(50, 2), _idx(3, 1, 3)),
     "fault": "The whole input is kept for backward only for its number of rows.",
     "kind": "wasteful", "visible": False,
     "evidence": lambda: saved_elems(RowGather, (randn(50, 2) * 1, _idx(3, 1, 3))) >= 100},
    {"name": "segment_sum_vmap_layout", "target": segment_sum, "inputs": lambda: (randn(4, 2), _idx(0, 1, 1, 2), 3),
     "fault": "The vmap rule moves the batch to the last dimension but reports it as the first one of the output.",
     "kind": "wrong", "visible": False, "evidence": _segment_vmap_wrong},
]
