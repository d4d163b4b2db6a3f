"""`JsDiv`: Jensen-Shannon divergence of two rows of logits.

Written by pullback from `js_div`, and yours: it needs torch and triton, nothing else.
`JsDiv.apply(x, y)` runs it. Run this file to test it, with --bench to measure it.
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
def js_div_forward_kernel(
    x_ptr, y_ptr, largest_ptr, sum_e_ptr, largest_1_ptr, sum_e_1_ptr, out_total_parts_ptr,
    x_row, x_col, y_row, y_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    largest = tl.max(tl.where(inside, x, -float("inf")), 1, keep_dims=True)
    e = tl.exp(x - largest)
    sum_e = tl.sum(tl.where(inside, e, 0.0), 1, keep_dims=True)
    p = e / sum_e
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
    largest_1 = tl.max(tl.where(inside, y, -float("inf")), 1, keep_dims=True)
    e_1 = tl.exp(y - largest_1)
    sum_e_1 = tl.sum(tl.where(inside, e_1, 0.0), 1, keep_dims=True)
    q = e_1 / sum_e_1
    m = (p + q) * 0.5
    sum_ = tl.sum(tl.where(inside, p * tl.log(p / m), 0.0), 1, keep_dims=True)
    sum__1 = tl.sum(tl.where(inside, q * tl.log(q / m), 0.0), 1, keep_dims=True)
    out_total_sum = tl.where(in_rows, sum_ + sum__1, 0.0)
    tl.store(largest_ptr + row, largest, mask=in_rows)
    tl.store(sum_e_ptr + row, sum_e, mask=in_rows)
    tl.store(largest_1_ptr + row, largest_1, mask=in_rows)
    tl.store(sum_e_1_ptr + row, sum_e_1, mask=in_rows)
    tl.store(out_total_parts_ptr + program, tl.sum(tl.sum(out_total_sum, 1), 0))


@triton.jit
def js_div_forward_sums(out_total_parts_ptr, out_ptr, n_parts, count, PARTS: tl.constexpr):
    # Adds up what the programs of `js_div_forward_kernel` wrote, all per program, always
    # in the same order.
    out_total = tl.zeros((PARTS,), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        out_total += tl.load(out_total_parts_ptr + part, mask=part < n_parts, other=0.0)
    out_total = tl.sum(out_total, 0) / count
    out = out_total * 0.5
    tl.store(out_ptr, out)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def js_div_backward_kernel(
    x_ptr, largest_ptr, sum_e_ptr, grad_out_ptr, y_ptr, largest_1_ptr, sum_e_1_ptr,
    grad_x_ptr, grad_y_ptr, x_row, x_col, y_row, y_col, n_rows, n_cols, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    grad_out = tl.load(grad_out_ptr)
    g_ratio = grad_out * 0.5 / n_rows
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    largest = tl.load(largest_ptr + row, mask=in_rows, other=0.0)
    e = tl.exp(x - largest)
    sum_e = tl.load(sum_e_ptr + row, mask=in_rows, other=0.0)
    p = e / sum_e
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
    largest_1 = tl.load(largest_1_ptr + row, mask=in_rows, other=0.0)
    e_1 = tl.exp(y - largest_1)
    sum_e_1 = tl.load(sum_e_1_ptr + row, mask=in_rows, other=0.0)
    q = e_1 / sum_e_1
    m = (p + q) * 0.5
    ratio_1 = p / m
    g_ratio_2 = g_ratio * p / ratio_1
    ratio = q / m
    g_ratio_1 = g_ratio * q / ratio
    grad_m = -(g_ratio_1 * (ratio / m)) - g_ratio_2 * (ratio_1 / m)
    g_scaled = grad_m * 0.5
    grad_p = g_ratio * tl.log(ratio_1) + g_ratio_2 / m + g_scaled
    g_sum_1 = tl.sum(tl.where(inside, grad_p * p, 0.0), 1, keep_dims=True)
    grad_x = p * (grad_p - g_sum_1)
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)
    grad_q = g_ratio * tl.log(ratio) + g_ratio_1 / m + g_scaled
    g_sum = tl.sum(tl.where(inside, grad_q * q, 0.0), 1, keep_dims=True)
    grad_y = q * (grad_q - g_sum)
    tl.store(grad_y_ptr + row * n_cols + col, grad_y, mask=inside)


def js_div_forward(x, y, launch=direct):
    """The output, and what backward reads: largest, sum_e, largest_1, sum_e_1."""
    out = torch.empty((), dtype=torch.float32, device=x.device)
    largest = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    sum_e = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    largest_1 = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    sum_e_1 = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile(x.shape[1])
    programs = (triton.cdiv(x.shape[0], ROWS),)
    out_total_parts = torch.empty((programs[0],), dtype=torch.float32, device=x.device)
    launch(js_div_forward_kernel, programs)(
        x,
        y,
        largest,
        sum_e,
        largest_1,
        sum_e_1,
        out_total_parts,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    n_parts = out_total_parts.shape[0]
    launch(js_div_forward_sums, (1,))(
        out_total_parts, out, n_parts, x.shape[0], PARTS=1024, num_warps=4
    )
    return out, largest, sum_e, largest_1, sum_e_1


def js_div_backward(x, y, largest, sum_e, largest_1, sum_e_1, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    grad_x = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    grad_y = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS),)
    launch(js_div_backward_kernel, grid)(
        x,
        largest,
        sum_e,
        grad_out,
        y,
        largest_1,
        sum_e_1,
        grad_x,
        grad_y,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        x.shape[0],
        x.shape[1],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x, grad_y


class JsDiv(torch.autograd.Function):
    """`js_div` in Triton; `largest`, `sum_e`, `largest_1`, `sum_e_1` kept for backward."""

    @staticmethod
    def forward(ctx, x, y):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        require(y, "y", torch.float32, (x.shape[0], x.shape[1]))
        out, largest, sum_e, largest_1, sum_e_1 = js_div_forward(x, y)
        ctx.save_for_backward(x, y, largest, sum_e, largest_1, sum_e_1)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, y, largest, sum_e, largest_1, sum_e_1 = ctx.saved_tensors
        grad_x, grad_y = js_div_backward(x, y, largest, sum_e, largest_1, sum_e_1, grad_out)
        return grad_x, grad_y


@torch.library.triton_op("js_div::forward", mutates_args=())
def forward_op(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`js_div_forward` as an op."""
    return js_div_forward(x, y, traced)


