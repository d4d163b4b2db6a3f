"""`AddRmsNorm`: A residual is added, the sum kept and normalised.

Written by pullback from `add_rms_norm`, and yours: it needs torch and triton, nothing
else.
`AddRmsNorm.apply(x, residual, weight)` runs it. Run this file to test it, with --bench
to measure it. Without a GPU, set TRITON_INTERPRET=1.
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


def row_tile(n_cols):
    """How many whole rows a program takes at once, and of which width."""
    cols = triton.next_power_of_2(max(n_cols, 1))
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def add_rms_norm_forward_kernel(
    x_ptr, residual_ptr, weight_ptr, out0_ptr, rstd_ptr, h_ptr, x_row, x_col, residual_row,
    residual_col, weight_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_cols = col < n_cols
    in_rows = row < n_rows
    inside = in_rows & in_cols
    weight = tl.load(weight_ptr + col * weight_col, mask=in_cols, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(
        residual_ptr + row * residual_row + col * residual_col, mask=inside, other=0.0
    ).to(tl.float32)
    h = x + residual
    rstd = tl.rsqrt(tl.sum(h * h, 1, keep_dims=True) / n_cols + 1e-06)
    out0 = (h * rstd).to(tl.bfloat16).to(tl.float32) * weight
    tl.store(out0_ptr + row * n_cols + col, out0, mask=inside)
    tl.store(rstd_ptr + row, rstd, mask=in_rows)
    tl.store(h_ptr + row * n_cols + col, h, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def add_rms_norm_backward_kernel(
    grad_out0_ptr, h_ptr, rstd_ptr, grad_h_ptr, weight_ptr, grad_x_ptr, grad_weight_parts_ptr,
    grad_out0_row, grad_out0_col, h_row, h_col, grad_h_row, grad_h_col, weight_col, n_cols,
    n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program goes over several rows, ROWS at a time, and keeps its sums in
    # registers.
    program = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_cols = col < n_cols
    weight = tl.load(weight_ptr + col * weight_col, mask=in_cols, other=0.0).to(tl.float32)
    grad_weight_sum = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(program * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        in_rows = row < n_rows
        inside = in_rows & in_cols
        grad_out0 = tl.load(
            grad_out0_ptr + row * grad_out0_row + col * grad_out0_col, mask=inside, other=0.0
        ).to(tl.float32)
        h = tl.load(h_ptr + row * h_row + col * h_col, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row, mask=in_rows, other=0.0)
        grad_weight_sum += grad_out0 * (h * rstd).to(tl.bfloat16).to(tl.float32)
        grad_h = tl.load(
            grad_h_ptr + row * grad_h_row + col * grad_h_col, mask=inside, other=0.0
        ).to(tl.float32)
        g_cast = grad_out0 * weight
        grad_rstd = tl.sum(g_cast * h, 1, keep_dims=True)
        g_scaled_5 = -(grad_rstd * (rstd * rstd * rstd) / n_cols) * h
        grad_x = grad_h + g_cast * rstd + g_scaled_5
        tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)
    tl.store(
        grad_weight_parts_ptr + program * n_cols + col,
        tl.sum(grad_weight_sum, 0, keep_dims=True),
        mask=in_cols,
    )


@triton.jit
def add_rms_norm_backward_sums(
    grad_weight_parts_ptr, grad_weight_ptr, n_parts, n_cols, COLS: tl.constexpr,
    PARTS: tl.constexpr,
):
    # Adds up what the programs of `add_rms_norm_backward_kernel` wrote, COLS columns per
    # program, always in the same order.
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = col < n_cols
    grad_weight = tl.zeros((PARTS, COLS), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        grad_weight += tl.load(
            grad_weight_parts_ptr + part[:, None] * n_cols + col[None, :],
            mask=(part < n_parts)[:, None] & inside[None, :],
            other=0.0,
        )
    grad_weight = tl.sum(grad_weight, 0)
    tl.store(grad_weight_ptr + col, grad_weight, mask=inside)


def add_rms_norm_forward(x, residual, weight, launch=direct):
    """The outputs, and what backward reads: rstd."""
    out0 = torch.empty((x.shape[0], x.shape[1]), dtype=torch.bfloat16, device=x.device)
    h = torch.empty((x.shape[0], x.shape[1]), dtype=torch.bfloat16, device=x.device)
    rstd = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    ROWS, COLS = row_tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS),)
    launch(add_rms_norm_forward_kernel, grid)(
        x,
        residual,
        weight,
        out0,
        rstd,
        h,
        x.stride(0),
        x.stride(1),
        residual.stride(0),
        residual.stride(1),
        weight.stride(0),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out0, h, rstd


def add_rms_norm_backward(weight, h, rstd, grad_out0, grad_h, launch=direct):
    """The gradients, from what forward kept."""
    grad_x = torch.empty(
        (h.shape[0], weight.shape[0]), dtype=torch.bfloat16, device=weight.device
    )
    grad_weight = torch.empty(
        (weight.shape[0],), dtype=torch.bfloat16, device=weight.device
    )
    ROWS, COLS = row_tile(weight.shape[0])
    programs = (min(triton.cdiv(h.shape[0], ROWS), programs_of(weight.device)),)
    grad_weight_parts = torch.empty(
        (programs[0], weight.shape[0]), dtype=torch.float32, device=weight.device
    )
    launch(add_rms_norm_backward_kernel, programs)(
        grad_out0,
        h,
        rstd,
        grad_h,
        weight,
        grad_x,
        grad_weight_parts,
        grad_out0.stride(0),
        grad_out0.stride(1),
        h.stride(0),
        h.stride(1),
        grad_h.stride(0),
        grad_h.stride(1),
        weight.stride(0),
        weight.shape[0],
        h.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    n_parts = grad_weight_parts.shape[0]
    grid = (triton.cdiv(weight.shape[0], 16),)
    launch(add_rms_norm_backward_sums, grid)(
        grad_weight_parts,
        grad_weight,
        n_parts,
        weight.shape[0],
        COLS=16,
        PARTS=256,
        num_warps=4,
    )
    return grad_x, grad_weight


class AddRmsNorm(torch.autograd.Function):
    """`add_rms_norm` in Triton; `h`, `rstd` kept for backward."""

    @staticmethod
    def forward(ctx, x, residual, weight):
        require(x, "x", torch.bfloat16, (x.shape[0], x.shape[1]))
        require(residual, "residual", torch.bfloat16, (x.shape[0], x.shape[1]))
        require(weight, "weight", torch.bfloat16, (x.shape[1],))
        out0, h, rstd = add_rms_norm_forward(x, residual, weight)
        ctx.save_for_backward(weight, h, rstd)
        return out0, h

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out0, grad_h):
        weight, h, rstd = ctx.saved_tensors
        grad_x, grad_weight = add_rms_norm_backward(weight, h, rstd, grad_out0, grad_h)
        return grad_x, grad_x, grad_weight


@torch.library.triton_op("add_rms_norm::forward", mutates_args=())
def forward_op(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`add_rms_norm_forward` as an op."""
    return add_rms_norm_forward(x, residual, weight, traced)


