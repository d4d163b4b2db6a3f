"""`ZLoss`: Cross-entropy, and the square of the logarithm of the partition function.

Written by pullback from `z_loss`, and yours: it needs torch and triton, nothing else.
`ZLoss.apply(logits, target)` runs it. Run this file to test it, with --bench to measure
it. Without a GPU, set TRITON_INTERPRET=1.
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


def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def z_loss_forward_kernel(
    logits_ptr, target_ptr, total_ptr, out_parts_ptr, logits_row, logits_col, target_row,
    n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes ROWS rows, which it holds whole.
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = tl.arange(0, COLS).to(tl.int64)[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    logits = tl.load(logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0)
    largest = tl.max(tl.where(inside, logits, -float("inf")), 1, keep_dims=True)
    masked = tl.where(tl.abs(largest) == float("inf"), 0.0, largest)
    sum_ = tl.sum(tl.where(inside, tl.exp(logits - masked), 0.0), 1, keep_dims=True)
    total = masked + tl.log(sum_)
    target = tl.load(target_ptr + row * target_row, mask=in_rows, other=0)
    place = tl.maximum(target, 0, propagate_nan=tl.PropagateNan.ALL)
    logits_there = tl.load(
        logits_ptr + row * logits_row + place * logits_col,
        mask=in_rows & ((place >= 0) & (place < n_cols)),
        other=0.0,
    )
    out_sum = tl.where(in_rows, total - logits_there + total * 0.0001 * total, 0.0)
    tl.store(total_ptr + row, total, mask=in_rows)
    tl.store(out_parts_ptr + program, tl.sum(tl.sum(out_sum, 1), 0))


@triton.jit
def z_loss_forward_sums(out_parts_ptr, out_ptr, n_parts, count, PARTS: tl.constexpr):
    # Adds up what the programs of `z_loss_forward_kernel` wrote, all per program, always
    # in the same order.
    out = tl.zeros((PARTS,), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        out += tl.load(out_parts_ptr + part, mask=part < n_parts, other=0.0)
    out = tl.sum(out, 0) / count
    tl.store(out_ptr, out)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def z_loss_backward_kernel(
    target_ptr, grad_out_ptr, total_ptr, logits_ptr, grad_logits_ptr, target_row, logits_row,
    logits_col, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    grad_out = tl.load(grad_out_ptr)
    g_ratio = grad_out / n_rows
    g_neg = -g_ratio
    target = tl.load(target_ptr + row * target_row, mask=in_rows, other=0)
    mask = col == tl.maximum(target, 0, propagate_nan=tl.PropagateNan.ALL)
    total = tl.load(total_ptr + row, mask=in_rows, other=0.0)
    grad_lse = g_ratio * (total * 0.0001) + g_ratio * total * 0.0001 + g_ratio
    logits = tl.load(logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0)
    grad_logits = tl.where(mask, g_neg, 0.0) + grad_lse * tl.exp(logits - total)
    tl.store(grad_logits_ptr + row * n_cols + col, grad_logits, mask=inside)


def z_loss_forward(logits, target, launch=direct):
    """The output, and what backward reads: total."""
    out = torch.empty((), dtype=torch.float32, device=logits.device)
    total = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    ROWS, COLS = row_tile(logits.shape[1])
    programs = (triton.cdiv(logits.shape[0], ROWS),)
    out_parts = torch.empty((programs[0],), dtype=torch.float32, device=logits.device)
    launch(z_loss_forward_kernel, programs)(
        logits,
        target,
        total,
        out_parts,
        logits.stride(0),
        logits.stride(1),
        target.stride(0),
        logits.shape[1],
        logits.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    n_parts = out_parts.shape[0]
    launch(z_loss_forward_sums, (1,))(
        out_parts, out, n_parts, logits.shape[0], PARTS=1024, num_warps=4
    )
    return out, total


def z_loss_backward(logits, target, total, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_logits = torch.empty(
        (logits.shape[0], logits.shape[1]), dtype=torch.float32, device=logits.device
    )
    ROWS, COLS = tile(logits.shape[1])
    grid = (triton.cdiv(logits.shape[0], ROWS), triton.cdiv(logits.shape[1], COLS))
    launch(z_loss_backward_kernel, grid)(
        target,
        grad_out,
        total,
        logits,
        grad_logits,
        target.stride(0),
        logits.stride(0),
        logits.stride(1),
        logits.shape[0],
        logits.shape[1],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_logits


class ZLoss(torch.autograd.Function):
    """`z_loss` in Triton; `total` kept for backward."""

    @staticmethod
    def forward(ctx, logits, target):
        require(logits, "logits", torch.float32, (logits.shape[0], logits.shape[1]))
        require(target, "target", torch.int64, (logits.shape[0],))
        out, total = z_loss_forward(logits, target)
        ctx.save_for_backward(logits, target, total)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        logits, target, total = ctx.saved_tensors
        grad_logits = z_loss_backward(logits, target, total, grad_out)
        return grad_logits, None


@torch.library.triton_op("z_loss::forward", mutates_args=())
def forward_op(
    logits: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`z_loss_forward` as an op."""
    return z_loss_forward(logits, target, traced)


@torch.library.triton_op("z_loss::backward", mutates_args=())
def backward_op(
    logits: torch.Tensor, target: torch.Tensor, total: torch.Tensor, grad_out: torch.Tensor
) -> torch.Tensor:
    """`z_loss_backward` as an op."""
    return z_loss_backward(logits, target, total, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python z_loss.py`, benchmark: `python z_loss.py --bench` ----


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
    "output 0": [5.88903, 0, 0, 0, 0, 0, 0, 0],
    "the gradient of `logits`": [-0.0495408, -0.111307, 0.0335428, -0.0823997, 0.0742264, -0.146416, 0.0762705, -0.115698],
}
"""What `z_loss` gave for these inputs when this was written: weighted sums."""


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
    outputs = ZLoss.apply(*given)
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
    print(f"ZLoss: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("ZLoss needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("ZLoss: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
