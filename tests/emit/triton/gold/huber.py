"""`Huber`: Huber loss.

Written by pullback from `huber`, and yours: it needs torch and triton, nothing else.
`Huber.apply(x, y)` runs it. Run this file to test it, with --bench to measure it.
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


@functools.cache
def programs_of(device):
    """How many programs that go over several rows run on a device at once."""
    if device.type != "cuda":
        return 4
    return 2 * torch.cuda.get_device_properties(device).multi_processor_count


def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def huber_forward_kernel(
    x_ptr, y_ptr, out_parts_ptr, x_row, x_col, y_row, y_col, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program goes over several rows, ROWS at a time, and keeps its sums in
    # registers.
    program = tl.program_id(0).to(tl.int64)
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    out_sum = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(program * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        inside = (row < n_rows) & (col < n_cols)
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
        y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
        abs_ = tl.abs(x - y)
        out_sum += tl.where(inside, tl.where(abs_ <= 1.0, abs_ * 0.5 * abs_, abs_ - 0.5), 0.0)
    tl.store(
        out_parts_ptr + tl.program_id(1) * tl.num_programs(0) + program,
        tl.sum(tl.sum(out_sum, 1), 0),
    )


@triton.jit
def huber_forward_sums(out_parts_ptr, out_ptr, n_parts, count, PARTS: tl.constexpr):
    # Adds up what the programs of `huber_forward_kernel` wrote, all per program, always
    # in the same order.
    out = tl.zeros((PARTS,), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        out += tl.load(out_parts_ptr + part, mask=part < n_parts, other=0.0)
    out = tl.sum(out, 0) / count
    tl.store(out_ptr, out)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def huber_backward_kernel(
    x_ptr, y_ptr, grad_out_ptr, grad_x_ptr, x_row, x_col, y_row, y_col, size, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    grad_out = tl.load(grad_out_ptr)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    y = tl.load(y_ptr + row * y_row + col * y_col, mask=inside, other=0.0)
    clamped = tl.minimum(
        tl.maximum((x - y), (-1.0), propagate_nan=tl.PropagateNan.ALL),
        1.0,
        propagate_nan=tl.PropagateNan.ALL,
    )
    grad_x = clamped / size * grad_out
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)


def huber_forward(x, y, launch=direct):
    """The output."""
    out = torch.empty((), dtype=torch.float32, device=x.device)
    ROWS, COLS = tile(x.shape[1], most=512)
    blocks = max(triton.cdiv(x.shape[1], COLS), 1)
    programs = (min(
        triton.cdiv(x.shape[0], ROWS), triton.cdiv(16 * programs_of(x.device), blocks)
    ), blocks)
    out_parts = torch.empty(
        (programs[0] * programs[1],), dtype=torch.float32, device=x.device
    )
    launch(huber_forward_kernel, programs)(
        x,
        y,
        out_parts,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    n_parts = out_parts.shape[0]
    launch(huber_forward_sums, (1,))(
        out_parts, out, n_parts, x.shape[0] * x.shape[1], PARTS=1024, num_warps=4
    )
    return out


def huber_backward(x, y, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_x = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    ROWS, COLS = tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS), triton.cdiv(x.shape[1], COLS))
    launch(huber_backward_kernel, grid)(
        x,
        y,
        grad_out,
        grad_x,
        x.stride(0),
        x.stride(1),
        y.stride(0),
        y.stride(1),
        x.shape[0] * x.shape[1],
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x


class Huber(torch.autograd.Function):
    """`huber` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, x, y):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        require(y, "y", torch.float32, (x.shape[0], x.shape[1]))
        out = huber_forward(x, y)
        ctx.save_for_backward(x, y)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, y = ctx.saved_tensors
        grad_x = huber_backward(x, y, grad_out)
        return grad_x, None


@torch.library.triton_op("huber::forward", mutates_args=())
def forward_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`huber_forward` as an op."""
    return huber_forward(x, y, traced)


@torch.library.triton_op("huber::backward", mutates_args=())
def backward_op(x: torch.Tensor, y: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """`huber_backward` as an op."""
    return huber_backward(x, y, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python huber.py`, benchmark: `python huber.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.42, 2.12, 5, 24).to(dtype=torch.float32).requires_grad_()
    y = spread(1, -2.42, 2.12, 5, 24).to(dtype=torch.float32)
    return x, y


RECORDED = {
    "output 0": [1.64496, 0, 0, 0, 0, 0, 0, 0],
    "the gradient of `x`": [0.04375, 0.0333333, 0.0229167, 0.0416667, 0.0520833, 0.025, 0.0395833, 0.01875],
}
"""What `huber` gave for these inputs when this was written: weighted sums."""


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
    outputs = Huber.apply(*given)
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
    print(f"Huber: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Huber needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Huber: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
