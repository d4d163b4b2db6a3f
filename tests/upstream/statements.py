"""The statements that random programs are made of, and the Functions that they call.

In a statement, `{o}` is the variable that it makes, `{a}` and `{b}` are any made before, `{x}` an
input, `{i}` an input of indices, `{c}` a number, `{d}` a dimension. A statement that raises where
it was drawn is drawn again, so nothing here says which shapes go together.
"""

POINTWISE = """
    {o} = {a}.sin()
    {o} = {a}.tanh() * {b}
    {o} = torch.exp(-{a}.abs())
    {o} = {a} + {c} * {b}
    {o} = {a} - {b} / ({b}.abs() + 1)
    {o} = {a} * {a} * {c}
    {o} = ({a} * {a} + 0.5).sqrt()
    {o} = torch.log1p({a} ** 2)
    {o} = 1 / (1 + {a} ** 2)
    {o} = torch.sigmoid({a}) * {a}
    {o} = F.gelu({a})
    {o} = F.gelu({a}, approximate="tanh") + {b}
    {o} = F.silu({a}) * {b}
    {o} = F.softplus({a}, beta=2)
    {o} = F.elu({a}, alpha={c})
    {o} = F.leaky_relu({a}, 0.1)
    {o} = F.hardtanh({a})
    {o} = torch.atan2({a}, {b}.abs() + 0.5)
    {o} = torch.hypot({a}, {b} + 2)
    {o} = torch.lerp({a}, {b}, 0.3)
    {o} = torch.addcmul({a}, {b}, {b}, value={c})
    {o} = {a}.clamp(-0.5, 0.5)
    {o} = {a}.clamp(min={b})
    {o} = torch.where({a} > {b}, {a}, {c} * {b})
    {o} = torch.where({a}.isfinite(), {a}, 0.0)
    {o} = {a}.abs().pow(1.5)
    {o} = {a} ** 3 - {a}
    {o} = torch.erf({a}) + {a}.shape[0]
    {o} = {a}.expm1().clamp(max=3)
    {o} = {a}.reciprocal().clamp(-2, 2)
"""

REDUCTIONS = """
    {o} = {a}.sum({d}, keepdim=True) + {b}
    {o} = {a} - {a}.mean({d}, keepdim=True)
    {o} = {a}.softmax({d})
    {o} = torch.log_softmax({a}, {d}) * {b}
    {o} = {a}.logsumexp({d}, keepdim=True) * {b}
    {o} = {a}.amax({d}, keepdim=True) - {a}
    {o} = {a}.max({d}).values
    {o} = {a}.std({d}, keepdim=True) + {a}
    {o} = {a} / ({a}.norm(dim={d}, keepdim=True) + 1)
    {o} = {a}.cumsum({d}) * {c}
    {o} = (0.3 * {a} + 1).prod({d}, keepdim=True) * {b}
    {o} = {a} * torch.rsqrt({a}.pow(2).mean(-1, keepdim=True) + 1e-6)
    {o} = F.layer_norm({a}, {a}.shape[-1:])
    {o} = {a}.sort({d}).values
    {o} = {a}.topk(2, {d}).values
    {o} = {a}.sum() * {b} / {b}.numel()
    {o} = {a} / {a}.shape[{d}]
    {o} = {a}.var() + {b}
    {o} = {a}.flatten().cumprod(0)[:4]
    {o} = {a}.nansum({d})
"""

PRODUCTS = """
    {o} = {a} @ {b}.mT
    {o} = {a} @ {b}
    {o} = ({a} @ {b}) / {a}.shape[-1] ** 0.5
    {o} = F.linear({a}, {b})
    {o} = torch.einsum("...i,...j->...ij", {a}, {b})
    {o} = torch.einsum("ij,kj->ik", {a}, {b})
    {o} = torch.outer({a}.flatten()[:4], {b}.flatten()[:5])
    {o} = F.scaled_dot_product_attention({a}[None], {a}[None], {b}[None])[0]
    {o} = F.avg_pool2d({a}, 2, 1)
    {o} = F.conv2d({a}, {a}[:1, :, :2, :2], padding=1)
    {o} = F.max_pool2d({a}, 2)
    {o} = F.interpolate({a}, scale_factor=2, mode="bilinear")
"""

