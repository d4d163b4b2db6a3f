"""`LayerNorm`: Layer normalisation.

Written by pullback from `layer_norm`, and yours: it needs torch and triton, nothing
else.
`LayerNorm.apply(x, weight, bias)` runs it. Run this file to test it, with --bench to
measure it. Without a GPU, set TRITON_INTERPRET=1.
It has not been run where it was written: run its test first.
"""

import functools
import sys

import torch
import triton
import triton.language as tl

INTERPRETED = triton.knobs.runtime.interpret
TUNED = {"cache_results": not INTERPRETED}  # kept on disk, by device, dtypes and width


def configs(*options):
    """What the autotuner tries, once per width of a row; Triton's interpreter measures nothing."""
    found = [triton.Config(dict(meta), num_warps=warps) for meta, warps in options]
    return found[:1] if INTERPRETED else found


def direct(kernel, grid):
    """A kernel on a grid, as it is."""
    return kernel[grid]


def traced(kernel, grid):
    """A kernel on a grid, in a form that tracing and export see through."""
    return kernel[grid] if INTERPRETED else torch.library.wrap_triton(kernel)[grid]


@functools.cache
def programs_of(device):
    """How many programs that go over several rows run on a device at once."""
    if device.type != "cuda":
        return 4
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


@triton.autotune(configs(({}, 8), ({}, 4), ({}, 16)), key=["n_cols"], **TUNED)
@triton.jit
def layer_norm_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, x_row, x_col, weight_col,
    bias_col, n_cols, BLOCK: tl.constexpr,
):
    # Each program computes one row, which it holds whole.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    inside = col < n_cols
    weight = tl.load(weight_ptr + col * weight_col, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + col * bias_col, mask=inside, other=0.0)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    mean = tl.sum(x, 0) / n_cols
    diff = x - mean
    total = tl.sum(tl.where(inside, diff * diff, 0.0), 0) / n_cols + 1e-05
    rstd = tl.rsqrt(total)
    xhat = diff * rstd
    out = xhat * weight + bias
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.autotune(configs(({"STAGES": 3}, 8), ({"STAGES": 3}, 4), ({"STAGES": 1}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def layer_norm_backward_kernel(
    grad_out_ptr, x_ptr, mean_ptr, rstd_ptr, weight_ptr, grad_x_ptr, grad_weight_parts_ptr,
    grad_bias_parts_ptr, grad_out_row, grad_out_col, x_row, x_col, weight_col, n_cols, n_rows,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):
    # Each program goes over several rows, one at a time, and keeps its sums in registers.
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    inside = col < n_cols
    weight = tl.load(weight_ptr + col * weight_col, mask=inside, other=0.0)
    grad_weight_sum = tl.zeros((BLOCK,), tl.float32)
    grad_bias_sum = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, n_rows, tl.num_programs(0), num_stages=STAGES):
        grad_out = tl.load(
            grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
        )
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
        mean = tl.load(mean_ptr + row)
        rstd = tl.load(rstd_ptr + row)
        xhat = (x - mean) * rstd
        grad_weight_sum += grad_out * xhat
        grad_bias_sum += grad_out
        grad_xhat = grad_out * weight
        slope = tl.sum(grad_xhat * xhat, 0) / n_cols
        grad_x = rstd * (grad_xhat - tl.sum(grad_xhat, 0) / n_cols - xhat * slope)
        tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)
    tl.store(grad_weight_parts_ptr + program * n_cols + col, grad_weight_sum, mask=inside)
    tl.store(grad_bias_parts_ptr + program * n_cols + col, grad_bias_sum, mask=inside)


@triton.jit
def layer_norm_backward_sums(
    grad_weight_parts_ptr, grad_bias_parts_ptr, grad_weight_ptr, grad_bias_ptr, n_parts,
    n_cols, COLS: tl.constexpr, PARTS: tl.constexpr,
):
    # Adds up what the programs of `layer_norm_backward_kernel` wrote, COLS columns per
    # program, always in the same order.
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = col < n_cols
    grad_weight = tl.zeros((PARTS, COLS), tl.float32)
    grad_bias = tl.zeros((PARTS, COLS), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        grad_weight += tl.load(
            grad_weight_parts_ptr + part[:, None] * n_cols + col[None, :],
            mask=(part < n_parts)[:, None] & inside[None, :],
            other=0.0,
        )
        grad_bias += tl.load(
            grad_bias_parts_ptr + part[:, None] * n_cols + col[None, :],
            mask=(part < n_parts)[:, None] & inside[None, :],
            other=0.0,
        )
    grad_weight = tl.sum(grad_weight, 0)
    grad_bias = tl.sum(grad_bias, 0)
    tl.store(grad_weight_ptr + col, grad_weight, mask=inside)
    tl.store(grad_bias_ptr + col, grad_bias, mask=inside)


def layer_norm_forward(x, weight, bias, launch=direct):
    """The output, and what backward reads: mean, rstd."""
    if x.stride(0) != x.shape[1] * x.stride(1):
        x = x.contiguous()
    out = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2]), dtype=torch.float32, device=x.device
    )
    mean = torch.empty((x.shape[0], x.shape[1], 1), dtype=torch.float32, device=x.device)
    rstd = torch.empty((x.shape[0], x.shape[1], 1), dtype=torch.float32, device=x.device)
    grid = (x.shape[0] * x.shape[1],)
    launch(layer_norm_forward_kernel, grid)(
        x,
        weight,
        bias,
        out,
        mean,
        rstd,
        x.stride(1),
        x.stride(2),
        weight.stride(0),
        bias.stride(0),
        x.shape[2],
        BLOCK=triton.next_power_of_2(x.shape[2]),
    )
    return out, mean, rstd


