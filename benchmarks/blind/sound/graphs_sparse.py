"""Graph and sparse operators on COO edge lists."""
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def _check_edges(edge_index):
    if edge_index.dim() != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError("edge_index must be an int64 (2, E) tensor")


class SpMM(Function):
    """Sparse (COO) times dense: out[dst] += value * x[src], differentiable in values and x."""

    @staticmethod
    def forward(ctx, edge_index, values, x, num_dst):
        _check_edges(edge_index)
        dst, src = edge_index
        ctx.save_for_backward(edge_index, values, x)
        out = x.new_zeros(num_dst, x.shape[1])
        return out.index_add_(0, dst, values.unsqueeze(1) * x[src])

    @staticmethod
    def backward(ctx, grad_output):
        edge_index, values, x = ctx.saved_tensors
        dst, src = edge_index
        grad_values = grad_x = None
        g = grad_output[dst]
        if ctx.needs_input_grad[1]:
            grad_values = (g * x[src]).sum(1)
        if ctx.needs_input_grad[2]:
            grad_x = torch.zeros_like(x).index_add(0, src, values.unsqueeze(1) * g)
        return None, grad_values, grad_x, None


class EdgeDot(Function):
    """SDDMM: the dot product of the end-point features of every edge."""

    @staticmethod
    def forward(ctx, edge_index, left, right):
        _check_edges(edge_index)
        ctx.save_for_backward(edge_index, left, right)
        return (left[edge_index[0]] * right[edge_index[1]]).sum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        edge_index, left, right = ctx.saved_tensors
        i, j = edge_index
        g = grad_output.unsqueeze(-1)
        grad_left = grad_right = None
        if ctx.needs_input_grad[1]:
            grad_left = torch.zeros_like(left).index_add(0, i, g * right[j])
        if ctx.needs_input_grad[2]:
            grad_right = torch.zeros_like(right).index_add(0, j, g * left[i])
        return None, grad_left, grad_right


class SegmentSum(Function):
    """Sum rows of x over consecutive segments given by row pointers (n + 1,), CSR style.

    ``ptr`` must be sorted, start at 0 and end at the number of rows.
    """

    @staticmethod
    def forward(ctx, x, ptr):
        if int(ptr[0]) != 0 or int(ptr[-1]) != x.shape[0] or bool((ptr[1:] < ptr[:-1]).any()):
            raise ValueError("ptr must be sorted from 0 to the number of rows")
        counts = ptr[1:] - ptr[:-1]
        owner = torch.repeat_interleave(torch.arange(len(counts), device=x.device), counts)
        ctx.save_for_backward(owner)
        return x.new_zeros(len(counts), *x.shape[1:]).index_add_(0, owner, x)

    @staticmethod
    def backward(ctx, grad_output):
        (owner,) = ctx.saved_tensors
        return grad_output.index_select(0, owner), None


class EdgeSoftmax(Function):
    """Softmax of edge scores (E, H) over the edges entering each destination node."""

    @staticmethod
    def forward(ctx, scores, dst, num_nodes):
        if dst.shape != scores.shape[:1]:
            raise ValueError("one destination per edge")
        index = dst.unsqueeze(1).expand_as(scores)
        peak = scores.new_full((num_nodes, scores.shape[1]), float("-inf"))
        peak = peak.scatter_reduce(0, index, scores, reduce="amax", include_self=True)
        e = torch.exp(scores - peak[dst])
        total = scores.new_zeros(num_nodes, scores.shape[1]).index_add_(0, dst, e)
        out = e / total[dst]
        ctx.save_for_backward(out, dst)
        ctx.num_nodes = num_nodes
        return out

    @staticmethod
    def backward(ctx, grad_output):
        out, dst = ctx.saved_tensors
        weighted = out * grad_output
        total = weighted.new_zeros(ctx.num_nodes, weighted.shape[1]).index_add(0, dst, weighted)
        return weighted - out * total[dst], None, None


class ScatterMax(Function):
    """Per-node maximum of edge messages (E, F), with the arg-max edge (-1 for empty nodes)."""

    @staticmethod
    def forward(ctx, messages, dst, num_nodes):
        index = dst.unsqueeze(1).expand_as(messages)
        low = messages.new_full((num_nodes, messages.shape[1]), float("-inf"))
        peak = low.scatter_reduce(0, index, messages, reduce="amax", include_self=True)
        edge_ids = torch.arange(messages.shape[0], device=messages.device).unsqueeze(1).expand_as(messages)
        # ties go to the first edge: losers get an id past the end and lose the amin
        cand = torch.where(messages == peak[dst], edge_ids, torch.full_like(edge_ids, messages.shape[0]))
        arg = torch.full_like(low, messages.shape[0], dtype=torch.int64)
        arg = arg.scatter_reduce(0, index, cand, reduce="amin", include_self=True)
        empty = arg == messages.shape[0]
        arg = arg.masked_fill(empty, -1)
        ctx.save_for_backward(arg)
        ctx.num_edges = messages.shape[0]
        ctx.mark_non_differentiable(arg)
        return peak.masked_fill(empty, 0), arg

    @staticmethod
    def backward(ctx, grad_peak, _grad_arg):
        (arg,) = ctx.saved_tensors
        valid = arg >= 0
        zeros = grad_peak.new_zeros(ctx.num_edges, grad_peak.shape[1])
        return zeros.scatter_add(0, arg.clamp_min(0), grad_peak * valid), None, None


