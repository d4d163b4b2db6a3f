"""Memory-saving, invertible and checkpointing functions."""
from support import *


def _amp_state():
    return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


@contextlib.contextmanager
def _replay(rng=None, amp=None):
    """Grad mode with the random and autocast states that are given."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        if rng is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.set_rng_state(rng)
        if amp is not None:
            stack.enter_context(torch.autocast("cpu", enabled=amp[0], dtype=amp[1]))
        yield


class ReversibleBlock(Function):
    """Additive coupling y1 = x1 + f(x2), y2 = x2 + g(y1); the inputs are rebuilt from the
    outputs in backward.  ``params`` are the tensors f and g depend on."""

    @staticmethod
    def forward(ctx, x1, x2, f, g, *params):
        ctx.f, ctx.g, ctx.amp = f, g, _amp_state()
        y1 = x1 + f(x2, *params)
        y2 = x2 + g(y1, *params)
        ctx.save_for_backward(y1, y2, *params)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx, gy1, gy2):
        y1, y2, *params = ctx.saved_tensors
        params = [p.detach().requires_grad_() for p in params]
        y1 = y1.detach().requires_grad_()
        with _replay(amp=ctx.amp):
            gout = ctx.g(y1, *params)
        gg = torch.autograd.grad(gout, [y1, *params], gy2, allow_unused=True)
        gy1 = gy1 + gg[0]
        x2 = (y2 - gout).detach().requires_grad_()
        with _replay(amp=ctx.amp):
            fout = ctx.f(x2, *params)
        gf = torch.autograd.grad(fout, [x2, *params], gy1, allow_unused=True)
        gp = []
        for a, b in zip(gf[1:], gg[1:]):
            gp.append(b if a is None else a if b is None else a + b)
        return (gy1, gy2 + gf[0], None, None, *gp)


def reversible_dropout_block(x1, x2, wf, wg, p=0.0):
    """Reversible residual block with two linear maps and dropout between them and the sum."""
    def f(x, wf, wg):
        return F.dropout(torch.tanh(x @ wf), p, p > 0)

    def g(x, wf, wg):
        return F.dropout(torch.tanh(x @ wg), p, p > 0)

    return ReversibleBlock.apply(x1, x2, f, g, wf, wg)


def _rev_inputs():
    return randn(3, 2), randn(3, 2, seed=1), randn(2, 2, seed=2), randn(2, 2, seed=3)


class AmpCheckpoint(Function):
    """Runs ``fn`` without recording; runs it again in backward."""

    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn = fn
        ctx.rng = torch.get_rng_state()
        ctx.save_for_backward(*args)
        return fn(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        args = [a.detach().requires_grad_(r) for a, r in zip(ctx.saved_tensors, ctx.needs_input_grad[1:])]
        with _replay(ctx.rng):
            out = ctx.fn(*args)
        wanted = [a for a in args if a.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, grad_output))
        return (None, *[next(grads) if a.requires_grad else None for a in args])


def checkpointed_linear(x, w):
    """tanh(x w) that keeps only its inputs."""
    return AmpCheckpoint.apply(lambda a, b: torch.tanh(a @ b), x, w)


def _checkpoint_autocast():
    seen = []

    def fn(a, b):
        out = a @ b
        seen.append(out.dtype)
        return out.float()

    x, w = randn(3, 4, dtype=torch.float32), randn(4, 2, seed=1, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = AmpCheckpoint.apply(fn, x, w)
    y.sum().backward()
    return seen == [torch.bfloat16, torch.float32]


class ParamCheckpoint(Function):
    """Checkpoint of ``fn(x, *params)`` that also returns the gradients of the parameters."""

    @staticmethod
    def forward(ctx, fn, x, *params):
        ctx.fn, ctx.rng, ctx.amp = fn, torch.get_rng_state(), _amp_state()
        ctx.save_for_backward(x, *params)
        return fn(x, *params)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, *params = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with _replay(ctx.rng, ctx.amp):
            out = ctx.fn(x, *params)
        need = [x] + [p for p in params if p.requires_grad]
        grads = torch.autograd.grad(out, need, grad_output, retain_graph=True)
        leaves = [p for p in need[1:] if p.is_leaf]
        if leaves:
            torch.autograd.backward(out, grad_output, inputs=leaves)
        rest = iter(grads[1:])
        return (None, grads[0], *[next(rest) if p.requires_grad else None for p in params])


def checkpointed_affine(x, w, b):
    return ParamCheckpoint.apply(lambda x, w, b: torch.tanh(x * w + b), x, w, b)


def _param_checkpoint_twice():
    x, w, b = randn(4), randn(4, seed=1), randn(4, seed=2)
    checkpointed_affine(x, w, b).sum().backward()
    want, = torch.autograd.grad(torch.tanh(x * w + b).sum(), w)
    return close(w.grad, 2 * want)


class InplaceABN(Function):
    """Affine transform with |weight| followed by leaky ReLU; x is rebuilt from the output."""

    @staticmethod
    def forward(ctx, x, weight, bias, slope, eps):
        y = F.leaky_relu(x * (weight.abs() + eps) + bias, slope)
        ctx.save_for_backward(y, weight, bias)
        ctx.slope, ctx.eps = slope, eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        y, weight, bias = ctx.saved_tensors
        neg = y < 0
        g = torch.where(neg, grad_output * ctx.slope, grad_output)
        scale = weight.abs() + ctx.eps
        gx = g * scale if ctx.needs_input_grad[0] else None
        gw = gb = None
        if ctx.needs_input_grad[1]:
            x = (torch.where(neg, y / ctx.slope, y) - bias) / scale
            gw = (g * x).sum(0)
        if ctx.needs_input_grad[2]:
            gb = g.sum(0)
        return gx, gw, gb, None, None


def inplace_abn(x, weight, bias, slope=0.1, eps=1e-5):
    return InplaceABN.apply(x, weight, bias, slope, eps)


class ChunkedMLP(Function):
    """Applies x -> relu(x w1) w2 to the rows in chunks, forward and backward."""

    @staticmethod
    @amp_fwd
    def forward(ctx, x, w1, w2, chunk):
        ctx.save_for_backward(x, w1, w2)
        ctx.chunk = chunk
        return torch.cat([torch.relu(c @ w1) @ w2 for c in x.split(chunk)])

    @staticmethod
    @once_differentiable
    @amp_bwd
    def backward(ctx, grad_output):
        x, w1, w2 = ctx.saved_tensors
        need = ctx.needs_input_grad
        gx, g1, g2 = (torch.zeros_like(t) if r else None for t, r in zip((x, w1, w2), need))
        n = ctx.chunk
        for i in range(x.size(0) // n):
            rows = slice(i * n, (i + 1) * n)
            h = torch.relu(x[rows] @ w1)
            gh = (grad_output[rows] @ w2.t()) * (h > 0)
            if need[0]:
                gx[rows] = (gh @ w1.t()).to(gx.dtype)
            if need[1]:
                g1 += x[rows].t() @ gh
            if need[2]:
                g2 += h.t() @ grad_output[rows]
        return gx, g1, g2, None


def chunked_mlp(x, w1, w2, chunk=2):
    return ChunkedMLP.apply(x, w1, w2, chunk)


class LockedDropout:
    """Dropout with one mask for all time steps of (T, B, D)."""

    class Fn(Function):
        @staticmethod
        def forward(ctx, x, owner):
            owner.mask = (torch.rand(1, *x.shape[1:], dtype=x.dtype) >= owner.p).to(x.dtype) / (1 - owner.p)
            ctx.owner = owner
            return x * owner.mask

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output * ctx.owner.mask, None

    def __init__(self, p):
        self.p = p
        self.mask = None

    def __call__(self, x):
        return self.Fn.apply(x, self)


_locked = LockedDropout(0.5)


def locked_dropout(x):
    return _locked(x)


def _locked_shared():
    x = torch.ones(1, 1, 64, dtype=f64, requires_grad=True)
    drop = LockedDropout(0.5)
    torch.manual_seed(0)
    y = drop(x)
    drop(x)
    g, = torch.autograd.grad(y.sum(), x)
    return not torch.equal(g, y.detach())


class LeanSwish(Function):
    """Memory-efficient SiLU: keeps no more than its input for backward."""

    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, s = ctx.saved_tensors
        return grad_output * s * (1 + x * (1 - s))


class CachedExp(Function):
    """exp(x); the result is cached for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        out = torch.exp(x)
        ctx.out = out
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        return grad_output * ctx.out


