"""`GroupNorm`: Group normalisation with four groups.

Written by pullback from `group_norm`, and yours: it needs torch and triton, nothing
else.
`GroupNorm.apply(x, weight, bias)` runs it. Run this file to test it, with --bench to
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


def row_tile(n_cols):
    """How many whole rows a program takes at once, and of which width."""
    cols = triton.next_power_of_2(max(n_cols, 1))
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols_1", "n_cols"], **TUNED)
@triton.jit
def group_norm_forward_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, x_stride_0, x_stride_1,
    x_stride_2, x_stride_3, weight_stride_0, weight_stride_1, bias_stride_0, bias_stride_1,
    n_rows_1, n_cols_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    col_0 = (col // n_cols_1).to(tl.int64)
    col_1 = (col % n_cols_1).to(tl.int64)
    row_0 = row // n_rows_1
    row_1 = row % n_rows_1
    x = tl.load(
        x_ptr + row_0 * x_stride_0 + row_1 * x_stride_1 + col_0 * x_stride_2 + col_1 * x_stride_3,
        mask=inside,
        other=0.0,
    )
    mean = tl.sum(x, 1, keep_dims=True) / n_cols
    diff = x - mean
    mean_1 = tl.sum(tl.where(inside, diff * diff, 0.0), 1, keep_dims=True) / n_cols
    rstd = tl.rsqrt(mean_1 + 1e-05)
    weight = tl.load(
        weight_ptr + row_1 * weight_stride_0 + col_0 * weight_stride_1, mask=inside, other=0.0
    )
    bias = tl.load(
        bias_ptr + row_1 * bias_stride_0 + col_0 * bias_stride_1, mask=inside, other=0.0
    )
    out = diff * rstd * weight + bias
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)
    tl.store(mean_ptr + row, mean, mask=in_rows)
    tl.store(rstd_ptr + row, rstd, mask=in_rows)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols_1", "n_cols"], **TUNED)
@triton.jit
def group_norm_backward_kernel(
    rstd_ptr, grad_out_ptr, weight_ptr, x_ptr, mean_ptr, grad_x_ptr, grad_out_stride_0,
    grad_out_stride_1, grad_out_stride_2, grad_out_stride_3, weight_stride_0, weight_stride_1,
    x_stride_0, x_stride_1, x_stride_2, x_stride_3, n_rows_1, n_cols_1, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    col_0 = (col // n_cols_1).to(tl.int64)
    col_1 = (col % n_cols_1).to(tl.int64)
    row_0 = row // n_rows_1
    row_1 = row % n_rows_1
    rstd = tl.load(rstd_ptr + row, mask=in_rows, other=0.0)
    grad_out = tl.load(
        grad_out_ptr + row_0 * grad_out_stride_0 + row_1 * grad_out_stride_1 + col_0 * grad_out_stride_2 + col_1 * grad_out_stride_3,
        mask=inside,
        other=0.0,
    )
    weight = tl.load(
        weight_ptr + row_1 * weight_stride_0 + col_0 * weight_stride_1, mask=inside, other=0.0
    )
    g_scaled_1 = grad_out * weight
    g_diff = g_scaled_1 - tl.sum(g_scaled_1, 1, keep_dims=True) / n_cols
    x = tl.load(
        x_ptr + row_0 * x_stride_0 + row_1 * x_stride_1 + col_0 * x_stride_2 + col_1 * x_stride_3,
        mask=inside,
        other=0.0,
    )
    mean = tl.load(mean_ptr + row, mask=in_rows, other=0.0)
    xhat = (x - mean) * rstd
    slope = tl.sum(g_scaled_1 * xhat, 1, keep_dims=True) / n_cols
    grad_x = rstd * (g_diff - xhat * slope)
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols_1", "n_cols"], **TUNED)
@triton.jit
def group_norm_backward_kernel_2(
    grad_out_ptr, x_ptr, mean_ptr, rstd_ptr, grad_weight_ptr, grad_bias_ptr,
    grad_out_stride_0, grad_out_stride_1, grad_out_stride_2, grad_out_stride_3, x_stride_0,
    x_stride_1, x_stride_2, x_stride_3, mean_stride_0, mean_stride_1, rstd_stride_0,
    rstd_stride_1, n_rows_1, n_cols_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    col_0 = (col // n_cols_1).to(tl.int64)
    col_1 = (col % n_cols_1).to(tl.int64)
    row_0 = row // n_rows_1
    row_1 = row % n_rows_1
    grad_out = tl.load(
        grad_out_ptr + col_0 * grad_out_stride_0 + row_0 * grad_out_stride_1 + row_1 * grad_out_stride_2 + col_1 * grad_out_stride_3,
        mask=inside,
        other=0.0,
    )
    x = tl.load(
        x_ptr + col_0 * x_stride_0 + row_0 * x_stride_1 + row_1 * x_stride_2 + col_1 * x_stride_3,
        mask=inside,
        other=0.0,
    )
    mean = tl.load(
        mean_ptr + col_0 * mean_stride_0 + row_0 * mean_stride_1, mask=inside, other=0.0
    )
    rstd = tl.load(
        rstd_ptr + col_0 * rstd_stride_0 + row_0 * rstd_stride_1, mask=inside, other=0.0
    )
    xhat = (x - mean) * rstd
    grad_weight = tl.sum(grad_out * xhat, 1, keep_dims=True)
    tl.store(grad_weight_ptr + row, grad_weight, mask=in_rows)
    grad_bias = tl.sum(grad_out, 1, keep_dims=True)
    tl.store(grad_bias_ptr + row, grad_bias, mask=in_rows)


def group_norm_forward(x, weight, bias, launch=direct):
    """The output, and what backward reads: mean, rstd."""
    if x.stride(2) != x.shape[3] * x.stride(3):
        x = x.contiguous()
    out = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2], x.shape[3]),
        dtype=torch.float32,
        device=x.device,
    )
    mean = torch.empty((x.shape[0], 4, 1), dtype=torch.float32, device=x.device)
    rstd = torch.empty((x.shape[0], 4, 1), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile((x.shape[1] // 4) * x.shape[2] * x.shape[3])
    grid = (triton.cdiv(x.shape[0] * 4, ROWS),)
    launch(group_norm_forward_kernel, grid)(
        x,
        weight,
        bias,
        out,
        mean,
        rstd,
        x.stride(0),
        x.stride(1) * x.shape[1] // 4,
        x.stride(1),
        x.stride(3),
        weight.stride(0) * x.shape[1] // 4,
        weight.stride(0),
        bias.stride(0) * x.shape[1] // 4,
        bias.stride(0),
        4,
        x.shape[2] * x.shape[3],
        (x.shape[1] // 4) * x.shape[2] * x.shape[3],
        x.shape[0] * 4,
        ROWS=ROWS,
        COLS=COLS,
    )
    return out, mean, rstd


def group_norm_backward(x, weight, mean, rstd, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    if x.stride(2) != x.shape[3] * x.stride(3):
        x = x.contiguous()
    if grad_out.stride(2) != grad_out.shape[3] * grad_out.stride(3):
        grad_out = grad_out.contiguous()
    grad_x = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2], x.shape[3]),
        dtype=torch.float32,
        device=x.device,
    )
    grad_weight = torch.empty((x.shape[1],), dtype=torch.float32, device=x.device)
    grad_bias = torch.empty((x.shape[1],), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile((x.shape[1] // 4) * x.shape[2] * x.shape[3])
    grid = (triton.cdiv(x.shape[0] * 4, ROWS),)
    launch(group_norm_backward_kernel, grid)(
        rstd,
        grad_out,
        weight,
        x,
        mean,
        grad_x,
        grad_out.stride(0),
        grad_out.stride(1) * x.shape[1] // 4,
        grad_out.stride(1),
        grad_out.stride(3),
        weight.stride(0) * x.shape[1] // 4,
        weight.stride(0),
        x.stride(0),
        x.stride(1) * x.shape[1] // 4,
        x.stride(1),
        x.stride(3),
        4,
        x.shape[2] * x.shape[3],
        (x.shape[1] // 4) * x.shape[2] * x.shape[3],
        x.shape[0] * 4,
        ROWS=ROWS,
        COLS=COLS,
    )
    ROWS, COLS = row_tile(x.shape[0] * x.shape[2] * x.shape[3])
    grid = (triton.cdiv(4 * (x.shape[1] // 4), ROWS),)
    launch(group_norm_backward_kernel_2, grid)(
        grad_out,
        x,
        mean,
        rstd,
        grad_weight,
        grad_bias,
        grad_out.stride(0),
        grad_out.stride(1) * x.shape[1] // 4,
        grad_out.stride(1),
        grad_out.stride(3),
        x.stride(0),
        x.stride(1) * x.shape[1] // 4,
        x.stride(1),
        x.stride(3),
        mean.stride(0),
        mean.stride(1),
        rstd.stride(0),
        rstd.stride(1),
        x.shape[1] // 4,
        x.shape[2] * x.shape[3],
        x.shape[0] * x.shape[2] * x.shape[3],
        4 * (x.shape[1] // 4),
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x, grad_weight, grad_bias


class GroupNorm(torch.autograd.Function):
    """`group_norm` in Triton; `mean`, `rstd` kept for backward."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1], x.shape[2], x.shape[3]))
        require(weight, "weight", torch.float32, (x.shape[1],))
        require(bias, "bias", torch.float32, (x.shape[1],))
        if not (x.shape[1] % 4 == 0):
            raise ValueError(
                "`GroupNorm`: x.shape[1] % 4 == 0 must hold, "
                f"got x.shape[1] = {x.shape[1]}"
            )
        out, mean, rstd = group_norm_forward(x, weight, bias)
        ctx.save_for_backward(x, weight, mean, rstd)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, weight, mean, rstd = ctx.saved_tensors
        grad_x, grad_weight, grad_bias = group_norm_backward(
            x, weight, mean, rstd, grad_out
        )
        return grad_x, grad_weight, grad_bias