class ScatterMean(Function):
    """Per-node mean of edge messages; nodes without edges give zero."""

    @staticmethod
    def forward(ctx, messages, dst, num_nodes):
        count = torch.bincount(dst, minlength=num_nodes).clamp_min(1).to(messages.dtype)
        ctx.save_for_backward(dst, count)
        total = messages.new_zeros(num_nodes, messages.shape[1]).index_add_(0, dst, messages)
        return total / count.unsqueeze(1)

    @staticmethod
    def backward(ctx, grad_output):
        dst, count = ctx.saved_tensors
        return (grad_output / count.unsqueeze(1))[dst], None, None


class DirichletEnergy(Function):
    """0.5 * sum_e w_e |x_i - x_j|^2 over edges, differentiable in features and edge weights."""

    @staticmethod
    def forward(ctx, x, weight, edge_index):
        _check_edges(edge_index)
        ctx.save_for_backward(x, weight, edge_index)
        diff = x[edge_index[0]] - x[edge_index[1]]
        return 0.5 * (weight * diff.pow(2).sum(1)).sum()

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, edge_index = ctx.saved_tensors
        i, j = edge_index
        diff = x[i] - x[j]
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            flow = grad_output * weight.unsqueeze(1) * diff
            grad_x = torch.zeros_like(x).index_add(0, i, flow).index_add(0, j, -flow)
        if ctx.needs_input_grad[1]:
            grad_weight = 0.5 * grad_output * diff.pow(2).sum(1)
        return grad_x, grad_weight, None


class PersonalizedPageRank(Function):
    """Solve (I - alpha * A) h = (1 - alpha) * x for a row-stochastic adjacency A (n, n).

    APPNP in the infinite-step limit; the backward solves the transposed system
    with the same Function machinery of torch, so it is differentiable again.
    """

    @staticmethod
    def _system(adjacency, alpha):
        eye = torch.eye(adjacency.shape[0], dtype=adjacency.dtype, device=adjacency.device)
        return eye - alpha * adjacency

    @staticmethod
    def forward(ctx, x, adjacency, alpha):
        if not 0 < alpha < 1:
            raise ValueError("alpha must be in (0, 1)")
        h = torch.linalg.solve(PersonalizedPageRank._system(adjacency, alpha), (1 - alpha) * x)
        ctx.save_for_backward(adjacency, h)
        ctx.alpha = alpha
        return h

    @staticmethod
    def backward(ctx, grad_output):
        adjacency, h = ctx.saved_tensors
        lam = torch.linalg.solve(PersonalizedPageRank._system(adjacency, ctx.alpha).mT, grad_output)
        grad_x = (1 - ctx.alpha) * lam if ctx.needs_input_grad[0] else None
        grad_a = ctx.alpha * lam @ h.mT if ctx.needs_input_grad[1] else None
        return grad_x, grad_a, None


def _randn(*shape, seed=0, dtype=torch.float64):
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=gen, dtype=dtype)


EDGES = torch.tensor([[0, 0, 1, 2, 2, 2, 3], [1, 2, 3, 0, 1, 3, 3]])


CASES = [
    dict(name="spmm_coo", target=SpMM,
         inputs=lambda: (EDGES.clone(), _randn(7).requires_grad_(), _randn(4, 3, seed=1).requires_grad_(), 5),
         declares={}, note="int edge list first; both gradients; node 4 has no edges"),
    dict(name="segment_sum", target=SegmentSum,
         inputs=lambda: (_randn(7, 3).requires_grad_(), torch.tensor([0, 2, 2, 5, 7])),
         declares={}, note="sorted row pointers, with an empty segment"),
    dict(name="edge_softmax", target=EdgeSoftmax,
         inputs=lambda: (_randn(7, 2).requires_grad_(), EDGES[0].clone(), 5),
         declares={}, note="saves output; nodes without edges never indexed"),
    dict(name="scatter_max", target=ScatterMax,
         inputs=lambda: (_randn(7, 3).requires_grad_(), EDGES[0].clone(), 5),
         declares={}, note="arg-max marked non-differentiable; ties to the first edge; empty node zero"),
    dict(name="personalized_pagerank", target=PersonalizedPageRank,
         inputs=lambda: (_randn(5, 2).requires_grad_(), torch.softmax(_randn(5, 5, seed=1), -1).requires_grad_(), 0.85),
         declares={}, note="implicit linear solve; saves output h; differentiable backward"),
]

# Verified in the same way, but beyond the hundred.
EXTRA_CASES = [
    dict(name="edge_dot", target=EdgeDot,
         inputs=lambda: (EDGES.clone(), _randn(4, 3).requires_grad_(), _randn(4, 3, seed=1).requires_grad_()),
         declares={}, note="SDDMM"),
    dict(name="scatter_mean", target=ScatterMean,
         inputs=lambda: (_randn(7, 3, dtype=torch.float32).requires_grad_(), EDGES[1].clone(), 4),
         declares={}, note="linear"),
    dict(name="dirichlet_energy", target=DirichletEnergy,
         inputs=lambda: (_randn(4, 3).requires_grad_(), _randn(7, seed=1).abs().requires_grad_(), EDGES.clone()),
         declares={}, note="scalar output; includes a self loop contributing nothing"),
]