VIEWS = """
    {o} = {a}.mT
    {o} = {a}.mT.contiguous() * {c}
    {o} = {a}.reshape(-1)[:6] + 1
    {o} = {a}[::2]
    {o} = {a}[:, 1:]
    {o} = {a}[..., ::2] * {c}
    {o} = {a}.flip({d})
    {o} = {a}.roll(1, {d})
    {o} = {a}.unsqueeze({d}).expand(2, *{a}.shape).sum(0)
    {o} = torch.cat([{a}, {b}], {d})
    {o} = torch.stack([{a}, {b}], {d}).mean(0)
    {o} = {a}.chunk(2, {d})[1] * {c}
    {o} = torch.cat([p * k for k, p in enumerate({a}.split(2, {d}))], {d})
    {o} = {a}.tril() + {a}.triu(1) * {c}
    {o} = {a}.diagonal().unsqueeze(-1) * {b}
    {o} = {a}.narrow({d}, 1, 2)
    {o} = {a}.permute(*reversed(range({a}.ndim)))
    {o} = F.pad({a}, (1, 2)) + 1
    {o} = {a}.repeat(2, 1)
    {o} = {a}.unfold(-1, 2, 1).sum(-1)
    {o} = {a}.view(-1).view({a}.shape) * {c}
    {o} = {a}[None].squeeze(0)
    {o} = {a}.movedim(0, -1).flatten()[1:9]
    {o} = {a}.expand(3, *{a}.shape)[1]
    {o} = torch.broadcast_tensors({a}, {b})[0] * {c}
"""

CHANGES = """
    {o} = {a}.clone(); {o} += {b}
    {o} = {a}.clone(); {o}[0] = {c}
    {o} = {a}.clone(); {o}[:, 1:] *= 2
    {o} = {a} * 1; {o}[0] = {o}[-1]
    {o} = {a}.exp().clamp(max=3); {o}.mul_({b})
    {o} = {a} + 0; {o}.relu_()
    {o} = {a}.clone(); {o}.masked_fill_({a} > 0.2, {c})
    {o} = {a}.clone(); {o}[{a} > 0.3] = 0.0
    {o} = {a}.clone(); {o}[0].add_({b}[0])
    {o} = {a}.clone(); {o}.mT.mul_({c})
    {o} = torch.zeros_like({a}); {o}[1:] = {a}[1:] * {c}
    {o} = {a}.new_zeros({a}.shape); {o} += {a}; {o}.sub_({b})
    {o} = torch.empty_like({a}); {o}.copy_({b}); {o}[..., 0] += 1
    {o} = {a}.clone(); {o}.clamp_(-0.4, 0.6)
    {o} = {a}.clone(); {o}.flatten()[::2].mul_(2)
    {o} = {a}.clone(); {o}.diagonal().add_(1)
    {o} = {a} * 2; {o}.sigmoid_()
    {o} = {a}.clone(); {o}.swapaxes_(0, 1)
    {o} = {a}.sin(); {o}.unsqueeze_(0)
"""

INDEXING = """
    {o} = {a}[{i}]
    {o} = {a}[{i}] * {b}
    {o} = {a}[:, [0, 1]]
    {o} = {a}.index_select(0, {i})
    {o} = {a}[{i}, {i}]
    {o} = F.embedding({i}, {a})
    {o} = {a}.gather(0, {i}.unsqueeze(-1).expand(-1, {a}.shape[1]))
    {o} = {a}.take({i})
    {o} = torch.take_along_dim({a}, {a}.argsort(0), 0)
    {o} = {a}[{a}.argmax(0)]
    {o} = {a}[-1] + {a}[0]
    {o} = {a}.masked_fill({a}.detach() < 0, {c})
    {o} = torch.zeros_like({a}).index_add(0, {i}, {b}[: len({i})])
    {o} = torch.zeros_like({a}).scatter_add(0, {i}.unsqueeze(-1).expand_as({a}[: len({i})]), {b})
    {o} = {a}.scatter(0, {i}[:1].unsqueeze(-1).expand(1, {a}.shape[1]), {b})
    {o} = {a}.index_put(({i},), {b}[: len({i})], accumulate=True)
    {o} = {a}.scatter_reduce(0, {i}.unsqueeze(-1).expand_as({a}[: len({i})]), {b}, "amax")
    {o} = {a}.index_fill(0, {i}[:1], {c})
    {o} = {a}.index_copy(0, {i}[:1], {b}[:1])
    {o} = torch.bucketize({a}, torch.tensor([-1.0, 0.0, 1.0], dtype={a}.dtype)) * {b}
    {o} = F.one_hot({i}, 6).to({a}.dtype) + {c}
    {o} = F.cross_entropy({a}, {i} % {a}.shape[1])
"""

TIES = """
    {o} = {a}.round().amax({d}, keepdim=True) + {a}
    {o} = F.relu({a}).amax({d})
    {o} = torch.maximum({a}, {a}) + {b}
    {o} = torch.maximum({a}.relu(), {b}.relu())
    {o} = {a}.relu().max({d}).values
    {o} = {a}.sign() * {b}
    {o} = ({a} - {a}).abs() + {b}
    {o} = {a}.relu().sort({d}).values
    {o} = {a}.relu().median({d}).values
    {o} = ({a} * 0).clamp(min=0) + {b}
    {o} = {a}.relu().min() + {b}
    {o} = {a}.floor() + {a}
    {o} = {a}.relu().cummax({d}).values
    {o} = {a}.relu().norm(dim={d})
"""

