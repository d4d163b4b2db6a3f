"""`Swiglu`: SiLU of one half times the other.

Written by pullback from `swiglu`, and yours: it needs torch and triton, nothing else.
`Swiglu.apply(gate, up)` runs it. Run this file to test it, with --bench to measure it.
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
def swiglu_forward_kernel(
    gate_ptr, up_ptr, out_ptr, gate_row, gate_col, up_row, up_col, n_cols, n_rows,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    gate = tl.load(
        gate_ptr + row * gate_row + col * gate_col, mask=inside, other=0.0
    ).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + col * up_col, mask=inside, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * n_cols + col, out, mask=inside)


@triton.autotune(configs(({}, 4), ({}, 8)), key=["n_cols"], **TUNED)
@triton.jit
def swiglu_backward_kernel(
    grad_out_ptr, up_ptr, gate_ptr, grad_gate_ptr, grad_up_ptr, grad_out_row, grad_out_col,
    up_row, up_col, gate_row, gate_col, n_cols, n_rows, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    # Each program computes a tile of ROWS rows and COLS columns.
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    col = (tl.program_id(1).to(tl.int64) * COLS + tl.arange(0, COLS))[None, :]
    inside = (row < n_rows) & (col < n_cols)
    grad_out = tl.load(
        grad_out_ptr + row * grad_out_row + col * grad_out_col, mask=inside, other=0.0
    ).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + col * up_col, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(
        gate_ptr + row * gate_row + col * gate_col, mask=inside, other=0.0
    ).to(tl.float32)
    s = tl.sigmoid(gate)
    g_scaled = grad_out * up * s * (gate * (1 - s) + 1)
    tl.store(grad_gate_ptr + row * n_cols + col, g_scaled, mask=inside)
    grad_up = grad_out * (gate * tl.sigmoid(gate))
    tl.store(grad_up_ptr + row * n_cols + col, grad_up, mask=inside)


def swiglu_forward(gate, up, launch=direct):
    """The output."""
    out = torch.empty(
        (gate.shape[0], gate.shape[1]), dtype=torch.bfloat16, device=gate.device
    )
    ROWS, COLS = tile(gate.shape[1])
    grid = (triton.cdiv(gate.shape[0], ROWS), triton.cdiv(gate.shape[1], COLS))
    launch(swiglu_forward_kernel, grid)(
        gate,
        up,
        out,
        gate.stride(0),
        gate.stride(1),
        up.stride(0),
        up.stride(1),
        gate.shape[1],
        gate.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return out


def swiglu_backward(gate, up, grad_out, launch=direct):
    """The gradients, from what forward kept."""
    grad_gate = torch.empty(
        (gate.shape[0], gate.shape[1]), dtype=torch.bfloat16, device=gate.device
    )
    grad_up = torch.empty(
        (gate.shape[0], gate.shape[1]), dtype=torch.bfloat16, device=gate.device
    )
    ROWS, COLS = tile(gate.shape[1])
    grid = (triton.cdiv(gate.shape[0], ROWS), triton.cdiv(gate.shape[1], COLS))
    launch(swiglu_backward_kernel, grid)(
        grad_out,
        up,
        gate,
        grad_gate,
        grad_up,
        grad_out.stride(0),
        grad_out.stride(1),
        up.stride(0),
        up.stride(1),
        gate.stride(0),
        gate.stride(1),
        gate.shape[1],
        gate.shape[0],
        ROWS=ROWS,
        COLS=COLS,
    )
    return grad_gate, grad_up


class Swiglu(torch.autograd.Function):
    """`swiglu` in Triton; nothing besides inputs kept for backward."""

    @staticmethod
    def forward(ctx, gate, up):
        require(gate, "gate", torch.bfloat16, (gate.shape[0], gate.shape[1]))
        require(up, "up", torch.bfloat16, (gate.shape[0], gate.shape[1]))
        out = swiglu_forward(gate, up)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = swiglu_backward(gate, up, grad_out)
        return grad_gate, grad_up


@torch.library.triton_op("swiglu::forward", mutates_args=())
def forward_op(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`swiglu_forward` as an op."""
    return swiglu_forward(gate, up, traced)


@torch.library.triton_op("swiglu::backward", mutates_args=())
def backward_op(
    gate: torch.Tensor, up: torch.Tensor, grad_out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`swiglu_backward` as an op."""
    return swiglu_backward(gate, up, grad_out, traced)


def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")


# ---- self-test: `python swiglu.py`, benchmark: `python swiglu.py --bench` ----


def spread(start, low, high, *shape):
    """Numbers between two, far from each other, and the same on every machine."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    places = (0.38196601125 * (start + 1) + 0.61803398875 * places) % 1
    return (low + (high - low) * places).reshape(shape)


def inputs():
    """Inputs like those that this was written for."""
    gate = spread(0, -2.92, 2.27, 6, 40).to(dtype=torch.bfloat16).requires_grad_()
    up = spread(1, -2.92, 2.27, 6, 40).to(dtype=torch.bfloat16).requires_grad_()
    return gate, up


RECORDED = {
    "output 0": [-72.9845, -83.8659, -74.9791, -77.4981, -78.1896, -85.7884, -85.7297, -80.7624],
    "the gradient of `gate`": [-1.94796, -37.7423, -23.4381, -6.40025, -13.927, -27.6602, -6.81227, -14.1936],
    "the gradient of `up`": [4.77369, 15.029, 4.82997, 6.00167, 9.19971, 8.98711, 4.25574, 13.9099],
}
"""What `swiglu` gave for these inputs when this was written: weighted sums."""


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
    outputs = Swiglu.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {f"output {i}": y for i, y in enumerate(outputs)}
    wanted = {n: x for n, x in zip(('gate', 'up'), given) if x.requires_grad}
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
    print(f"Swiglu: {taken:.3f} ms, {times:.2f} times the time to move its bytes")


GROWS = (0, 0)
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("Swiglu needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("Swiglu: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
