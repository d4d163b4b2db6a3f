"""`Rope`: Rotary embedding by half-turns, of a transposed view.

Written by pullback from `rope`, and yours: it needs torch and triton, nothing else.
`Rope.apply(q, cos, sin)` runs it. Run this file to test it, with --bench to measure it.
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


def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def rope_forward_kernel(
    q_ptr, cos_ptr, sin_ptr, out_ptr, q_stride_0, q_stride_1, q_stride_2, q_col, cos_stride_0,
    cos_col, sin_stride_0, sin_col, out_stride_0, out_stride_1, out_stride_2, out_col,
    n_rows_1, n_rows_2, size, size_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    row_0 = row // (n_rows_1 * n_rows_2)
    row_1 = row // n_rows_2 % n_rows_1
    row_2 = row % n_rows_2
    q = tl.load(
        q_ptr + row_0 * q_stride_0 + row_2 * q_stride_1 + row_1 * q_stride_2 + col * q_col,
        mask=inside,
        other=0.0,
    ).to(tl.float32)
    cos = tl.load(
        cos_ptr + row_1 * cos_stride_0 + col * cos_col, mask=inside, other=0.0
    ).to(tl.float32)
    q_there = tl.load(
        q_ptr + row_0 * q_stride_0 + row_2 * q_stride_1 + row_1 * q_stride_2 + (col + size_1) * q_col,
        mask=inside & (col < size),
        other=0.0,
    ).to(tl.float32)
    q_there_1 = tl.load(
        q_ptr + row_0 * q_stride_0 + row_2 * q_stride_1 + row_1 * q_stride_2 + (col - size) * q_col,
        mask=inside & (col >= size),
        other=0.0,
    ).to(tl.float32)
    turned = tl.where(col < size, -q_there, q_there_1)
    sin = tl.load(
        sin_ptr + row_1 * sin_stride_0 + col * sin_col, mask=inside, other=0.0
    ).to(tl.float32)
    out = q * cos + turned * sin
    tl.store(
        out_ptr + row_0 * out_stride_0 + row_2 * out_stride_1 + row_1 * out_stride_2 + col * out_col,
        out,
        mask=inside,
    )


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def rope_backward_kernel(
    grad_out_ptr, cos_ptr, sin_ptr, grad_q_ptr, grad_out_stride_0, grad_out_stride_1,
    grad_out_stride_2, grad_out_col, cos_stride_0, cos_col, sin_stride_0, sin_col,
    grad_q_stride_0, grad_q_stride_1, grad_q_stride_2, grad_q_col, n_rows_1, n_rows_2, size,
    size_1, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    row_0 = row // (n_rows_1 * n_rows_2)
    row_1 = row // n_rows_2 % n_rows_1
    row_2 = row % n_rows_2
    grad_out = tl.load(
        grad_out_ptr + row_0 * grad_out_stride_0 + row_2 * grad_out_stride_1 + row_1 * grad_out_stride_2 + col * grad_out_col,
        mask=inside,
        other=0.0,
    ).to(tl.float32)
    cos = tl.load(
        cos_ptr + row_1 * cos_stride_0 + col * cos_col, mask=inside, other=0.0
    ).to(tl.float32)
    grad_out_there = tl.load(
        grad_out_ptr + row_0 * grad_out_stride_0 + row_2 * grad_out_stride_1 + row_1 * grad_out_stride_2 + (col + size_1) * grad_out_col,
        mask=inside & (col < size),
        other=0.0,
    ).to(tl.float32)
    sin_there = tl.load(
        sin_ptr + row_1 * sin_stride_0 + (col + size_1) * sin_col,
        mask=inside & (col < size),
        other=0.0,
    ).to(tl.float32)
    grad_turned_moved = grad_out_there * sin_there
    g_total = grad_out * cos + tl.where(col < size, grad_turned_moved, 0.0)
    grad_out_there_1 = tl.load(
        grad_out_ptr + row_0 * grad_out_stride_0 + row_2 * grad_out_stride_1 + row_1 * grad_out_stride_2 + (col - size) * grad_out_col,
        mask=inside & (col >= size),
        other=0.0,
    ).to(tl.float32)
    sin_there_1 = tl.load(
        sin_ptr + row_1 * sin_stride_0 + (col - size) * sin_col,
        mask=inside & (col >= size),
        other=0.0,
    ).to(tl.float32)
    grad_turned_moved_1 = grad_out_there_1 * sin_there_1
    grad_q = g_total + tl.where(col >= size, -grad_turned_moved_1, 0.0)
    tl.store(
        grad_q_ptr + row_0 * grad_q_stride_0 + row_2 * grad_q_stride_1 + row_1 * grad_q_stride_2 + col * grad_q_col,
        grad_q,
        mask=inside,
    )


def rope_forward(q, cos, sin, launch=direct):
    """The output."""
    out = torch.empty_permuted(
        (q.shape[0], q.shape[1], q.shape[2], q.shape[3]),
        (0, 2, 1, 3),
        dtype=torch.bfloat16,
        device=q.device,
    )
    ROWS, COLS = tile(q.shape[3])
    grid = (triton.cdiv(
        q.shape[0] * q.shape[2] * q.shape[1], ROWS
    ), triton.cdiv(q.shape[3], COLS))
    launch(rope_forward_kernel, grid)(
        q,
        cos,
        sin,
        out,
        q.stride(0),
        q.stride(1),
        q.stride(2),
        q.stride(3),
        cos.stride(0),
        cos.stride(1),
        sin.stride(0),
        sin.stride(1),
        out.stride(0),
        out.stride(1),
        out.stride(2),
        out.stride(3),
        q.shape[2],
        q.shape[1],
        q.shape[3] - q.shape[3] // 2,
        q.shape[3] // 2,
        q.shape[3],
        q.shape[0] * q.shape[2] * q.shape[1],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out


def rope_backward(cos, sin, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_q = torch.empty_permuted(
        (grad_out.shape[0], grad_out.shape[1], cos.shape[0], cos.shape[1]),
        (0, 2, 1, 3),
        dtype=torch.bfloat16,
        device=cos.device,
    )
    ROWS, COLS = tile(cos.shape[1])
    grid = (triton.cdiv(
        grad_out.shape[0] * cos.shape[0] * grad_out.shape[1], ROWS
    ), triton.cdiv(cos.shape[1], COLS))
    launch(rope_backward_kernel, grid)(
        grad_out,
        cos,
        sin,
        grad_q,
        grad_out.stride(0),
        grad_out.stride(1),
        grad_out.stride(2),
        grad_out.stride(3),
        cos.stride(0),
        cos.stride(1),
        sin.stride(0),
        sin.stride(1),
        grad_q.stride(0),
        grad_q.stride(1),
        grad_q.stride(2),
        grad_q.stride(3),
        cos.shape[0],
        grad_out.shape[1],
        cos.shape[1] // 2,
        cos.shape[1] - cos.shape[1] // 2,
        grad_out.shape[0] * cos.shape[0] * grad_out.shape[1],
        cos.shape[1],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_q


class Rope(torch.autograd.Function):
    """`rope` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, q, cos, sin):
        require(q, "q", torch.bfloat16, (q.shape[0], q.shape[1], q.shape[2], q.shape[3]))
        require(cos, "cos", torch.bfloat16, (q.shape[2], q.shape[3]))
        require(sin, "sin", torch.bfloat16, (q.shape[2], q.shape[3]))
        out = rope_forward(q, cos, sin)
        ctx.save_for_backward(cos, sin)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        cos, sin = ctx.saved_tensors
        grad_q = rope_backward(cos, sin, grad_out)
        return grad_q, None, None


