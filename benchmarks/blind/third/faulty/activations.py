"""Activation functions with hand-written gradients."""
from support import *


class SoftplusFunction(Function):
    """softplus(beta * x) / beta, linear where beta * x exceeds the threshold."""

    @staticmethod
    def forward(ctx, x, beta=1.0, threshold=20.0):
        ctx.save_for_backward(x)
        ctx.beta = beta
        ctx.threshold = threshold
        z = x * beta
        return torch.where(z > threshold, x, torch.log1p(torch.exp(z.clamp(max=threshold))) / beta)

    @staticmethod
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        slope = torch.where(x > ctx.threshold, torch.ones_like(x), torch.sigmoid(x * ctx.beta))
        return grad_output * slope, None, None


def softplus(x, beta=1.0, threshold=20.0):
    return SoftplusFunction.apply(x, beta, threshold)


class SparsemaxFunction(Function):
    """Sparsemax over ``dim``."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        z, _ = torch.sort(x, dim=dim, descending=True)
        n = x.size(dim)
        shape = [1] * x.dim()
        shape[dim] = n
        k = torch.arange(1, n + 1, dtype=x.dtype, device=x.device).view(shape)
        cs = z.cumsum(dim)
        support = (1 + k * z > cs).sum(dim=dim, keepdim=True)
        tau = (cs.gather(dim, support - 1) - 1) / support.to(x.dtype)
        out = (x - tau).clamp(min=0)
        ctx.dim = dim
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        out, = ctx.saved_tensors
        nonzero = (out > 0).to(grad_output.dtype)
        mean = (grad_output * nonzero).sum(-1, keepdim=True) / nonzero.sum(-1, keepdim=True).clamp(min=1)
        return nonzero * (grad_output - mean), None


def sparsemax(x, dim=-1):
    return SparsemaxFunction.apply(x, dim)


class MaxFeatureMap(Function):
    """Max-Feature-Map of Light CNN: elementwise maximum of the two channel halves."""

    @staticmethod
    def forward(ctx, x):
        a, b = x.chunk(2, dim=1)
        ctx.save_for_backward(a >= b, b >= a)
        return torch.maximum(a, b)

    @staticmethod
    def backward(ctx, grad_output):
        first, second = ctx.saved_tensors
        return torch.cat([grad_output * first, grad_output * second], dim=1)


class SnakeFunction(Function):
    """Snake with a trainable frequency per channel: x + sin(a x)^2 / a, x of shape (N, C, L)."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x, alpha)
        a = alpha.view(1, -1, 1)
        return x + torch.sin(a * x).pow(2) / a

    @staticmethod
    def backward(ctx, grad_output):
        x, alpha = ctx.saved_tensors
        a = alpha.view(1, -1, 1)
        s2 = torch.sin(2 * a * x)
        gx = ga = None
        if ctx.needs_input_grad[0]:
            gx = grad_output * (1 + s2)
        if ctx.needs_input_grad[1]:
            ga = (grad_output * x * s2 / a).sum((0, 2))
        return gx, ga


class EluInplace(Function):
    """ELU that overwrites its argument, for memory-bound decoders."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        neg = x <= 0
        x[neg] = alpha * torch.expm1(x[neg])
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        y, = ctx.saved_tensors
        return grad_output * torch.where(y > 0, torch.ones_like(y), y + ctx.alpha), None


def elu_(x, alpha=1.0):
    """In-place ELU; afterwards ``x`` holds the activation."""
    return EluInplace.apply(x, alpha)


def _elu_dirty():
    def result(which):
        leaf = tensor([-1.0, -0.5, 0.5])
        u = leaf * 1
        y = elu_(u)
        (y if which else u).sum().backward()
        return leaf.grad
    return not close(result(True), result(False))


class FastGelu(Function):
    """tanh approximation of GELU; the tanh is kept for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        t = torch.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3))
        ctx.save_for_backward(x, t)
        return 0.5 * x * (1 + t)

    @staticmethod
    def backward(ctx, grad_output):
        x, t = ctx.saved_tensors
        inner = 0.7978845608028654 * (1 + 3 * 0.044715 * x * x)
        return grad_output * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


