"""Sparse operators and graph layers."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from support import *


class SpMM(Function):
    """COO sparse matrix (row, col, value; n x n) times dense (n, d)."""

    @staticmethod
    def forward(row, col, value, x):
        out = x.new_zeros(x.shape)
        return out.index_add_(0, row, value[:, None] * x[col])

    @staticmethod
    def setup_context(ctx, inputs, output):
        row, col, value, x = inputs
        ctx.save_for_backward(row, col, value, x)

    @staticmethod
    def backward(ctx, g):
        row, col, value, x = ctx.saved_tensors
        gv = gx = None
        if ctx.needs_input_grad[2]:
            gv = (g[col] * x[row]).sum(-1)
        if ctx.needs_input_grad[3]:
            gx = torch.zeros_like(x).index_add(0, col, value[:, None] * g[row])
        return None, None, gv, gx


class EdgeSoftmax(Function):
    """Softmax of edge scores over the incoming edges of every destination."""

    @staticmethod
    def forward(ctx, score, dst, num_nodes):
        top = score.new_full((num_nodes,), float("-inf")).scatter_reduce(0, dst, score, "amax")
        e = torch.exp(score - top[dst])
        den = score.new_zeros(num_nodes).index_add(0, dst, e)
        a = e / den[dst]
        ctx.save_for_backward(a, dst)
        ctx.num_nodes = num_nodes
        return a

    @staticmethod
    def backward(ctx, g):
        a, dst = ctx.saved_tensors
        return a * (g - (a * g).sum()), None, None


class SymNormAdj(Function):
    """GCN normalisation w_ij / sqrt(d_i d_j) with d the weighted degree."""

    @staticmethod
    def forward(ctx, weight, row, col, num_nodes):
        with torch.no_grad():
            deg = weight.new_zeros(num_nodes).index_add(0, row, weight)
            coef = (deg[row] * deg[col]).rsqrt()
        ctx.save_for_backward(coef)
        return weight * coef

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (coef,) = ctx.saved_tensors
        return g * coef, None, None, None


class TopKPool(Function):
    """Scores gating of the k best nodes; returns the gated features and the kept indices."""

    @staticmethod
    def forward(ctx, x, score, k):
        perm = score.topk(k).indices
        gate = torch.tanh(score[perm])
        gated = x[perm] * gate[:, None]
        ctx.save_for_backward(x, score, perm)
        ctx.mark_non_differentiable(gated, perm)
        return gated, perm

    @staticmethod
    def backward(ctx, g, _):
        x, score, perm = ctx.saved_tensors
        gate = torch.tanh(score[perm])
        gx = torch.zeros_like(x).index_copy(0, perm, g * gate[:, None])
        gs = torch.zeros_like(score).index_copy(0, perm, (g * x[perm]).sum(-1) * (1 - gate ** 2))
        return gx, gs, None


class ScatterMax(Function):
    """Maximum of each group; groups without members give zero."""

    @staticmethod
    def forward(ctx, src, index, num_groups):
        out = src.new_full((num_groups,), float("-inf"))
        arg = torch.full((num_groups,), src.numel(), dtype=torch.long)
        for i in range(src.numel()):
            j = int(index[i])
            if src[i] > out[j]:
                out[j], arg[j] = src[i], i
        ctx.save_for_backward(arg)
        ctx.n = src.numel()
        return out.masked_fill(arg == src.numel(), 0.0)

    @staticmethod
    def backward(ctx, g):
        (arg,) = ctx.saved_tensors
        return g.new_zeros(ctx.n).index_add(0, arg.clamp(max=ctx.n - 1), g), None, None


class ChebConv(Function):
    """Chebyshev graph filter of order three: sum_k theta_k T_k(L) x."""

    @staticmethod
    def _terms(lap, x):
        t0, t1 = x, lap @ x
        return t0, t1, 2 * lap @ t1 - t0

    @staticmethod
    def forward(lap, x, theta):
        return sum(c * t for c, t in zip(theta, ChebConv._terms(lap, x)))

    @staticmethod
    def setup_context(ctx, inputs, output):
        lap, x, theta = inputs
        ctx.save_for_backward(lap, x, theta)

    @staticmethod
    def backward(ctx, g):
        lap, x, theta = ctx.saved_tensors
        gx = gt = None
        if ctx.needs_input_grad[1]:
            gx = sum(c * t for c, t in zip(theta, ChebConv._terms(lap, g)))
        if ctx.needs_input_grad[2]:
            gt = torch.stack([(g * t).sum() for t in ChebConv._terms(lap, x)])
        return None, gx, gt


class DropEdgeMessages(Function):
    """Messages x[src] with the edges outside `keep` silenced."""

    @staticmethod
    def forward(ctx, x, src, keep):
        ctx.save_for_backward(src, keep)
        ctx.num_nodes = x.size(0)
        return x[src] * keep[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        src, keep = ctx.saved_tensors
        g.mul_(keep[:, None])
        return g.new_zeros(ctx.num_nodes, g.size(1)).index_add_(0, src, g), None, None


def sibling_changed():
    x, w = rnd(3, 2, seed=1), rnd(4, 2, seed=2)
    out = DropEdgeMessages.apply(x, ints(0, 1, 1, 2), KEEP()) + w
    c = rnd(4, 2, seed=3, grad=False)
    want = c.clone()
    (gw,) = torch.autograd.grad(out, (x, w), c)[1:]
    return not torch.equal(gw, want)


ROW, COL = (lambda: ints(0, 0, 1, 2, 3, 3)), (lambda: ints(1, 3, 2, 0, 0, 1))
KEEP = lambda: ten([1., 0., 1., 0.], grad=False)
SYM = lambda: ten([[0., .5, .2], [.5, 0., .3], [.2, .3, 0.]], grad=False)
ASYM = lambda: ten([[0., .9, .2], [.1, 0., .3], [.6, .3, 0.]], grad=False)

CASES = [
    case("graph_spmm_values", SpMM, lambda: (ROW(), COL(), rnd(6, seed=1), rnd(4, 3, seed=2)),
         "The gradient of the values takes the cotangent at the columns and the features at the rows, the wrong way round."),
    case("graph_edge_softmax_groups", EdgeSoftmax, lambda: (rnd(6, seed=3), ints(0, 0, 1, 1, 1, 2), 3),
         "The inner product of the softmax gradient is summed over all edges in place of each destination's own."),
    case("graph_sym_norm_degree", SymNormAdj, lambda: (uni(6, seed=4, lo=.5), ints(0, 0, 1, 2, 1, 2), ints(1, 2, 0, 0, 2, 1), 3),
         "The degrees depend on the weights but are computed without gradient and taken as constants in backward."),
    case("graph_topk_pool_marked", TopKPool, lambda: (rnd(5, 2, seed=5), rnd(5, seed=6), 3),
         "The gated features are marked non-differentiable together with the indices, so no gradient flows at all."),
    case("graph_scatter_max_empty", ScatterMax, lambda: (rnd(6, seed=7), ints(0, 1, 0, 2, 2, 1), 3),
         "An empty group's sentinel index is clamped to the last element, which then receives that group's gradient.",
         visible=False, elsewhere=lambda: (rnd(6, seed=7), ints(0, 1, 0, 3, 3, 1), 4), where="a group without members"),
    case("graph_cheb_conv_directed", ChebConv, lambda: (SYM(), rnd(3, 2, seed=8), rnd(3, seed=9)),
         "The gradient of the features applies the Laplacian and not its transpose.", visible=False,
         elsewhere=lambda: (ASYM(), rnd(3, 2, seed=8), rnd(3, seed=9)), where="a Laplacian that is not symmetric"),
    case("graph_drop_edge_cotangent", DropEdgeMessages, lambda: (rnd(3, 2, seed=10), ints(0, 1, 1, 2), KEEP()),
         "The incoming gradient is multiplied in place, which changes the gradient of whatever shares that tensor.",
         kind="fragile", visible=False, evidence=sibling_changed),
]