@torch.library.triton_op("group_norm::forward", mutates_args=())
def forward_op(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`group_norm_forward` as an op."""
    return group_norm_forward(x, weight, bias, traced)


@torch.library.triton_op("group_norm::backward", mutates_args=())
def backward_op(
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`group_norm_backward` as an op."""
    return group_norm_backward(x, weight, mean, rstd, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python group_norm.py`, benchmark: `python group_norm.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.57, 2.55, 2, 8, 3, 4).to(dtype=torch.float32).requires_grad_()
    weight = spread(1, -1.27, 0.503, 8).to(dtype=torch.float32).requires_grad_()
    bias = spread(2, -1.27, 0.503, 8).to(dtype=torch.float32).requires_grad_()
    return x, weight, bias


RECORDED = {
    "output 0": [-46.4646, -82.021, -48.4524, 11.4781, -42.4514, -75.5302, -63.2865, -16.8637],
    "the gradient of `x`": [0.708205, -1.89887, 0.400291, 0.627454, 0.455086, -1.15308, 0.207546, -1.79871],
    "the gradient of `weight`": [-0.707827, 2.079, 1.78519, 10.3185, 7.91286, 7.37766, -7.21425, -2.84605],
    "the gradient of `bias`": [5.26292, 9.33538, 18.2174, 29.9089, 29.41, 25.7206, 39.8407, 7.0963],
}
"""What `group_norm` gave for these inputs when this was written: weighted sums."""


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
    outputs = GroupNorm.apply(*given)
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
    print(f"GroupNorm: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, None, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("GroupNorm needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("GroupNorm: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
