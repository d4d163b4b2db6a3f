"""Graph, segment and index operations."""
import torch
import torch.nn as nn

from support import *


class SegmentMax(Function):
    """Maximum for each segment, 0 for an empty one.  Equal maxima share the gradient evenly."""

    @staticmethod
    def forward(ctx, x, ids, num_segments):
        index = ids.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        out = x.new_zeros(num_segments, *x.shape[1:]).scatter_reduce(
            0, index, x, "amax", include_self=False)
        hit = (x == out.index_select(0, ids)).to(x.dtype)
        count = torch.zeros_like(out).index_add(0, ids, hit)
        ctx.save_for_backward(ids, hit / count.index_select(0, ids))
        return out

    @staticmethod
    def backward(ctx, grad_output):
        ids, share = ctx.saved_tensors
        return grad_output.index_select(0, ids) * share, None, None


class EdgeSoftmax(Function):
    """Softmax of edge scores over the edges that enter the same node."""

    @staticmethod
    def forward(score, dst, num_nodes):
        index = dst[:, None].expand_as(score)
        top = score.new_full((num_nodes, score.size(1)), float("-inf")).scatter_reduce(0, index, score, "amax")
        e = torch.exp(score - top[dst])
        total = score.new_zeros(num_nodes, score.size(1)).index_add(0, dst, e)
        return e / total[dst]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, dst, ctx.num_nodes = inputs
        ctx.save_for_backward(output, dst)

    @staticmethod
    def backward(ctx, g):
        a, dst = ctx.saved_tensors
        ga = g * a
        total = ga.new_zeros(ctx.num_nodes, a.size(1)).index_add(0, dst, ga)
        return ga - a * total[dst], None, None


class SpMM(Function):
    """Sparse (COO) times dense.  ``index`` is (2, E) and may hold an entry more than once."""

    @staticmethod
    def forward(ctx, index, values, dense, rows):
        ctx.save_for_backward(index, values, dense)
        row, col = index
        return dense.new_zeros(rows, dense.size(1)).index_add(0, row, values[:, None] * dense[col])

    @staticmethod
    def backward(ctx, g):
        index, values, dense = ctx.saved_tensors
        row, col = index
        gv = gd = None
        if ctx.needs_input_grad[1]:
            gv = (g[row] * dense[col]).sum(1)
        if ctx.needs_input_grad[2]:
            gd = torch.zeros_like(dense).index_add(0, col, values[:, None] * g[row])
        return None, gv, gd, None


class PermuteRows(Function):
    """x[perm]; the backward uses the given inverse, so no scatter is needed."""

    @staticmethod
    def forward(ctx, x, perm, inverse):
        if not torch.equal(perm[inverse], torch.arange(perm.numel(), device=perm.device)):
            raise ValueError("`inverse` is not the inverse permutation of `perm`")
        ctx.save_for_backward(perm, inverse)
        return x[perm]

    @staticmethod
    def backward(ctx, g):
        perm, inverse = ctx.saved_tensors
        return PermuteRows.apply(g, inverse, perm), None, None


class RaggedMeanPool(Function):
    """Mean over the valid steps of (B, T, D) by lengths; an empty sequence gives zeros."""

    @staticmethod
    def forward(ctx, x, lengths):
        if int(lengths.max()) > x.size(1) or int(lengths.min()) < 0:
            raise ValueError("lengths must be between 0 and the padded size")
        valid = torch.arange(x.size(1), device=x.device) < lengths[:, None]
        w = valid.to(x.dtype) / lengths.clamp_min(1)[:, None].to(x.dtype)
        ctx.save_for_backward(w)
        return torch.where(valid[..., None], x, torch.zeros_like(x)).mul(w[..., None]).sum(1)

    @staticmethod
    def backward(ctx, g):
        w, = ctx.saved_tensors
        return w[..., None] * g[:, None, :], None


class PickByOneHot(Function):
    """The logit that a one-hot row names."""

    @staticmethod
    def forward(ctx, logits, onehot):
        if ctx.needs_input_grad[1]:
            raise NotImplementedError("the one-hot target is a constant, detach it")
        if not bool(((onehot == 0) | (onehot == 1)).all()) or not bool((onehot.sum(-1) == 1).all()):
            raise ValueError("every row of the target must be one-hot")
        ctx.save_for_backward(onehot)
        return (logits * onehot).sum(-1)

    @staticmethod
    def backward(ctx, g):
        onehot, = ctx.saved_tensors
        return g.unsqueeze(-1) * onehot, None


