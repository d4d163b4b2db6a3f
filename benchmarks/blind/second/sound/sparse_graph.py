"""Sparse products, segments, graph messages and padding."""
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from support import case, rand, uniform, integers, real_floating, in_range


class PermuteRows(Function):
    """x[perm], with the inverse permutation given so that backward is a gather and no scatter."""

    @staticmethod
    def forward(ctx, x, perm, inverse):
        real_floating("PermuteRows", x)
        if x.dim() == 0 or perm.shape != x.shape[:1] or inverse.shape != perm.shape:
            raise ValueError("PermuteRows: one index per row expected, twice")
        if not torch.equal(perm[inverse], torch.arange(perm.numel(), device=perm.device)):
            raise ValueError("PermuteRows: the second index must be the inverse of the first")
        ctx.save_for_backward(perm, inverse)
        return x[perm]

    @staticmethod
    def backward(ctx, grad_out):
        perm, inverse = ctx.saved_tensors
        return PermuteRows.apply(grad_out, inverse, perm), None, None


class CsrMatmul(Function):
    """Sparse (M, K) times dense (K, N). The CSR arrays of the transpose and the order of its values are given too."""

    @staticmethod
    def rows(crow):
        return torch.repeat_interleave(torch.arange(crow.numel() - 1, device=crow.device), crow.diff())

    @staticmethod
    def forward(ctx, values, dense, crow, col, crow_t, col_t, order_t):
        real_floating("CsrMatmul", values, dense)
        if dense.dim() != 2 or values.dim() != 1 or crow_t.numel() - 1 != dense.shape[0] or order_t.shape != col.shape or values.shape != col.shape:
            raise ValueError("CsrMatmul: sizes do not fit")
        row, row_t = CsrMatmul.rows(crow), CsrMatmul.rows(crow_t)
        if not (torch.equal(row[order_t], col_t) and torch.equal(col[order_t], row_t)):
            raise ValueError("CsrMatmul: the transposed arrays do not belong to the matrix")
        if not torch.equal(order_t.sort().values, torch.arange(order_t.numel(), device=order_t.device)):
            raise ValueError("CsrMatmul: order_t is no permutation")
        ctx.save_for_backward(values, dense, crow, col, crow_t, col_t, order_t)
        out = dense.new_zeros(crow.numel() - 1, dense.shape[1])
        return out.index_add(0, row, values[:, None] * dense[col])

    @staticmethod
    def backward(ctx, grad_out):
        values, dense, crow, col, crow_t, col_t, order_t = ctx.saved_tensors
        gv = gd = None
        if ctx.needs_input_grad[0]:
            gv = (grad_out[CsrMatmul.rows(crow)] * dense[col]).sum(1)
        if ctx.needs_input_grad[1]:
            gd = torch.zeros_like(dense).index_add(0, CsrMatmul.rows(crow_t), values[order_t][:, None] * grad_out[col_t])
        return gv, gd, None, None, None, None, None