@torch.library.triton_op("js_div::backward", mutates_args=())
def backward_op(
    x: torch.Tensor,
    y: torch.Tensor,
    largest: torch.Tensor,
    sum_e: torch.Tensor,
    largest_1: torch.Tensor,
    sum_e_1: torch.Tensor,
    grad_out: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`js_div_backward` as an op."""
    return js_div_backward(x, y, largest, sum_e, largest_1, sum_e_1, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python js_div.py`, benchmark: `python js_div.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -3.45, 2.88, 4, 50).to(dtype=torch.float32).requires_grad_()
    y = spread(1, -2.66, 2.64, 4, 50).to(dtype=torch.float32).requires_grad_()
    return x, y


RECORDED = {
    "output 0": [0.471008, 0, 0, 0, 0, 0, 0, 0],
    "the gradient of `x`": [0.0019293, 0.00177488, 0.00269564, 0.00245686, -0.00253163, -0.00233424, -0.00572528, -0.000510881],
    "the gradient of `y`": [-0.000918141, -0.000920771, -0.001457, -0.00133441, 0.000971902, 0.00128939, 0.00284354, 0.000235637],
}
"""What `js_div` gave for these inputs when this was written: weighted sums."""


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
    outputs = JsDiv.apply(*given)
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
    print(f"JsDiv: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("JsDiv needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("JsDiv: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
