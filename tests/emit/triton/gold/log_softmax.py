"""`LogSoftmax`: Logarithm of the softmax of each row.

Written by pullback from `log_softmax`, and yours: it needs torch and triton, nothing
else.
`LogSoftmax.apply(x)` runs it. Run this file to test it, with --bench to measure it.
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


@triton.autotune(configs(({"BLOCK": 4096}, 4), ({"BLOCK": 8192}, 8), ({"BLOCK": 2048}, 4)), key=["n_cols"], **TUNED)
@triton.jit
def log_softmax_forward_kernel(x_ptr, out_ptr, x_row, x_col, n_cols, BLOCK: tl.constexpr):
    # Each program computes one row, BLOCK columns at a time.
    row = tl.program_id(0).to(tl.int64)
    largest = -float("inf")
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = col < n_cols
        x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
        new_largest = tl.maximum(largest, tl.max(tl.where(inside, x, -float("inf")), 0))
        shift = tl.where(
            new_largest == -float("inf"), 0.0, new_largest
        )  # a row of -inf alone adds 0
        total = total * tl.exp(largest - shift)
        total += tl.sum(tl.where(inside, tl.exp(x - shift), 0.0), 0)
        largest = new_largest
    lse = largest + tl.log(total)
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = col < n_cols
        x_1 = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
        out = x_1 - lse
        tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({"BLOCK": 4096}, 4), ({"BLOCK": 8192}, 8), ({"BLOCK": 2048}, 4)), key=["n_cols"], **TUNED)
@triton.jit
def log_softmax_backward_kernel(
    grad_out_ptr, out_ptr, grad_x_ptr, grad_out_row, grad_out_col, out_row, out_col, n_cols,
    BLOCK: tl.constexpr,
):
    # Each program computes one row, BLOCK columns at a time.
    row = tl.program_id(0).to(tl.int64)
    sum_grad_out = 0.0
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = col < n_cols
        grad_out = tl.load(
            grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
        )
        sum_grad_out += tl.sum(grad_out, 0)
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = col < n_cols
        grad_out_1 = tl.load(
            grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
        )
        out = tl.load(out_ptr + row * out_row + col * out_col, mask=inside, other=0.0)
        grad_x = grad_out_1 - tl.exp(out) * sum_grad_out
        tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)


def log_softmax_forward(x, launch=direct):
    """The output."""
    out = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    grid = (x.shape[0],)
    launch(log_softmax_forward_kernel, grid)(x, out, x.stride(0), x.stride(1), x.shape[1])
    return out


def log_softmax_backward(out, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_x = torch.empty(
        (out.shape[0], out.shape[1]), dtype=torch.float32, device=out.device
    )
    grid = (out.shape[0],)
    launch(log_softmax_backward_kernel, grid)(
        grad_out,
        out,
        grad_x,
        grad_out.stride(0),
        grad_out.stride(1),
        out.stride(0),
        out.stride(1),
        out.shape[1],
    )
    return grad_x


class LogSoftmax(torch.autograd.Function):
    """`log_softmax` in Triton; `out` kept for backward."""

    @staticmethod
    def forward(ctx, x):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        out = log_softmax_forward(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        grad_x = log_softmax_backward(out, grad_out)
        return grad_x


@torch.library.triton_op("log_softmax::forward", mutates_args=())
def forward_op(x: torch.Tensor) -> torch.Tensor:
    """`log_softmax_forward` as an op."""
    return log_softmax_forward(x, traced)


@torch.library.triton_op("log_softmax::backward", mutates_args=())
def backward_op(out: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """`log_softmax_backward` as an op."""
    return log_softmax_backward(out, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python log_softmax.py`, benchmark: `python log_softmax.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -4.35, 5.37, 2, 625).to(dtype=torch.float32).requires_grad_()
    return (x,)


RECORDED = {
    "output 0": [-5716.93, -5595.81, -5781.32, -5535.81, -5777.18, -5554.62, -5812.37, -5336.22],
    "the gradient of `x`": [19.0474, -23.8375, 29.0242, -21.2885, 14.9728, -23.4142, 23.5026, -12.7318],
}
"""What `log_softmax` gave for these inputs when this was written: weighted sums."""


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
    outputs = LogSoftmax.apply(*given)
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
    print(f"LogSoftmax: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0,)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("LogSoftmax needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("LogSoftmax: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
