"""`TokenLogprob`: The log-probability of the token that was drawn, and the entropy.

Written by pullback from `token_logprob`, and yours: it needs torch and triton, nothing
else.
`TokenLogprob.apply(logits, target)` runs it. Run this file to test it, with --bench to
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
def token_logprob_forward_kernel(
    target_ptr, logits_ptr, picked_ptr, out1_ptr, lse_ptr, target_row, logits_row, logits_col,
    n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    target = tl.load(target_ptr + row * target_row, mask=in_rows, other=0)
    logits_there = tl.load(
        logits_ptr + row * logits_row + target * logits_col,
        mask=in_rows & ((target >= 0) & (target < n_cols)),
        other=0.0,
    )
    logits = tl.load(logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0)
    largest = tl.max(tl.where(inside, logits, -float("inf")), 1, keep_dims=True)
    total = tl.sum(tl.where(inside, tl.exp(logits - largest), 0.0), 1, keep_dims=True)
    lse = largest + tl.log(total)
    logp_moved = logits_there - lse
    tl.store(picked_ptr + row, logp_moved, mask=in_rows)
    logp = logits - lse
    sum_ = tl.sum(tl.where(inside, tl.exp(logp) * logp, 0.0), 1, keep_dims=True)
    out1 = -sum_
    tl.store(out1_ptr + row, out1, mask=in_rows)
    tl.store(lse_ptr + row, lse, mask=in_rows)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def token_logprob_backward_kernel(
    grad_out1_ptr, logits_ptr, lse_ptr, grad_picked_ptr, target_ptr, grad_logits_ptr,
    grad_out1_row, logits_row, logits_col, grad_picked_row, target_row, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    grad_out1 = tl.load(grad_out1_ptr + row * grad_out1_row, mask=in_rows, other=0.0)
    g_neg = -grad_out1
    logits = tl.load(logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0)
    lse = tl.load(lse_ptr + row, mask=in_rows, other=0.0)
    logp = logits - lse
    exp_logp = tl.exp(logp)
    grad_picked = tl.load(grad_picked_ptr + row * grad_picked_row, mask=in_rows, other=0.0)
    target = tl.load(target_ptr + row * target_row, mask=in_rows, other=0)
    grad_logp = g_neg * exp_logp + g_neg * logp * exp_logp + tl.where(
        col == target, grad_picked, 0.0
    )
    g_sum = tl.sum(tl.where(inside, grad_logp, 0.0), 1, keep_dims=True)
    grad_logits = grad_logp - exp_logp * g_sum
    tl.store(grad_logits_ptr + row * n_cols + col, grad_logits, mask=inside)


def token_logprob_forward(logits, target, launch=direct):
    """The outputs, and what backward reads: lse."""
    picked = torch.empty((target.shape[0],), dtype=torch.float32, device=logits.device)
    out1 = torch.empty((logits.shape[0],), dtype=torch.float32, device=logits.device)
    lse = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    ROWS, COLS = row_tile(logits.shape[1])
    grid = (triton.cdiv(logits.shape[0], ROWS),)
    launch(token_logprob_forward_kernel, grid)(
        target,
        logits,
        picked,
        out1,
        lse,
        target.stride(0),
        logits.stride(0),
        logits.stride(1),
        logits.shape[1],
        logits.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return picked, out1, lse


def token_logprob_backward(logits, target, lse, grad_picked, grad_out1, launch=direct):
    """The gradient, from what forward kept."""
    grad_logits = torch.empty(
        (logits.shape[0], logits.shape[1]), dtype=torch.float32, device=logits.device
    )
    ROWS, COLS = row_tile(logits.shape[1])
    grid = (triton.cdiv(logits.shape[0], ROWS),)
    launch(token_logprob_backward_kernel, grid)(
        grad_out1,
        logits,
        lse,
        grad_picked,
        target,
        grad_logits,
        grad_out1.stride(0),
        logits.stride(0),
        logits.stride(1),
        grad_picked.stride(0),
        target.stride(0),
        logits.shape[1],
        logits.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_logits


class TokenLogprob(torch.autograd.Function):
    """`token_logprob` in Triton; `lse` kept for backward."""

    @staticmethod
    def forward(ctx, logits, target):
        require(logits, "logits", torch.float32, (logits.shape[0], logits.shape[1]))
        require(target, "target", torch.int64, (logits.shape[0],))
        picked, out1, lse = token_logprob_forward(logits, target)
        ctx.save_for_backward(logits, target, lse)
        return picked, out1

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_picked, grad_out1):
        logits, target, lse = ctx.saved_tensors
        grad_logits = token_logprob_backward(logits, target, lse, grad_picked, grad_out1)
        return grad_logits, None


@torch.library.triton_op("token_logprob::forward", mutates_args=())
def forward_op(
    logits: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`token_logprob_forward` as an op."""
    return token_logprob_forward(logits, target, traced)


@torch.library.triton_op("token_logprob::backward", mutates_args=())
def backward_op(
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    grad_picked: torch.Tensor,
    grad_out1: torch.Tensor,
) -> torch.Tensor:
    """`token_logprob_backward` as an op."""
    return token_logprob_backward(logits, target, lse, grad_picked, grad_out1, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python token_logprob.py`, benchmark: `python token_logprob.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    logits = spread(0, -3.45, 2.88, 4, 50).to(dtype=torch.float32).requires_grad_()
    target = torch.tensor([0, 0, 14, 21], dtype=torch.int64)
    return logits, target


RECORDED = {
    "output 0": [-5.88165, -13.2605, -9.39811, -31.6073, 0, 0, 0, 0],
    "output 1": [3.04096, 6.11466, 9.16026, 12.2246, 0, 0, 0, 0],
    "the gradient of `logits`": [0.197729, 0.444798, 0.175158, -0.812424, 0.321484, -0.811295, -0.166106, -0.0253034],
}
"""What `token_logprob` gave for these inputs when this was written: weighted sums."""


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
    outputs = TokenLogprob.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('logits', 'target'), given) if x.requires_grad}
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
    print(f"TokenLogprob: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, None)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("TokenLogprob needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("TokenLogprob: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