class CompressByMask(Function):
    """Valid rows of (B, T, D) one after the other, (N, D), as the boolean mask (B, T) says."""

    @staticmethod
    def forward(x, mask):
        return x[mask]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        mask, = ctx.saved_tensors
        return g.new_zeros(*mask.shape, g.size(-1)).masked_scatter(mask.unsqueeze(-1), g), None


class KMaxPool(Function):
    """The k greatest values along the last dimension in their order of place, and the places."""

    @staticmethod
    def forward(ctx, x, k):
        idx = x.topk(k, dim=-1).indices.sort(-1).values
        ctx.size = x.size(-1)
        ctx.save_for_backward(idx)
        ctx.mark_non_differentiable(idx)
        ctx.set_materialize_grads(False)
        return x.gather(-1, idx), idx

    @staticmethod
    def backward(ctx, g, _):
        if g is None:
            return None, None
        idx, = ctx.saved_tensors
        return g.new_zeros(*g.shape[:-1], ctx.size).scatter(-1, idx, g), None


@torch.library.custom_op("tinygraph::degree_scatter", mutates_args=())
def degree_scatter(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """Mean of the neighbours' features; a node without neighbours gets zeros."""
    deg = torch.bincount(dst, minlength=num_nodes).clamp_min(1).to(x.dtype)
    return x.new_zeros(num_nodes, x.size(1)).index_add(0, dst, x[src]) / deg[:, None]


@degree_scatter.register_fake
def _(x, src, dst, num_nodes):
    return x.new_empty(num_nodes, x.size(1))


def _scatter_setup(ctx, inputs, output):
    x, src, dst, _ = inputs
    ctx.save_for_backward(src, dst)
    ctx.rows = x.size(0)


def _scatter_backward(ctx, g):
    src, dst = ctx.saved_tensors
    deg = torch.bincount(dst, minlength=g.size(0)).clamp_min(1).to(g.dtype)
    return g.new_zeros(ctx.rows, g.size(1)).index_add(0, src, (g / deg[:, None])[dst]), None, None, None


degree_scatter.register_autograd(_scatter_backward, setup_context=_scatter_setup)


_PERM = [3, 0, 4, 1, 2]


def _perm_inputs():
    perm = torch.tensor(_PERM)
    return randn(5, 3, seed=6), perm, torch.argsort(perm)


CASES = [
    case("segment_max_ties", SegmentMax,
         lambda: (torch.tensor([[1., 2.], [1., 0.], [3., 2.], [-1., 5.]], dtype=torch.float64, requires_grad=True),
                  torch.tensor([0, 0, 2, 0]), 4),
         "the example has ties, which share the gradient by convention"),
    case("edge_softmax", EdgeSoftmax, lambda: (randn(7, 2, seed=3), torch.tensor([0, 1, 1, 3, 0, 1, 3]), 4)),
    case("coo_spmm", SpMM,
         lambda: (torch.tensor([[0, 2, 2, 3, 2], [1, 0, 4, 1, 0]]), randn(5, seed=4), randn(5, 3, seed=5), 4),
         "an entry occurs twice and adds up"),
    case("permute_rows_with_inverse", PermuteRows, _perm_inputs,
         "the two index arguments must be inverse to one another; the backward is the same Function"),
    case("ragged_mean_pool", RaggedMeanPool, lambda: (randn(3, 4, 2, seed=9), torch.tensor([4, 0, 2])),
         "padding gets zero gradient; one sequence is empty"),
    case("pick_by_one_hot", PickByOneHot,
         lambda: (randn(4, 3, seed=10), F.one_hot(torch.tensor([2, 0, 1, 1]), 3).double()),
         "the float target must be one-hot and is refused aloud if it requires a gradient"),
    case("compress_by_mask", CompressByMask,
         lambda: (randn(2, 4, 3, seed=11), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)),
         "the size of the result depends on the mask"),
    case("k_max_pool_indices", KMaxPool, lambda: (randn(3, 6, seed=12), 2),
         "indices are marked non-differentiable"),
    case("degree_scatter_custom_op", degree_scatter,
         lambda: (randn(5, 2, seed=13), torch.tensor([0, 1, 4, 4, 2]), torch.tensor([1, 1, 3, 0, 3]), 4)),
]
