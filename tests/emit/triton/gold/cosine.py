"""`Cosine`: Cosine similarity of rows.

Written by pullback from `cosine`, and yours: it needs torch and triton, nothing else.
`Cosine.apply(x, y)` runs it. Run this file to test it, with --bench to measure it.
Without a GPU, set TRITON_INTERPRET=1.
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


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def cosine_forward_kernel(
    x_ptr, y_ptr, out_ptr, norm_x_ptr, norm_y_ptr, x_row, x_col, y_row, y_col, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    norm_x = tl.sqrt(tl.sum(x * x, 1, keep_dims=True))
    clamped = tl.maximum(norm_x, 1e-08, propagate_nan=tl.PropagateNan.ALL)
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
    norm_y = tl.sqrt(tl.sum(y * y, 1, keep_dims=True))
    clamped_1 = tl.maximum(norm_y, 1e-08, propagate_nan=tl.PropagateNan.ALL)
    out = tl.sum(tl.where(inside, x / clamped * (y / clamped_1), 0.0), 1, keep_dims=True)
    tl.store(out_ptr + row, out, mask=in_rows)
    tl.store(norm_x_ptr + row, norm_x, mask=in_rows)
    tl.store(norm_y_ptr + row, norm_y, mask=in_rows)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def cosine_backward_kernel(
    grad_out_ptr, y_ptr, norm_y_ptr, norm_x_ptr, x_ptr, grad_x_ptr, grad_y_ptr, grad_out_row,
    y_row, y_col, x_row, x_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    grad_out = tl.load(grad_out_ptr + row * grad_out_row, mask=in_rows, other=0.0)
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
    norm_y = tl.load(norm_y_ptr + row, mask=in_rows, other=0.0)
    clamped_1 = tl.maximum(norm_y, 1e-08, propagate_nan=tl.PropagateNan.ALL)
    ratio_1 = y / clamped_1
    g_scaled_1 = grad_out * ratio_1
    norm_x = tl.load(norm_x_ptr + row, mask=in_rows, other=0.0)
    clamped = tl.maximum(norm_x, 1e-08, propagate_nan=tl.PropagateNan.ALL)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    ratio = x / clamped
    g_sum_1 = tl.sum(tl.where(inside, g_scaled_1 * (ratio / clamped), 0.0), 1, keep_dims=True)
    grad_x = g_scaled_1 / clamped - g_sum_1 * tl.where(norm_x == 0, 0, x / norm_x)
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)
    g_scaled = grad_out * ratio
    g_sum = tl.sum(tl.where(inside, g_scaled * (ratio_1 / clamped_1), 0.0), 1, keep_dims=True)
    grad_y = g_scaled / clamped_1 - g_sum * tl.where(norm_y == 0, 0, y / norm_y)
    tl.store(grad_y_ptr + row * n_cols + col, grad_y, mask=inside)


def cosine_forward(x, y, launch=direct):
    """The output, and what backward reads: norm_x, norm_y."""
    out = torch.empty((x.shape[0],), dtype=torch.float32, device=x.device)
    norm_x = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    norm_y = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS),)
    launch(cosine_forward_kernel, grid)(
        x,
        y,
        out,
        norm_x,
        norm_y,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out, norm_x, norm_y


def cosine_backward(x, y, norm_x, norm_y, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    grad_x = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    grad_y = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS),)
    launch(cosine_backward_kernel, grid)(
        grad_out,
        y,
        norm_y,
        norm_x,
        x,
        grad_x,
        grad_y,
        grad_out.stride(0),
        y.stride(0),
        y.stride(1),
        x.stride(0),
        x.stride(1),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x, grad_y


class Cosine(torch.autograd.Function):
    """`cosine` in Triton; `norm_x`, `norm_y` kept for backward."""

    @staticmethod
    def forward(ctx, x, y):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        require(y, "y", torch.float32, (x.shape[0], x.shape[1]))
        out, norm_x, norm_y = cosine_forward(x, y)
        ctx.save_for_backward(x, y, norm_x, norm_y)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, y, norm_x, norm_y = ctx.saved_tensors
        grad_x, grad_y = cosine_backward(x, y, norm_x, norm_y, grad_out)
        return grad_x, grad_y


@torch.library.triton_op("cosine::forward", mutates_args=())
def forward_op(
    x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`cosine_forward` as an op."""
    return cosine_forward(x, y, traced)


@torch.library.triton_op("cosine::backward", mutates_args=())
def backward_op(
    x: torch.Tensor,
    y: torch.Tensor,
    norm_x: torch.Tensor,
    norm_y: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`cosine_backward` as an op."""
    return cosine_backward(x, y, norm_x, norm_y, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python cosine.py`, benchmark: `python cosine.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.42, 2.12, 5, 24).to(dtype=torch.float32).requires_grad_()
    y = spread(1, -2.12, 1.89, 5, 24).to(dtype=torch.float32).requires_grad_()
    return x, y


RECORDED = {
    "output 0": [-0.352833, -0.856683, -1.10884, -1.51302, -2.29246, 0, 0, 0],
    "the gradient of `x`": [0.0510008, -0.065443, -0.126411, -0.069488, -0.122514, -0.00657931, 0.140417, 0.0667348],
    "the gradient of `y`": [0.135222, -0.251886, -0.0992938, -0.156068, -0.220295, -0.00640173, 0.119686, 0.0446003],
}
"""What `cosine` gave for these inputs when this was written: weighted sums."""


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
    outputs = Cosine.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('x', 'y'), given) if x.requires_grad}
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
    print(f"Cosine: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Cosine needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Cosine: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
