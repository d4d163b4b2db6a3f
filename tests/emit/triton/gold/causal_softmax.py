"""`CausalSoftmax`: Softmax of scaled scores where the mask allows.

Written by pullback from `causal_softmax`, and yours: it needs torch and triton, nothing
else.
`CausalSoftmax.apply(scores, mask)` runs it. Run this file to test it, with --bench to
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


def row_tile(n_cols):
    """How many whole rows a program takes at once, and of which width."""
    cols = triton.next_power_of_2(max(n_cols, 1))
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def causal_softmax_forward_kernel(
    scores_ptr, mask_ptr, out_ptr, scores_row, scores_col, mask_row, mask_col, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    inside = (row < n_rows) & (col < n_cols)
    scores = tl.load(scores_ptr + row * scores_row + col * scores_col, mask=inside, other=0.0)
    mask = tl.load(mask_ptr + row * mask_row + col * mask_col, mask=inside, other=0.0)
    masked = tl.where(mask == 0, -float("inf"), scores * 0.125)
    largest = tl.max(tl.where(inside, masked, -float("inf")), 1, keep_dims=True)
    e = tl.exp(masked - largest)
    out = e / tl.sum(tl.where(inside, e, 0.0), 1, keep_dims=True)
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def causal_softmax_backward_kernel(
    out_ptr, grad_out_ptr, mask_ptr, grad_scores_ptr, out_row, out_col, grad_out_row,
    grad_out_col, mask_row, mask_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    inside = (row < n_rows) & (col < n_cols)
    out = tl.load(out_ptr + row * out_row + col * out_col, mask=inside, other=0.0)
    grad_out = tl.load(
        grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
    )
    g_scaled = out * (grad_out - tl.sum(grad_out * out, 1, keep_dims=True))
    mask = tl.load(mask_ptr + row * mask_row + col * mask_col, mask=inside, other=0.0)
    grad_scores = tl.where(mask == 0, 0, g_scaled) * 0.125
    tl.store(grad_scores_ptr + row * n_cols + col, grad_scores, mask=inside)


def causal_softmax_forward(scores, mask, launch=direct):
    """The output."""
    out = torch.empty(
        (scores.shape[0], scores.shape[1]), dtype=torch.float32, device=scores.device
    )
    ROWS, COLS = row_tile(scores.shape[1])
    grid = (triton.cdiv(scores.shape[0], ROWS),)
    launch(causal_softmax_forward_kernel, grid)(
        scores,
        mask,
        out,
        scores.stride(0),
        scores.stride(1),
        mask.stride(0),
        mask.stride(1),
        scores.shape[1],
        scores.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out


def causal_softmax_backward(mask, out, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_scores = torch.empty(
        (mask.shape[0], mask.shape[1]), dtype=torch.float32, device=mask.device
    )
    ROWS, COLS = row_tile(mask.shape[1])
    grid = (triton.cdiv(mask.shape[0], ROWS),)
    launch(causal_softmax_backward_kernel, grid)(
        out,
        grad_out,
        mask,
        grad_scores,
        out.stride(0),
        out.stride(1),
        grad_out.stride(0),
        grad_out.stride(1),
        mask.stride(0),
        mask.stride(1),
        mask.shape[1],
        mask.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_scores


class CausalSoftmax(torch.autograd.Function):
    """`causal_softmax` in Triton; `out` kept for backward."""

    @staticmethod
    def forward(ctx, scores, mask):
        require(scores, "scores", torch.float32, (scores.shape[0], scores.shape[1]))
        require(mask, "mask", torch.float32, (scores.shape[0], scores.shape[1]))
        out = causal_softmax_forward(scores, mask)
        ctx.save_for_backward(mask, out)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        mask, out = ctx.saved_tensors
        grad_scores = causal_softmax_backward(mask, out, grad_out)
        return grad_scores, None


@torch.library.triton_op("causal_softmax::forward", mutates_args=())
def forward_op(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`causal_softmax_forward` as an op."""
    return causal_softmax_forward(scores, mask, traced)


@torch.library.triton_op("causal_softmax::backward", mutates_args=())
def backward_op(
    mask: torch.Tensor, out: torch.Tensor, grad_out: torch.Tensor
) -> torch.Tensor:
    """`causal_softmax_backward` as an op."""
    return causal_softmax_backward(mask, out, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python causal_softmax.py`, benchmark: `python causal_softmax.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    scores = spread(0, -2.12, 2.41, 6, 24).to(dtype=torch.float32).requires_grad_()
    mask = spread(1, 0.0, 1.0, 6, 24).to(dtype=torch.float32)
    return scores, mask


RECORDED = {
    "output 0": [2.72247, 3.13763, 2.86681, 2.95698, 3.07344, 2.72479, 3.19394, 2.77893],
    "the gradient of `scores`": [0.00596575, -0.00327847, -0.00279114, 0.00154716, -0.00577022, 0.0276652, -0.0303972, 0.0161792],
}
"""What `causal_softmax` gave for these inputs when this was written: weighted sums."""


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
    outputs = CausalSoftmax.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('scores', 'mask'), given) if x.requires_grad}
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
    print(f"CausalSoftmax: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("CausalSoftmax needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("CausalSoftmax: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