class Sinc(Function):
    """Normalised sinc, sin(pi x) / (pi x), equal to one at the origin."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        z = math.pi * x
        return torch.where(x == 0, torch.ones_like(x), torch.sin(z) / torch.where(x == 0, torch.ones_like(x), z))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, = ctx.saved_tensors
        z = math.pi * x
        return grad_output * math.pi * (z * torch.cos(z) - torch.sin(z)) / (z * z)


@torch.library.custom_op("faultyops::squared_relu", mutates_args=())
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """relu(x)^2 of Primer."""
    return x.clamp(min=0).square()


@squared_relu.register_fake
def _(x):
    return torch.empty_like(x)


def _squared_relu_setup(ctx, inputs, output):
    ctx.save_for_backward(output)


def _squared_relu_backward(ctx, grad):
    y, = ctx.saved_tensors
    return grad * 2 * y.sqrt()


squared_relu.register_autograd(_squared_relu_backward, setup_context=_squared_relu_setup)


def _squared_relu_second():
    x = tensor([-1.0, 0.5])
    g, = torch.autograd.grad(squared_relu(x).sum(), x, create_graph=True)
    h, = torch.autograd.grad(g.sum(), x)
    return bool(torch.isnan(h[0]))


CASES = [
    {"name": "softplus_threshold_unscaled", "target": softplus, "inputs": lambda: (randn(3, 4),),
     "fault": "backward compares x, not beta * x, with the threshold, so the slope is wrong for beta != 1.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: wrong_first(softplus, (tensor([2.0, 0.3]), 2.0, 3.0))},
    {"name": "sparsemax_backward_dim", "target": sparsemax, "inputs": lambda: (randn(3, 5),),
     "fault": "backward always reduces over the last dimension whatever dim was given.",
     "kind": "wrong", "visible": False, "evidence": lambda: wrong_first(sparsemax, (randn(4, 3), 0))},
    {"name": "max_feature_map_ties", "target": MaxFeatureMap, "inputs": lambda: (randn(2, 4, 3),),
     "fault": "On ties both halves receive the full gradient, doubling the directional derivative.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: analytic(MaxFeatureMap, (tensor([[1.0, 1.0]]),), [torch.ones(1, 1, dtype=f64)])[0][0].sum().item() == 2.0},
    {"name": "snake_alpha_missing_term", "target": SnakeFunction,
     "inputs": lambda: (randn(2, 3, 4), rand(3, seed=1, lo=0.5, hi=2.0)),
     "fault": "The gradient of alpha lacks the -sin(ax)^2/a^2 term.",
     "kind": "wrong", "visible": True,
     "evidence": lambda: wrong_first(SnakeFunction, (randn(2, 3, 4), rand(3, seed=1, lo=0.5, hi=2.0)))},
    {"name": "elu_inplace_not_dirty", "target": elu_, "inputs": lambda: (randn(3, 4),),
     "fault": "The input is modified in place without mark_dirty, so later uses of it get the old gradient.",
     "kind": "wrong", "visible": False, "evidence": _elu_dirty},
    {"name": "fast_gelu_second_derivative", "target": FastGelu, "inputs": lambda: (randn(3, 4),),
     "fault": "A saved intermediate cuts the graph, so the double backward is silently wrong.",
     "kind": "fragile", "visible": False, "evidence": lambda: wrong_second(FastGelu, (randn(4),))},
    {"name": "sinc_nan_at_zero", "target": Sinc, "inputs": lambda: (randn(6),),
     "fault": "The gradient is NaN at x = 0 although forward treats that point.",
     "kind": "wrong", "visible": False,
     "evidence": lambda: bool(torch.isnan(analytic(Sinc, (tensor([0.0, 1.5]),))[0][0][0]))},
    {"name": "squared_relu_second_nan", "target": squared_relu, "inputs": lambda: (randn(3, 4),),
     "fault": "The gradient goes through sqrt of the output, so the double backward is NaN for every negative input.",
     "kind": "fragile", "visible": False, "evidence": _squared_relu_second},
]
