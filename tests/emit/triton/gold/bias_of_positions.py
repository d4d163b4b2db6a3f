"""`BiasOfPositions`: An embedding of positions added to a batch.

Written by pullback from `bias_of_positions`, and yours: it needs torch and triton,
nothing else.
`BiasOfPositions.apply(x, position)` runs it. Run this file to test it, with --bench to
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


def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def bias_of_positions_forward_kernel(
    x_ptr, position_ptr, out_ptr, x_stride_0, x_stride_1, x_col, position_stride_0,
    position_col, n_rows_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    row_0 = row // n_rows_1
    row_1 = row % n_rows_1
    x = tl.load(
        x_ptr + row_0 * x_stride_0 + row_1 * x_stride_1 + col * x_col, mask=inside, other=0.0
    )
    position = tl.load(
        position_ptr + row_1 * position_stride_0 + col * position_col, mask=inside, other=0.0
    )
    out = tl.sin(x + position)
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def bias_of_positions_backward_kernel(
    grad_out_ptr, x_ptr, position_ptr, grad_x_ptr, grad_position_parts_ptr, grad_out_row,
    grad_out_col, x_row, x_col, position_col, n_cols, n_rows, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # Each program goes over several rows, ROWS at a time, and keeps its sums in
    # registers.
    program = tl.program_id(0).to(tl.int64)
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    in_cols = col < n_cols
    position = tl.load(position_ptr + col * position_col, mask=in_cols, other=0.0)
    grad_position_sum = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(program * ROWS, n_rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS))[:, None]
        inside = (row < n_rows) & in_cols
        grad_out = tl.load(
            grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
        )
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
        grad_x = grad_out * tl.cos(x + position)
        grad_position_sum += tl.where(inside, grad_x, 0.0)
        tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)
    tl.store(
        grad_position_parts_ptr + program * n_cols + col,
        tl.sum(grad_position_sum, 0, keep_dims=True),
        mask=in_cols,
    )


@triton.jit
def bias_of_positions_backward_sums(
    grad_position_parts_ptr, grad_position_ptr, n_parts, n_cols, COLS: tl.constexpr,
    PARTS: tl.constexpr,
):
    # Adds up what the programs of `bias_of_positions_backward_kernel` wrote, COLS columns
    # per program, always in the same order.
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = col < n_cols
    grad_position = tl.zeros((PARTS, COLS), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        grad_position += tl.load(
            grad_position_parts_ptr + part[:, None] * n_cols + col[None, :],
            mask=(part < n_parts)[:, None] & inside[None, :],
            other=0.0,
        )
    grad_position = tl.sum(grad_position, 0)
    tl.store(grad_position_ptr + col, grad_position, mask=inside)


def bias_of_positions_forward(x, position, launch=direct):
    """The output."""
    out = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2]), dtype=torch.float32, device=x.device
    )
    ROWS, COLS = tile(x.shape[2])
    grid = (triton.cdiv(x.shape[0] * x.shape[1], ROWS), triton.cdiv(x.shape[2], COLS))
    launch(bias_of_positions_forward_kernel, grid)(
        x,
        position,
        out,
        x.stride(0),
        x.stride(1),
        x.stride(2),
        position.stride(0),
        position.stride(1),
        x.shape[1],
        x.shape[2],
        x.shape[0] * x.shape[1],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out


def bias_of_positions_backward(x, position, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    if x.stride(1) != x.shape[2] * x.stride(2):
        x = x.contiguous()
    if position.stride(0) != position.shape[1] * position.stride(1):
        position = position.contiguous()
    if grad_out.stride(1) != grad_out.shape[2] * grad_out.stride(2):
        grad_out = grad_out.contiguous()
    grad_x = torch.empty(
        (x.shape[0], x.shape[1], x.shape[2]), dtype=torch.float32, device=x.device
    )
    grad_position = torch.empty(
        (x.shape[1], x.shape[2]), dtype=torch.float32, device=x.device
    )
    ROWS, COLS = tile(x.shape[1] * x.shape[2], most=512)
    blocks = max(triton.cdiv(x.shape[1] * x.shape[2], COLS), 1)
    programs = (min(
        triton.cdiv(x.shape[0], ROWS), triton.cdiv(16 * programs_of(x.device), blocks)
    ), blocks)
    grad_position_parts = torch.empty(
        (programs[0], x.shape[1] * x.shape[2]), dtype=torch.float32, device=x.device
    )
    launch(bias_of_positions_backward_kernel, programs)(
        grad_out,
        x,
        position,
        grad_x,
        grad_position_parts,
        grad_out.stride(0),
        grad_out.stride(2),
        x.stride(0),
        x.stride(2),
        position.stride(1),
        x.shape[1] * x.shape[2],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    n_parts = grad_position_parts.shape[0]
    grid = (triton.cdiv(x.shape[1] * x.shape[2], 16),)
    launch(bias_of_positions_backward_sums, grid)(
        grad_position_parts,
        grad_position,
        n_parts,
        x.shape[1] * x.shape[2],
        COLS=16,
        PARTS=256,
        num_warps=4,
    )
    return grad_x, grad_position


class BiasOfPositions(torch.autograd.Function):
    """`bias_of_positions` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, x, position):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1], x.shape[2]))
        require(position, "position", torch.float32, (x.shape[1], x.shape[2]))
        out = bias_of_positions_forward(x, position)
        ctx.save_for_backward(x, position)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, position = ctx.saved_tensors
        grad_x, grad_position = bias_of_positions_backward(x, position, grad_out)
        return grad_x, grad_position


@torch.library.triton_op("bias_of_positions::forward", mutates_args=())
def forward_op(x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`bias_of_positions_forward` as an op."""
    return bias_of_positions_forward(x, position, traced)


@torch.library.triton_op("bias_of_positions::backward", mutates_args=())
def backward_op(
    x: torch.Tensor, position: torch.Tensor, grad_out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`bias_of_positions_backward` as an op."""
    return bias_of_positions_backward(x, position, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python bias_of_positions.py`, benchmark: `python bias_of_positions.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.58, 2.29, 4, 3, 20).to(dtype=torch.float32).requires_grad_()
    position = spread(1, -2.45, 2.23, 3, 20).to(dtype=torch.float32).requires_grad_()
    return x, position


RECORDED = {
    "output 0": [-7.52101, -7.60444, -14.8451, -6.03747, 10.2489, 4.08747, 5.30672, -2.30629],
    "the gradient of `x`": [3.48631, 25.0871, -5.69049, -7.93221, 14.4506, 2.82997, -4.24257, 2.72307],
    "the gradient of `position`": [-6.83668, 1.15052, 4.60172, -0.46983, 14.8362, 12.5718, 7.35696, 2.508],
}
"""What `bias_of_positions` gave for these inputs when this was written: weighted sums."""


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
    outputs = BiasOfPositions.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('x', 'position'), given) if x.requires_grad}
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
    print(f"BiasOfPositions: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("BiasOfPositions needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("BiasOfPositions: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
