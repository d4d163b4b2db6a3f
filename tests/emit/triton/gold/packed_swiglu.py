"""`PackedSwiglu`: SiLU of the first half of each row times the second.

Written by pullback from `packed_swiglu`, and yours: it needs torch and triton, nothing
else.
`PackedSwiglu.apply(x)` runs it. Run this file to test it, with --bench to measure it.
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
def packed_swiglu_forward_kernel(
    x_ptr, out_ptr, x_row, x_stride_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    x_there = tl.load(x_ptr + row * x_row + col * x_stride_1, mask=inside, other=0.0)
    x_there_1 = tl.load(
        x_ptr + row * x_row + (col + n_cols) * x_stride_1, mask=inside, other=0.0
    )
    out = x_there * tl.sigmoid(x_there) * x_there_1
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def packed_swiglu_backward_kernel(
    grad_out_ptr, x_ptr, grad_x_ptr, grad_out_row, grad_out_col, x_row, x_stride_1,
    grad_x_row, grad_x_stride_1, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    grad_out = tl.load(
        grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
    )
    x_there = tl.load(x_ptr + row * x_row + (col + n_cols) * x_stride_1, mask=inside, other=0.0)
    x_there_1 = tl.load(x_ptr + row * x_row + col * x_stride_1, mask=inside, other=0.0)
    s = tl.sigmoid(x_there_1)
    grad_gate = grad_out * x_there * s * (x_there_1 * (1 - s) + 1)
    tl.store(grad_x_ptr + row * grad_x_row + col * grad_x_stride_1, grad_gate, mask=inside)
    grad_up = grad_out * (x_there_1 * tl.sigmoid(x_there_1))
    tl.store(
        grad_x_ptr + row * grad_x_row + (col + n_cols) * grad_x_stride_1, grad_up, mask=inside
    )


def packed_swiglu_forward(x, launch=direct):
    """The output."""
    out = torch.empty(
        (x.shape[0], (1 + x.shape[1]) // 2), dtype=torch.float32, device=x.device
    )
    ROWS, COLS = tile((1 + x.shape[1]) // 2)
    grid = (triton.cdiv(x.shape[0], ROWS), triton.cdiv((1 + x.shape[1]) // 2, COLS))
    launch(packed_swiglu_forward_kernel, grid)(
        x,
        out,
        x.stride(0),
        x.stride(1),
        (1 + x.shape[1]) // 2,
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out


def packed_swiglu_backward(x, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_x = torch.empty(
        (x.shape[0], 2 * ((1 + x.shape[1]) // 2)), dtype=torch.float32, device=x.device
    )
    ROWS, COLS = tile((1 + x.shape[1]) // 2)
    grid = (triton.cdiv(x.shape[0], ROWS), triton.cdiv((1 + x.shape[1]) // 2, COLS))
    launch(packed_swiglu_backward_kernel, grid)(
        grad_out,
        x,
        grad_x,
        grad_out.stride(0),
        grad_out.stride(1),
        x.stride(0),
        x.stride(1),
        grad_x.stride(0),
        grad_x.stride(1),
        (1 + x.shape[1]) // 2,
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x


class PackedSwiglu(torch.autograd.Function):
    """`packed_swiglu` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, x):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        if not (x.shape[1] % 2 == 0):
            raise ValueError(
                "`PackedSwiglu`: x.shape[1] % 2 == 0 must hold, "
                f"got x.shape[1] = {x.shape[1]}"
            )
        if x.shape[1] < 2:
            raise ValueError(
                "`PackedSwiglu`: x.shape[1] must be at least 2, "
                f"got {x.shape[1]}"
            )
        out = packed_swiglu_forward(x)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        grad_x = packed_swiglu_backward(x, grad_out)
        return grad_x


@torch.library.triton_op("packed_swiglu::forward", mutates_args=())
def forward_op(x: torch.Tensor) -> torch.Tensor:
    """`packed_swiglu_forward` as an op."""
    return packed_swiglu_forward(x, traced)


@torch.library.triton_op("packed_swiglu::backward", mutates_args=())
def backward_op(x: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """`packed_swiglu_backward` as an op."""
    return packed_swiglu_backward(x, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python packed_swiglu.py`, benchmark: `python packed_swiglu.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -2.92, 2.26, 6, 40).to(dtype=torch.float32).requires_grad_()
    return (x,)


RECORDED = {
    "output 0": [-32.9505, -35.1193, -53.587, -41.5369, -32.3023, -49.8534, -47.1947, -41.3957],
    "the gradient of `x`": [3.53801, -20.5298, 2.47466, 7.40366, -24.7103, -7.10092, 7.88168, 1.22048],
}
"""What `packed_swiglu` gave for these inputs when this was written: weighted sums."""


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
    outputs = PackedSwiglu.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('x',), given) if x.requires_grad}
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
    print(f"PackedSwiglu: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0,)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("PackedSwiglu needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("PackedSwiglu: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
