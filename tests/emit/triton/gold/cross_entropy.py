"""`CrossEntropy`: Cross-entropy with labels that are ignored.

Written by pullback from `cross_entropy`, and yours: it needs torch and triton, nothing
else.
`CrossEntropy.apply(logits, target)` runs it. Run this file to test it, with --bench to
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


def tile(n_cols, most=1024):
    """How many rows and columns a program takes at once where each element stands alone."""
    cols = min(triton.next_power_of_2(max(n_cols, 1)), most)
    return max(1, 2048 // cols), cols


@triton.autotune(configs(({"BLOCK": 4096}, 4), ({"BLOCK": 8192}, 8), ({"BLOCK": 2048}, 4)), key=["n_cols"], **TUNED)
@triton.jit
def cross_entropy_forward_kernel(
    logits_ptr, target_ptr, lse_ptr, out_total_parts_ptr, count_parts_ptr, logits_row,
    logits_col, target_row, n_cols, BLOCK: tl.constexpr,
):
    # Each program computes one row, BLOCK columns at a time.
    row = tl.program_id(0).to(tl.int64)
    largest = -float("inf")
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = col < n_cols
        logits = tl.load(
            logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0
        ).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(tl.where(inside, logits, -float("inf")), 0))
        shift = tl.where(
            new_largest == -float("inf"), 0.0, new_largest
        )  # a row of -inf alone adds 0
        total = total * tl.exp(largest - shift)
        total += tl.sum(tl.where(inside, tl.exp(logits - shift), 0.0), 0)
        largest = new_largest
    target = tl.load(target_ptr + row * target_row)
    mask = target == -100
    classes = tl.where(mask, 0, target)
    logits_there = tl.load(
        logits_ptr + row * logits_row + classes * logits_col,
        mask=(classes >= 0) & (classes < n_cols),
        other=0.0,
    ).to(tl.float32)
    lse = largest + tl.log(total)
    out_total_sum = tl.where(mask, 0, -(logits_there - lse))
    counts = target != -100
    count_sum = counts.to(tl.float32)
    tl.store(lse_ptr + row, lse)
    tl.store(out_total_parts_ptr + row, out_total_sum)
    tl.store(count_parts_ptr + row, count_sum)


@triton.jit
def cross_entropy_forward_sums(
    out_total_parts_ptr, count_parts_ptr, out_ptr, count_ptr, n_parts, PARTS: tl.constexpr,
):
    # Adds up what the programs of `cross_entropy_forward_kernel` wrote, all per program,
    # always in the same order.
    out_total = tl.zeros((PARTS,), tl.float32)
    count = tl.zeros((PARTS,), tl.float32)
    for start in range(0, n_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        out_total += tl.load(out_total_parts_ptr + part, mask=part < n_parts, other=0.0)
        count += tl.load(count_parts_ptr + part, mask=part < n_parts, other=0.0)
    out_total = tl.sum(out_total, 0)
    count = tl.sum(count, 0)
    out = out_total / count
    tl.store(out_ptr, out)
    tl.store(count_ptr, count)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def cross_entropy_backward_kernel(
    target_ptr, grad_out_ptr, count_ptr, logits_ptr, lse_ptr, grad_logits_ptr, target_row,
    logits_row, logits_col, n_cols, n_rows, ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    in_rows = row < n_rows
    inside = in_rows & (col < n_cols)
    grad_out = tl.load(grad_out_ptr)
    count = tl.load(count_ptr)
    target = tl.load(target_ptr + row * target_row, mask=in_rows, other=0)
    mask = target == -100
    g_masked = tl.where(mask, 0, -(grad_out / count))
    g_masked_1 = tl.where(col == tl.where(mask, 0, target), g_masked, 0.0)
    logits = tl.load(
        logits_ptr + row * logits_row + col * logits_col, mask=inside, other=0.0
    ).to(tl.float32)
    lse = tl.load(lse_ptr + row, mask=in_rows, other=0.0)
    diff = logits - lse
    tl.store(
        grad_logits_ptr + row * n_cols + col, g_masked_1 - tl.exp(diff) * g_masked, mask=inside
    )


def cross_entropy_forward(logits, target, launch=direct):
    """The output, and what backward reads: lse, count."""
    out = torch.empty((), dtype=torch.float32, device=logits.device)
    lse = torch.empty((logits.shape[0], 1), dtype=torch.float32, device=logits.device)
    count = torch.empty((), dtype=torch.float32, device=logits.device)
    programs = (logits.shape[0],)
    out_total_parts = torch.empty((programs[0],), dtype=torch.float32, device=logits.device)
    count_parts = torch.empty((programs[0],), dtype=torch.float32, device=logits.device)
    launch(cross_entropy_forward_kernel, programs)(
        logits,
        target,
        lse,
        out_total_parts,
        count_parts,
        logits.stride(0),
        logits.stride(1),
        target.stride(0),
        logits.shape[1],
    )
    n_parts = out_total_parts.shape[0]
    launch(cross_entropy_forward_sums, (1,))(
        out_total_parts, count_parts, out, count, n_parts, PARTS=1024, num_warps=4
    )
    return out, lse, count


def cross_entropy_backward(logits, target, lse, count, grad_out, launch=direct):
    """The gradient, from what forward kept."""
    grad_logits = torch.empty(
        (logits.shape[0], logits.shape[1]), dtype=torch.bfloat16, device=logits.device
    )
    ROWS, COLS = tile(logits.shape[1])
    grid = (triton.cdiv(logits.shape[0], ROWS), triton.cdiv(logits.shape[1], COLS))
    launch(cross_entropy_backward_kernel, grid)(
        target,
        grad_out,
        count,
        logits,
        lse,
        grad_logits,
        target.stride(0),
        logits.stride(0),
        logits.stride(1),
        logits.shape[1],
        logits.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_logits


class CrossEntropy(torch.autograd.Function):
    """`cross_entropy` in Triton; `lse`, `count` kept for backward."""

    @staticmethod
    def forward(ctx, logits, target):
        require(logits, "logits", torch.bfloat16, (logits.shape[0], logits.shape[1]))
        require(target, "target", torch.int64, (logits.shape[0],))
        out, lse, count = cross_entropy_forward(logits, target)
        ctx.save_for_backward(logits, target, lse, count)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        logits, target, lse, count = ctx.saved_tensors
        grad_logits = cross_entropy_backward(logits, target, lse, count, grad_out)
        return grad_logits, None


@torch.library.triton_op("cross_entropy::forward", mutates_args=())
def forward_op(
    logits: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`cross_entropy_forward` as an op."""
    return cross_entropy_forward(logits, target, traced)


@torch.library.triton_op("cross_entropy::backward", mutates_args=())
def backward_op(
    logits: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    count: torch.Tensor,
    grad_out: torch.Tensor,
) -> torch.Tensor:
    """`cross_entropy_backward` as an op."""
    return cross_entropy_backward(logits, target, lse, count, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python cross_entropy.py`, benchmark: `python cross_entropy.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    logits = spread(0, -4.66, 4.16, 4, 33000).to(dtype=torch.bfloat16).requires_grad_()
    target = torch.tensor([0, -100, 14, 21], dtype=torch.int64)
    return logits, target


RECORDED = {
    "output 0": [12.9704, 0, 0, 0, 0, 0, 0, 0],
    "the gradient of `logits`": [-0.0831425, -0.166553, 0, 0, 0.24989, -0.166586, 0.416961, -0.166566],
}
"""What `cross_entropy` gave for these inputs when this was written: weighted sums."""


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
    outputs = CrossEntropy.apply(*given)
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
    print(f"CrossEntropy: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("CrossEntropy needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("CrossEntropy: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