class SegmentMax(Function):
    """Maximum over runs of a sorted axis 0 given by pointers; empty runs give zero, ties share evenly."""

    @staticmethod
    def forward(ctx, x, ptr):
        real_floating("SegmentMax", x)
        if x.dim() != 2 or ptr.dim() != 1 or ptr[0] != 0 or ptr[-1] != x.shape[0] or bool((ptr.diff() < 0).any()):
            raise ValueError("SegmentMax: x (N, D) and rising pointers from 0 to N expected")
        seg = torch.repeat_interleave(torch.arange(ptr.numel() - 1, device=x.device), ptr.diff())
        index = seg[:, None].expand_as(x)
        out = x.new_zeros(ptr.numel() - 1, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
        top = x == out[seg]
        share = torch.zeros_like(out).index_add(0, seg, top.to(x.dtype))
        ctx.save_for_backward(top, share, seg)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        top, share, seg = ctx.saved_tensors
        return (grad_out / share.clamp_min(1))[seg] * top, None


class EdgeSoftmax(Function):
    """Softmax of edge scores (E, H) among the edges that end at the same node."""

    @staticmethod
    def forward(scores, target, nodes):
        real_floating("EdgeSoftmax", scores)
        if scores.dim() != 2 or target.shape != scores.shape[:1]:
            raise ValueError("EdgeSoftmax: scores (E, H) and target (E,) expected")
        in_range("EdgeSoftmax", target, nodes)
        index = target[:, None].expand_as(scores)
        top = scores.new_zeros(nodes, scores.shape[1]).scatter_reduce(0, index, scores, "amax", include_self=False)
        e = torch.exp(scores - top[target])
        return e / torch.zeros_like(top).index_add(0, target, e)[target]

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, target, ctx.nodes = inputs
        ctx.save_for_backward(output, target)

    @staticmethod
    def backward(ctx, grad_out):
        out, target = ctx.saved_tensors
        w = out * grad_out
        total = w.new_zeros(ctx.nodes, w.shape[1]).index_add(0, target, w)
        return w - out * total[target], None, None


class MeanNeighbours(Function):
    """Mean of the messages x[src] at every dst; nodes without an edge get zero."""

    @staticmethod
    def forward(ctx, x, src, dst):
        real_floating("MeanNeighbours", x)
        if x.dim() != 2 or src.shape != dst.shape or src.dim() != 1:
            raise ValueError("MeanNeighbours: x (N, D) and two edge lists expected")
        in_range("MeanNeighbours", src, x.shape[0])
        in_range("MeanNeighbours", dst, x.shape[0])
        ctx.save_for_backward(src, dst)
        return torch.zeros_like(x).index_add(0, dst, x[src]) / MeanNeighbours.degree(x, dst)

    @staticmethod
    def degree(x, dst):
        return torch.bincount(dst, minlength=x.shape[0]).clamp_min(1).to(x.dtype)[:, None]

    @staticmethod
    def backward(ctx, grad_out):
        src, dst = ctx.saved_tensors
        g = grad_out / MeanNeighbours.degree(grad_out, dst)
        return torch.zeros_like(g).index_add(0, src, g[dst]), None, None


class SymmetricPropagate(Function):
    """GCN step D^-1/2 A D^-1/2 x for an undirected graph, where backward is the step itself; asymmetry is refused."""

    @staticmethod
    def forward(ctx, x, edges):
        real_floating("SymmetricPropagate", x)
        if x.dim() != 2 or edges.dim() != 2 or edges.shape[0] != 2:
            raise ValueError("SymmetricPropagate: x (N, D) and edges (2, E) expected")
        n = max(x.shape[0], 1)
        if not torch.equal((edges[0] * n + edges[1]).sort().values, (edges[1] * n + edges[0]).sort().values):
            raise ValueError("SymmetricPropagate: every edge must come in both directions")
        in_range("SymmetricPropagate", edges, x.shape[0])
        ctx.save_for_backward(edges)
        degree = torch.bincount(edges[0], minlength=x.shape[0]).to(x.dtype)
        inv = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt()[:, None]
        return inv * torch.zeros_like(x).index_add(0, edges[1], (inv * x)[edges[0]])

    @staticmethod
    def backward(ctx, grad_out):
        edges, = ctx.saved_tensors
        return SymmetricPropagate.apply(grad_out, edges), None


class BagOfEmbeddings(Function):
    """Sum of embedding rows per bag; offsets start the bags, the padding id neither counts nor gets a gradient."""

    @staticmethod
    def forward(ctx, weight, ids, offsets, padding_id=None):
        real_floating("BagOfEmbeddings", weight)
        if weight.dim() != 2 or ids.dim() != 1 or offsets.dim() != 1 or offsets.numel() == 0 or offsets[0] != 0:
            raise ValueError("BagOfEmbeddings: weight (V, D), ids (L,), offsets (B,) from 0 expected")
        in_range("BagOfEmbeddings", ids, weight.shape[0])
        ends = torch.cat((offsets[1:], offsets.new_tensor([ids.numel()])))
        if bool((ends < offsets).any()):
            raise ValueError("BagOfEmbeddings: offsets must rise and stay within the ids")
        bag = torch.repeat_interleave(torch.arange(offsets.numel(), device=ids.device), ends - offsets)
        if padding_id is not None:
            ids, bag = ids[ids != padding_id], bag[ids != padding_id]
        ctx.save_for_backward(ids, bag)
        ctx.vocabulary = weight.shape[0]
        return weight.new_zeros(offsets.numel(), weight.shape[1]).index_add(0, bag, weight[ids])

    @staticmethod
    def backward(ctx, grad_out):
        ids, bag = ctx.saved_tensors
        return grad_out.new_zeros(ctx.vocabulary, grad_out.shape[1]).index_add(0, ids, grad_out[bag]), None, None, None


class PadPacked(Function):
    """Packed rows (sum of lengths, D) to (B, longest, D), filled with a constant behind each length."""

    @staticmethod
    def forward(ctx, packed, lengths, fill=0.0):
        real_floating("PadPacked", packed)
        if packed.dim() != 2 or not lengths or min(lengths) < 0 or sum(lengths) != packed.shape[0]:
            raise ValueError("PadPacked: packed (L, D) and lengths that sum to L expected")
        ctx.lengths = tuple(lengths)
        out = packed.new_full((len(lengths), max(lengths), packed.shape[1]), fill)
        for row, part in zip(out, packed.split(list(lengths))):
            row[:part.shape[0]] = part
        return out

    @staticmethod
    def backward(ctx, grad_out):
        return torch.cat([g[:n] for g, n in zip(grad_out, ctx.lengths)]), None, None


def permutation(n, seed=0):
    p = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return p, p.argsort()


def csr_pair():
    dense = torch.tensor([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]])
    row, col = dense.nonzero(as_tuple=True)
    order = torch.argsort(col * 3 + row)
    crow = torch.cat((torch.zeros(1, dtype=torch.int64), dense.sum(1).cumsum(0)))
    crow_t = torch.cat((torch.zeros(1, dtype=torch.int64), dense.sum(0).cumsum(0)))
    return crow, col, crow_t, row[order], order


