"""`Softmax`: Softmax of each row.

Written by pullback from `softmax`, and yours: it needs torch and triton, nothing else.
`Softmax.apply(x)` runs it. Run this file to test it, with --bench to measure it.
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


@triton.autotune(configs(({}, 8), ({}, 4), ({}, 16)), key=["n_cols"], **TUNED)
@triton.jit
def softmax_forward_kernel(x_ptr, out_ptr, x_row, x_col, n_cols, BLOCK: tl.constexpr):
    # Each program computes one row, which it holds whole.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    inside = col < n_cols
    x = tl.load(x_ptr + row * x_row + col * x_col, mask=inside, other=0.0)
    largest = tl.max(tl.where(inside, x, -float("inf")), 0)
    e = tl.exp(x - largest)
    out = e / tl.sum(tl.where(inside, e, 0.0), 0)
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 8), ({}, 4), ({}, 16)), key=["n_cols"], **TUNED)
@triton.jit
def softmax_backward_kernel(
    out_ptr, grad_out_ptr, grad_x_ptr, out_row, out_col, grad_out_row, grad_out_col, n_cols,
    BLOCK: tl.constexpr,
):
    # Each program computes one row, which it holds whole.
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK).to(tl.int64)
    inside = col < n_cols
    out = tl.load(out_ptr + row * out_row + col * out_col, mask=inside, other=0.0)
    grad_out = tl.load(
        grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
    )
    grad_x = out * (grad_out - tl.sum(grad_out * out, 0))
    tl.store(grad_x_ptr + row * n_cols + col, grad_x, mask=inside)


def softmax_forward(x, launch=direct):
    """The output."""
    out = torch.empty((x.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    grid = (x.shape[0],)
    launch(softmax_forward_kernel, grid)(
        x,
        out,
        x.stride(0),
        x.stride(1),
        x.shape[1],
        BLOCK=triton.next_power_of_2(x.shape[1]),
    )
    return out


def softmax_backward(out, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_x = torch.empty(
        (out.shape[0], out.shape[1]), dtype=torch.float32, device=out.device
    )
    grid = (out.shape[0],)
    launch(softmax_backward_kernel, grid)(
        out,
        grad_out,
        grad_x,
        out.stride(0),
        out.stride(1),
        grad_out.stride(0),
        grad_out.stride(1),
        out.shape[1],
        BLOCK=triton.next_power_of_2(out.shape[1]),
    )
    return grad_x


class Softmax(torch.autograd.Function):
    """`softmax` in Triton; `out` kept for backward."""

    @staticmethod
    def forward(ctx, x):
        require(x, "x", torch.float32, (x.shape[0], x.shape[1]))
        out = softmax_forward(x)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        out, = ctx.saved_tensors
        grad_x = softmax_backward(out, grad_out)
        return grad_x


@torch.library.triton_op("softmax::forward", mutates_args=())
def forward_op(x: torch.Tensor) -> torch.Tensor:
    """`softmax_forward` as an op."""
    return softmax_forward(x, traced)


@torch.library.triton_op("softmax::backward", mutates_args=())
def backward_op(out: torch.Tensor, grad_out: torch.Tensor) -> torch.Tensor:
    """`softmax_backward` as an op."""
    return softmax_backward(out, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python softmax.py`, benchmark: `python softmax.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    x = spread(0, -3.81, 3.84, 3, 1056).to(dtype=torch.float32).requires_grad_()
    return (x,)


RECORDED = {
    "output 0": [1.43727, 1.46206, 1.56317, 1.50961, 1.52511, 1.42393, 1.49902, 1.50408],
    "the gradient of `x`": [0.00422244, 0.0310845, -0.0172073, 0.0226827, 0.0116224, 0.0309816, 0.00128591, 0.0249604],
}
"""What `softmax` gave for these inputs when this was written: weighted sums."""


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
    outputs = Softmax.apply(*given)
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
    print(f"Softmax: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0,)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Softmax needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Softmax: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