CASTS = """
    {o} = {a}.bfloat16().to({a}.dtype)
    {o} = {a} + ({a}.bfloat16().to({a}.dtype) - {a}).detach()
    {o} = {a}.half().to({a}.dtype) * {b}
    {o} = ({a}.float() * {b}.float()).to({a}.dtype)
    {o} = {a} * ({a} > {b}).to({a}.dtype)
    {o} = {a} + {a}.long()
    {o} = {a}.bfloat16() * {c}; {o} = {o}.to({a}.dtype)
    {o} = {a}.double() * {c}
    {o} = ({a} * 16).round().clamp(-8, 7) / 16 + {a}
"""

COMPLEX = """
    {o} = torch.complex({a}, {b}).abs()
    {o} = torch.view_as_real(torch.complex({a}, {b}) ** 2)[..., 0]
    {o} = torch.fft.rfft({a}).abs()
    {o} = torch.fft.ifft(torch.fft.fft({a}) * 2).real
    {o} = ({a} * 1j).exp().real
    {o} = ({a} / 2j).imag + {b}
    {o} = torch.polar({a}.abs(), {b}).imag
    {o} = (torch.complex({a}, {a}).conj() * (1 + 2j)).real
    {o} = torch.complex({a}, {b}).angle()
"""

DETACHED = """
    {o} = {a}.detach() * {b}
    {o} = {a} * {a}.detach()
    {o} = {a} - {a}.mean().detach()
    {o} = {a} / ({a}.detach().abs().max() + 1)
    {o} = {a}.sin().detach() + {b}
"""

CALLS = """
    {o} = Rounded.apply({a}) + {b}
    {o} = Reversed.apply({a}, {c})
    {o} = Spike.apply({a} - {b})
    {o} = Clipped.apply({a} * {b})
    {o} = Gated.apply({a}, {b})
    {o} = Both.apply({a})[0] * Both.apply({a})[1]
"""

KINDS = {
    "pointwise": POINTWISE,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "views": VIEWS,
    "changes": CHANGES,
    "indexing": INDEXING,
    "ties": TIES,
    "casts": CASTS,
    "complex": COMPLEX,
    "detached": DETACHED,
    "calls": CALLS,
}
STATEMENTS = {
    kind: [line.strip() for line in text.strip().splitlines()] for kind, text in KINDS.items()
}

RETURNS = """
    return {a}
    return {a}, {b}
    return {a}, {b}, {x}.view(-1)
    return {a}, None, {b}
    return {a}, {x}
    return {a}, {a}.detach()
    return {a}, {a}
    return [{a}, {b} * 2]
    return {{"loss": {a}.sum(), "out": {b}}}
    return {{"a": {a}, "more": [{b}, None]}}
    return Pair({a}, {b})
    return Pair({a}, Pair({b}, None))
    return {a}, {a}.argmax(), ({b} > 0)
    return {a}.sum(), {b}.mean()
    return {a}, {x}[0], {b}.shape[0]
    return {a}.mT, {b}.expand(2, *{b}.shape)
"""
RETURNED = [line.strip() for line in RETURNS.strip().splitlines()]

DEFINITIONS = {
    "Pair": """
class Pair(NamedTuple):
    left: object
    right: object
""",
    "Rounded": '''
class Rounded(pb.Function):
    """Rounds; the gradient goes straight through."""

    @staticmethod
    def forward(ctx, x):
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, grad):
        return grad
''',
    "Reversed": '''
class Reversed(torch.autograd.Function):
    """The identity; the gradient is reversed and scaled."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None
''',
    "Spike": '''
class Spike(pb.Function):
    """A step; its gradient is that of a smooth one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (1 + 3 * x.abs()) ** 2
''',
    "Clipped": '''
class Clipped(torch.autograd.Function):
    """The double; the gradient is clipped."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return (grad * 2).clamp(-0.5, 0.5)
''',
    "Gated": '''
class Gated(pb.Function):
    """x times sigmoid(y), with an intermediate saved."""

    @staticmethod
    def forward(ctx, x, y):
        gate = torch.sigmoid(y)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate = ctx.saved_tensors
        return sum_to(grad * gate, x), sum_to(grad * x * gate * (1 - gate), gate)


def sum_to(grad, like):
    """The sum of a gradient over what was broadcast."""
    return grad.sum_to_size(like.shape)
''',
    "Both": '''
class Both(torch.autograd.Function):
    """Sine and cosine; the gradient of the cosine is meant to be left out."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, of_sine, of_cosine):
        (x,) = ctx.saved_tensors
        return of_sine * x.cos()
''',
}
