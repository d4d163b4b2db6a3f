"""`Softcap`: Scores held within 30 by tanh.

Written by pullback from `softcap`, and yours: it needs torch and triton, nothing else.
`Softcap.apply(x)` runs it. Run this file to test it, with --bench to measure it.
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


@triton.jit
def tanh(x):
    """tanh, by its series near zero, where a quotient of exponentials loses digits."""
    square = x * x
    series = 2 / 15 + square * (-17 / 315 + square * 62 / 2835)
    series = x * (1 + square * (-1 / 3 + square * series))
    e = tl.exp(-2 * tl.abs(x))
    size = (1 - e) / (1 + e)
    return tl.where(square < 0.0625, series, tl.where(x < 0, -size, size))


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def softcap_forward_kernel(
    x_ptr, out_ptr, x_row, x_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    out = tanh(x / 30.0) * 30.0
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def softcap_backward_kernel(
    grad_out_ptr, x_ptr, grad_x_ptr, grad_out_row, grad_out_col, x_row, x_col, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    grad_out = tl.load(
        grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
    )
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    tanh_1 = tanh(x / 30.0)
    grad_x = grad_out * 30.0 * (1 - tanh_1 * tanh_1) / 30.0
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)


def softcap_forward(x, launch=direct):
    """The output."""
    out = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    ROWS, COLS = tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS), triton.cdiv(x.shape[1], COLS))
    launch(softcap_forward_kernel, grid)(
        x, out, x.stride(0), x.stride(1), x.shape[1], x.shape[0], ROWS=ROWS, COLS=COLS
    )
    return out


def softcap_backward(x, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_x = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    ROWS, COLS = tile(x.shape[1])
    grid = (triton.cdiv(x.shape[0], ROWS), triton.cdiv(x.shape[1], COLS))
    launch(softcap_backward_kernel, grid)(
        grad_out,
        x,
        grad_x,
        grad_out.stride(0),
        grad_out.stride(1),
        x.stride(0),
        x.stride(1),
        x.shape[1],
        x.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_x


class Softcap(torch.autograd.Function):
    """`softcap` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, x):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        out = softcap_forward(x)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        grad_x = softcap_backward(x, grad_out)
        return grad_x


@torch.library.triton_op("softcap::forward", mutates_args=())
def forward_op(x: torch.Tensor) -> torch.Tensor:
    """`softcap_forward` as an op."""
    return softcap_forward(x, traced)


@torch.library.triton_op("softcap::backward", mutates_args=())
def backward_op(x: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """`softcap_backward` as an op."""
    return softcap_backward(x, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python softcap.py`, benchmark: `python softcap.py --bench` ----


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
    "output 0": [-57.1681, -43.7991, -68.9495, -63.095, -30.5567, -41.229, -18.0887, -38.9568],
    "the gradient of `x`": [23.032, 33.3224, 26.3141, 30.9079, 32.6065, 23.8478, 37.7111, 25.301],
}
"""What `softcap` gave for these inputs when this was written: weighted sums."""


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
    outputs = Softcap.apply(*given)
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
    print(f"Softcap: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0,)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Softcap needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Softcap: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