def layer_norm_backward(x, weight, mean, rstd, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    if x.stride(0) != x.shape[1] * x.stride(1):
        x = x.contiguous()
    if grad_out.stride(0) != grad_out.shape[1] * grad_out.stride(1):
        grad_out = grad_out.contiguous()
    grad_x = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2]), dtype=torch.float32, device=x.device
    )
    grad_weight = torch.empty((x.shape[2],), dtype=torch.float32, device=x.device)
    grad_bias = torch.empty((x.shape[2],), dtype=torch.float32, device=x.device)
    programs = (min(x.shape[0] * x.shape[1], programs_of(x.device)),)
    grad_weight_parts = torch.empty(
        (programs[0], x.shape[2]), dtype=torch.float32, device=x.device
    )
    grad_bias_parts = torch.empty(
        (programs[0], x.shape[2]), dtype=torch.float32, device=x.device
    )
    launch(layer_norm_backward_kernel, programs)(
        grad_out,
        x,
        mean,
        rstd,
        weight,
        grad_x,
        grad_weight_parts,
        grad_bias_parts,
        grad_out.stride(1),
        grad_out.stride(2),
        x.stride(1),
        x.stride(2),
        weight.stride(0),
        x.shape[2],
        x.shape[0] * x.shape[1],
        BLOCK=triton.next_power_of_2(x.shape[2]),
    )
    n_parts = grad_weight_parts.shape[0]
    grid = (triton.cdiv(x.shape[2], 16),)
    launch(layer_norm_backward_sums, grid)(
        grad_weight_parts,
        grad_bias_parts,
        grad_weight,
        grad_bias,
        n_parts,
        x.shape[2],
        COLS=16,
        PARTS=256,
        num_warps=4,
    )
    return grad_x, grad_weight, grad_bias


class LayerNorm(torch.autograd.Function):
    """`layer_norm` in Triton; `mean`, `rstd` kept for backward."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1], x.shape[2]))
        require(weight, "weight", torch.float32, (x.shape[2],))
        require(bias, "bias", torch.float32, (x.shape[2],))
        if x.shape[2] < 1:
            raise ValueError(
                "`LayerNorm`: x.shape[2] must be at least 1, "
                f"got {x.shape[2]}"
            )
        out, mean, rstd = layer_norm_forward(x, weight, bias)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, weight, mean, rstd = ctx.saved_tensors
        grad_x, grad_weight, grad_bias = layer_norm_backward(
            x, weight, mean, rstd, grad_out
        )
        return grad_x, grad_weight, grad_bias


@torch.library.triton_op("layer_norm::forward", mutates_args=())
def forward_op(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`layer_norm_forward` as an op."""
    return layer_norm_forward(x, weight, bias, traced)