def both_ways(*pairs):
    e = torch.tensor(pairs).t()
    return torch.cat((e, e.flip(0)), 1)


CASES = [
    case("permute_rows", PermuteRows, lambda: (rand(5, 3), *permutation(5)), "A permutation and its inverse; anything else is refused.",
         more=[lambda: (rand(1), *permutation(1)), lambda: (rand(0, 2), *permutation(0))], refuses=[lambda: (rand(3), torch.tensor([1, 2, 0]), torch.tensor([1, 2, 0]))]),
    case("csr_matmul", CsrMatmul, lambda: (rand(5), rand(4, 3, seed=1), *csr_pair()), "Sparse product whose index arrays come with those of the transpose."),
    case("segment_max", SegmentMax, lambda: (rand(6, 2), torch.tensor([0, 2, 2, 5, 6])), "Sorted segments with an empty one.", more=[lambda: (rand(0, 2), torch.tensor([0, 0]))],
         refuses=[lambda: (rand(3, 1), torch.tensor([0, 2]))]),
    case("edge_softmax", EdgeSoftmax, lambda: (rand(6, 2), torch.tensor([0, 2, 2, 0, 3, 2]), 5), "Normalises over incoming edges; some nodes have none.", more=[lambda: (rand(0, 2), torch.zeros(0, dtype=torch.int64), 3)]),
    case("mean_neighbours", MeanNeighbours, lambda: (rand(4, 3), torch.tensor([0, 1, 1, 3]), torch.tensor([1, 0, 2, 2])), "Mean aggregation with an isolated node.",
         more=[lambda: (rand(1, 2), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))]),
    case("symmetric_propagate", SymmetricPropagate, lambda: (rand(4, 2), both_ways((0, 1), (1, 2), (3, 3))), "Backward relies on the symmetry of the graph, which forward checks.",
         more=[lambda: (rand(2, 1), torch.zeros(2, 0, dtype=torch.int64))], refuses=[lambda: (rand(2, 2), torch.tensor([[0], [1]]))]),
    case("bag_of_embeddings", BagOfEmbeddings, lambda: (rand(5, 3), torch.tensor([1, 4, 1, 0, 2]), torch.tensor([0, 2, 2]), 0), "Repeated ids, an empty bag and a padding id.",
         more=[lambda: (rand(3, 2), torch.zeros(0, dtype=torch.int64), torch.tensor([0]))]),
    case("pad_packed", PadPacked, lambda: (rand(5, 2), (2, 0, 3), -1.0), "Lengths sum to the packed size; nothing is saved.", more=[lambda: (rand(0, 2), (0,)), lambda: (rand(1, 1), [1])]),
]