@torch.library.triton_op("rope::forward", mutates_args=())
def forward_op(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """`rope_forward` as an op."""
    return rope_forward(q, cos, sin, traced)


@torch.library.triton_op("rope::backward", mutates_args=())
def backward_op(
    cos: torch.Tensor, sin: torch.Tensor, grad_out: torch.Tensor
) -> torch.Tensor:
    """`rope_backward` as an op."""
    return rope_backward(cos, sin, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python rope.py`, benchmark: `python rope.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    q = spread(0, -2.8, 2.59, 2, 3, 6, 16).to(dtype=torch.bfloat16).requires_grad_()
    cos = spread(1, -1.98, 2.8, 6, 16).to(dtype=torch.bfloat16)
    sin = spread(2, -0.988, 1.4, 6, 16).to(dtype=torch.bfloat16)
    return q, cos, sin


RECORDED = {
    "output 0": [-358.899, 125.363, 237.607, 14.3852, -347.222, 198.108, 187.757, 110.527],
    "the gradient of `q`": [19.7051, -10.1561, 46.8887, 56.3177, 64.2708, 20.5023, -10.5217, 26.3957],
}
"""What `rope` gave for these inputs when this was written: weighted sums."""


def few(y):
    """A tensor in few numbers: weighted sums of it."""
    flat = y.detach().double().flatten()
    weights = 1 + torch.arange(flat.numel(), device=y.device) % 7
    padded = torch.nn.functional.pad(flat * weights, (0, -flat.numel() % 8))
    return padded.reshape(8, -1).sum(1)


def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    expected = torch.tensor(RECORDED[what], dtype=torch.float64, device=got.device)
    allowed = 0.04 * few(got.abs()) + 1e-6
    if not bool(((few(got) - expected).abs() <= allowed).all()):
        raise AssertionError(f"{what} is not as recorded: {few(got).tolist()}")


def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.arange(y.numel(), dtype=torch.float64, device=y.device)
    return ((0.25 * i + 0.7548776662 * row) % 1 - 0.25).reshape(y.shape).to(y.dtype)


def run(given, cotangents=None):
    """Outputs and gradients, by what they are."""
    given = [x.detach().requires_grad_(x.requires_grad) for x in given]
    outputs = Rope.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('q', 'cos', 'sin'), given) if x.requires_grad}
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
    print(f"Rope: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, None, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Rope needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Rope: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