@torch.library.triton_op("layer_norm::backward", mutates_args=())
def backward_op(
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`layer_norm_backward` as an op."""
    return layer_norm_backward(x, weight, mean, rstd, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python layer_norm.py`, benchmark: `python layer_norm.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -3.63, 3.44, 2, 3, 1056).to(dtype=torch.float32).requires_grad_()
    weight = spread(1, -3.1, 3.54, 1056).to(dtype=torch.float32).requires_grad_()
    bias = spread(2, -3.1, 3.54, 1056).to(dtype=torch.float32).requires_grad_()
    return x, weight, bias


RECORDED = {
    "output 0": [-1829.95, -790.624, 874.246, 3623.68, -2293.54, -158.738, 1470.57, 1954.02],
    "the gradient of `x`": [-13.1157, -0.790147, 13.6629, -11.3088, 5.74827, 19.0716, -24.6808, 7.02446],
    "the gradient of `weight`": [-48.5758, 59.1504, -58.007, 6.93107, 6.43449, -37.0148, 63.56, -42.4139],
    "the gradient of `bias`": [792.288, 783.732, 772.296, 787.978, 813.779, 802.698, 791.736, 769.223],
}
"""What `layer_norm` gave for these inputs when this was written: weighted sums."""


def few(y):
    """A tensor in few numbers: weighted sums of it."""
    flat = y.detach().double().flatten()
    weights = 1 + torch.arange(flat.numel(), device=y.device) % 7
    padded = torch.nn.functional.pad(flat * weights, (0, -flat.numel() % 8))
    return padded.reshape(8, -1).sum(1)


def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    expected = torch.tensor(RECORDED[what], dtype=torch.float64, device=got.device)
    allowed = 0.0001 * few(got.abs()) + 1e-6
    if not bool(((few(got) - expected).abs() <= allowed).all()):
        raise AssertionError(f"{what} is not as recorded: {few(got).tolist()}")


def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.arange(y.numel(), dtype=torch.float64, device=y.device)
    return ((0.25 * i + 0.7548776662 * row) % 1 - 0.25).reshape(y.shape).to(y.dtype)


def run(given, cotangents=None):
    """Outputs and gradients, by what they are."""
    given = [x.detach().requires_grad_(x.requires_grad) for x in given]
    outputs = LayerNorm.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('x', 'weight', 'bias'), given) if x.requires_grad}
    live = [y for y in outputs if y.requires_grad]
    if cotangents is None:
        cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    pulled = torch.autograd.grad(live, list(wanted.values()), cotangents)
    return {**found, **{f"the gradient of `{n}`": g for n, g in zip(wanted, pulled)}}


def self_test(device):
    """Raise unless outputs and gradients are as recorded, and the same twice over."""
    given = [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs()]
    for (what, got), again in zip(run(given).items(), run(given).values()):
        same(got, what)
        same_twice = torch.equal(got, again) or bool(got.isnan().any())
        assert same_twice, f"{what} differs from run to run"


def bench(device):
    """Time of forward and backward, and how that compares with moving the bytes once."""
    given = [x.detach().to(device) for x in inputs()]
    times = max(1, 2**26 // max(x.numel() for x in given))
    for place, (x, like) in enumerate(zip(given, inputs())):
        longer = x.repeat(*(times if d == GROWS[place] else 1 for d in range(x.dim())))
        given[place] = longer.requires_grad_(like.requires_grad)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y) or y, lambda y: y):
        found = run(given)
    live = [y for y in found.values() if y.requires_grad]
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    moved = sum(x.nbytes for x in (*given, *found.values(), *saved, *cotangents))
    del saved, found, live
    taken = triton.testing.do_bench(lambda: run(given, cotangents), return_mode="median")
    block = torch.empty(2**29, dtype=torch.uint8, device=device)
    copied = triton.testing.do_bench(lambda: block.clone(), return_mode="median")
    speed = 2 * block.numel() / copied
    times = taken * speed / moved
    print(f"LayerNorm: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, None, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("LayerNorm needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("LayerNorm: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