@torch.library.triton_op("add_rms_norm::backward", mutates_args=())
def backward_op(
    weight: torch.Tensor,
    h: torch.Tensor,
    rstd: torch.Tensor,
    grad_out0: torch.Tensor,
    grad_h: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_rms_norm_backward` as an op."""
    return add_rms_norm_backward(weight, h, rstd, grad_out0, grad_h, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python add_rms_norm.py`, benchmark: `python add_rms_norm.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.92, 2.27, 6, 40).to(dtype=torch.bfloat16).requires_grad_()
    residual = spread(1, -2.92, 2.27, 6, 40).to(dtype=torch.bfloat16).requires_grad_()
    weight = spread(2, -2.45, 2.03, 40).to(dtype=torch.bfloat16).requires_grad_()
    return x, residual, weight


RECORDED = {
    "output 0": [-68.9473, 35.9013, 106.679, 66.2538, -35.9165, -1.00345, 11.5733, 33.8138],
    "output 1": [-87.8028, -79.3027, -116.632, -126.296, -71.8496, -95.9838, -46.5288, -93.1523],
    "the gradient of `x`": [13.8064, 31.1296, 26.5319, 29.3388, 32.3207, 17.732, 31.4713, 17.5084],
    "the gradient of `residual`": [13.8064, 31.1296, 26.5319, 29.3388, 32.3207, 17.732, 31.4713, 17.5084],
    "the gradient of `weight`": [-11.3794, -12.6794, -16.9277, -5.69411, -14.8805, -13.9263, -26.2511, -0.657848],
}
"""What `add_rms_norm` gave for these inputs when this was written: weighted sums."""


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
    outputs = AddRmsNorm.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('x', 'residual', 'weight'), given) if x.requires_grad}
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
    print(f"AddRmsNorm: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("AddRmsNorm needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("AddRmsNorm: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