def _exp_cycle():
    return survives(lambda: CachedExp.apply(torch.ones(3, requires_grad=True)))


class ScaledExp(Function):
    """scale * exp(x), computed in one buffer."""

    @staticmethod
    def forward(ctx, x, scale):
        out = torch.exp(x)
        ctx.scale = scale
        ctx.save_for_backward(out)
        out.mul_(scale)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        out, = ctx.saved_tensors
        return grad_output * out * ctx.scale, None


def scaled_exp(x, scale=1.0):
    return ScaledExp.apply(x, scale)


class RerunCheckpoint(Function):
    """Checkpoint for a function of several tensors."""

    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.rng, ctx.amp = fn, torch.get_rng_state(), _amp_state()
        ctx.save_for_backward(*args)
        return fn(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        grads = []
        for i in range(len(ctx.saved_tensors)):
            args = [a.detach() for a in ctx.saved_tensors]
            if not ctx.needs_input_grad[i + 1]:
                grads.append(None)
                continue
            args[i].requires_grad_()
            with _replay(ctx.rng, ctx.amp):
                out = ctx.fn(*args)
            grads.append(torch.autograd.grad(out, args[i], grad_output)[0])
        return (None, *grads)


def checkpointed_mix(a, b, c):
    return RerunCheckpoint.apply(lambda a, b, c: torch.sin(a) * b + torch.tanh(c), a, b, c)


def _rerun_counts():
    calls = []

    def fn(a, b, c):
        calls.append(1)
        return a * b * c

    RerunCheckpoint.apply(fn, randn(2), randn(2, seed=1), randn(2, seed=2)).sum().backward()
    return len(calls) == 4


CASES = [
    {"name": "reversible_block_dropout", "target": reversible_dropout_block, "inputs": _rev_inputs,
     "fault": "The random state of f and g is not replayed when the block is inverted in backward.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(reversible_dropout_block, _rev_inputs() + (0.5,))},
    {"name": "checkpoint_autocast_state", "target": checkpointed_linear, "inputs": lambda: (randn(3, 4), randn(4, 2, seed=1)),
     "fault": "The recomputation does not restore the autocast state of the forward pass.",
     "kind": "fragile", "visible": False, "evidence": _checkpoint_autocast},
    {"name": "checkpoint_parameters_doubled", "target": checkpointed_affine,
     "inputs": lambda: (randn(4), randn(4, seed=1), randn(4, seed=2)),
     "fault": "Parameter gradients are both accumulated into .grad and returned, so they count twice.",
     "kind": "wrong", "visible": False, "evidence": _param_checkpoint_twice},
    {"name": "inplace_abn_negative_weight", "target": inplace_abn,
     "inputs": lambda: (randn(4, 3), rand(3, seed=1, lo=0.5, hi=1.5), randn(3, seed=2)),
     "fault": "The weight gradient lacks sign(weight), wrong for negative weights.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(inplace_abn, (randn(4, 2), tensor([-0.7, 0.5]), randn(2, seed=2)))},
    {"name": "chunked_mlp_last_chunk", "target": chunked_mlp,
     "inputs": lambda: (randn(4, 3), randn(3, 5, seed=1), randn(5, 2, seed=2)),
     "fault": "A last chunk that is not full is skipped in backward.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(chunked_mlp, (randn(5, 3), randn(3, 5, seed=1), randn(5, 2, seed=2)))},
    {"name": "locked_dropout_shared_mask", "target": locked_dropout, "inputs": lambda: (randn(3, 2, 4),),
     "fault": "The mask is kept on the module, so a second forward before backward replaces it.",
     "kind": "fragile", "visible": False, "evidence": _locked_shared},
    {"name": "lean_swish_two_buffers", "target": LeanSwish, "inputs": lambda: (randn(3, 4),),
     "fault": "The sigmoid is kept next to the input from which it can be recomputed.",
     "kind": "wasteful", "visible": False, "evidence": lambda: saved_elems(LeanSwish, (randn(10),)) == 20},
    {"name": "cached_exp_cycle", "target": CachedExp, "inputs": lambda: (randn(3, 4),),
     "fault": "The output is kept as an attribute of ctx, a reference cycle that leaks until garbage collection.",
     "kind": "wasteful", "visible": False, "evidence": _exp_cycle},
    {"name": "scaled_exp_saved_then_scaled", "target": scaled_exp, "inputs": lambda: (randn(3, 4),),
     "fault": "The buffer is saved and then multiplied in place, so for scale != 1 the scale counts twice.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(scaled_exp, (randn(3), 2.0))},
    {"name": "rerun_checkpoint_per_input", "target": checkpointed_mix,
     "inputs": lambda: (randn(3), randn(3, seed=1), randn(3, seed=2)),
     "fault": "The function is recomputed once for every input where one recomputation gives all gradients.",
     "kind": "wasteful", "visible": False, "evidence": _rerun_counts},
]
