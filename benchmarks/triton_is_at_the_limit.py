"""Emitted Triton kernels take little more time than to move their bytes once.

Each program is plain PyTorch. It is emitted with `pb.emit(f, "triton")`, and its forward and
backward are timed beside eager PyTorch, `torch.compile` and Liger's hand-written kernels, as
multiples of the *limit*: the bytes that must be read and written, at the speed of a copy.

    python benchmarks/triton_is_at_the_limit.py [--only NAMES] [--peers PEERS] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

HALF = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """A program, its inputs, how many of its largest tensors must be moved, and its goal."""

    program: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    moves: float
    goal: float
    liger: Callable[..., Any] | None = None


# ---- programs ----


def rms_norm(x, weight):
    """Root mean square normalisation, as Llama writes it."""
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * rstd).to(x.dtype) * weight


def add_rms_norm(x, residual, weight):
    """A residual added, the sum kept, and normalised."""
    h = x + residual
    rstd = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h.float() * rstd).to(x.dtype) * weight, h


def layer_norm(x, weight, bias):
    """Layer normalisation."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-6)


def softmax(x):
    """Softmax of rows."""
    return torch.softmax(x, -1)


def cross_entropy(logits, target):
    """Cross-entropy of bfloat16 logits."""
    return F.cross_entropy(logits.float(), target)


def kl_div(logp, q):
    """Kullback-Leibler divergence."""
    return F.kl_div(logp, q, reduction="batchmean")


def dyt(x, alpha, weight, bias):
    """Dynamic tanh."""
    return torch.tanh(alpha * x) * weight + bias


def bias_gelu(x, bias):
    """A bias and the exact GELU."""
    return F.gelu(x + bias)


def swiglu(a, b):
    """SiLU times a gate."""
    return F.silu(a) * b


def geglu(a, b):
    """GELU times a gate."""
    return F.gelu(a, approximate="tanh") * b


def group_norm(x, weight, bias):
    """Group normalisation, 32 groups."""
    return F.group_norm(x, 32, weight, bias, 1e-6)


def rope(q, k, cos, sin):
    """Rotary embedding of q and k, which are views of another layout."""
    half = q.shape[-1] // 2
    turned_q = torch.cat((-q[..., half:], q[..., :half]), -1)
    turned_k = torch.cat((-k[..., half:], k[..., :half]), -1)
    return q * cos + turned_q * sin, k * cos + turned_k * sin


# ---- Liger's, where they can be imported ----


def _liger(path: str, call: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any] | None:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(__import__(f"liger_kernel.ops.{module}", fromlist=[name]), name)
    except Exception:  # any: not installed, or for another Triton
        return None
    return call(found)


def _draw(*shape: int, grad: bool = True, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(grad)


def _cases(rows: int) -> dict[str, Case]:
    n, h, v, m = rows, 4096, 32768, 11008
    heads = _draw
    return {
        "rms_norm": Case(
            rms_norm,
            lambda: (_draw(n, h), _draw(h)),
            5,
            1.15,
            _liger(
                "rms_norm.LigerRMSNormFunction",
                lambda f: lambda x, w: f.apply(x, w, 1e-6, 0.0, "llama", False),
            ),
        ),
        "add_rms_norm": Case(add_rms_norm, lambda: (_draw(n, h), _draw(n, h), _draw(h)), 8, 1.15),
        "layer_norm": Case(
            layer_norm,
            lambda: (_draw(n, h), _draw(h), _draw(h)),
            5,
            1.15,
            _liger(
                "layer_norm.LigerLayerNormFunction",
                lambda f: lambda x, w, b: f.apply(x, w, b, 1e-6),
            ),
        ),
        "softmax": Case(
            softmax,
            lambda: (_draw(n, h),),
            5,
            1.05,
            _liger("softmax.LigerSoftmaxFunction", lambda f: f.apply),
        ),
        "cross_entropy": Case(
            cross_entropy,
            lambda: (_draw(n, v), torch.randint(0, v, (n,), device="cuda")),
            3,
            1.10,
            _liger(
                "cross_entropy.LigerCrossEntropyFunction",
                lambda f: lambda z, t: f.apply(z.clone(), t, None)[0],
            ),
        ),
        "kl_div": Case(
            kl_div,
            lambda: (
                torch.log_softmax(
                    _draw(n, v, grad=False, dtype=torch.float32), -1
                ).requires_grad_(),
                torch.softmax(_draw(n, v, grad=False, dtype=torch.float32), -1),
            ),
            4,
            1.10,
            _liger("kl_div.LigerKLDivLossFunction", lambda f: f.apply),
        ),
        "dyt": Case(
            dyt,
            lambda: (_draw(n, h), _draw(1), _draw(h), _draw(h)),
            5,
            1.3,
            _liger("dyt.LigerDyTFunction", lambda f: f.apply),
        ),
        "bias_gelu": Case(bias_gelu, lambda: (_draw(n, h), _draw(h)), 5, 1.3),
        "swiglu": Case(
            swiglu,
            lambda: (_draw(n, m), _draw(n, m)),
            8,
            1.0,
            _liger("swiglu.LigerSiLUMulFunction", lambda f: f.apply),
        ),
        "geglu": Case(
            geglu,
            lambda: (_draw(n, m), _draw(n, m)),
            8,
            1.0,
            _liger("geglu.LigerGELUMulFunction", lambda f: f.apply),
        ),
        "group_norm": Case(
            group_norm,
            lambda: (_draw(max(1, n // 512), 128, 64, 64), _draw(128), _draw(128)),
            5,
            1.3,
        ),
        "rope": Case(
            rope,
            lambda: (
                heads(8, n // 8, 32, 128).transpose(1, 2).detach().requires_grad_(),
                heads(8, n // 8, 8, 128).transpose(1, 2).detach().requires_grad_(),
                _draw(n // 8, 128, grad=False),
                _draw(n // 8, 128, grad=False),
            ),
            4,
            1.2,
        ),
    }


# ---- measuring ----


def _step(function: Callable[..., Any], given: tuple[Any, ...]) -> Callable[[], Any]:
    wanted = [x for x in given if x.requires_grad]
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = [torch.randn_like(y) for y in outputs]

    def step() -> Any:
        made = function(*given)
        made = made if isinstance(made, tuple) else (made,)
        return torch.autograd.grad(made, wanted, cotangents)

    return step


def _worst(
    function: Callable[..., Any], program: Callable[..., Any], given: tuple[Any, ...]
) -> float:
    """How far outputs and gradients are from those of the program, of their size."""
    torch.manual_seed(1)
    a = _step(program, given)()
    torch.manual_seed(1)
    b = _step(function, given)()
    return max(
        ((x.float() - y.float()).norm() / x.float().norm()).item()
        for x, y in zip(a, b, strict=True)
    )


def _host(step: Callable[[], Any], count: int = 300) -> float:
    """Microseconds of Python for one step."""
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        step()
    taken = time.perf_counter() - start
    torch.cuda.synchronize()
    return taken / count * 1e6


def _functions(
    case: Case, given: tuple[Any, ...], peers: list[str]
) -> dict[str, Callable[..., Any]]:
    import pullback as pb

    found: dict[str, Callable[..., Any]] = {}
    if "emitted" in peers:
        space: dict[str, Any] = {"__name__": "emitted"}
        from pullback.function.generated import run_text

        run_text(
            pb.emit(case.program, "triton", examples=given, verify=False),
            f"kernels of {case.program.__name__}",
            space,
        )
        name = next(
            k
            for k, v in space.items()
            if isinstance(v, type) and issubclass(v, torch.autograd.Function)
        )
        found["emitted"] = space[name].apply
    if "eager" in peers:
        found["eager"] = case.program
    if "compile" in peers:
        found["compile"] = torch.compile(case.program, dynamic=False)
    if "tuned" in peers:
        found["tuned"] = torch.compile(
            case.program, dynamic=False, mode="max-autotune-no-cudagraphs"
        )
    if "liger" in peers and case.liger is not None:
        found["liger"] = case.liger
    return found


def _said(result: dict[str, Any]) -> str:
    """One result in words."""
    if "times" not in result:
        return f"FAILED {result['failed']}"
    facts = f"{result['host_us']:.0f} us, err {result.get('error', 0):.1e}"
    facts += f", first {result['first_s']:.1f} s, {result['peak_mib']} MiB"
    return f"{result['times']:.2f} ({facts})"


def main() -> None:
    """Measure, print a row per program, and keep them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--peers", default="emitted,eager,compile,liger")
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--json", default="")
    parser.add_argument("--rounds", type=int, default=0, help="nothing: Triton chooses them")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a GPU")
        return
    from triton.testing import do_bench

    peers = chosen.peers.split(",")
    names = [name for name in chosen.only.split(",") if name]
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(block)
    speed = 2 * block.numel() / do_bench(lambda: other.copy_(block), return_mode="median")
    print(f"{torch.cuda.get_device_name()}: {speed * 1e-6:.0f} GB/s", flush=True)
    rows: dict[str, Any] = {}
    start = time.perf_counter()
    for name, case in _cases(chosen.rows).items():
        if names and name not in names:
            continue
        torch.manual_seed(0)
        given = case.inputs()
        large = max(x.nbytes for x in given if x.requires_grad)
        moved = case.moves * large
        if name == "rope":
            moved = case.moves * sum(x.nbytes for x in given if x.requires_grad)
        limit = moved / speed
        row: dict[str, Any] = {"goal": case.goal, "limit_ms": limit}
        for peer in peers:
            try:
                begun = time.perf_counter()
                found = _functions(case, given, [peer])
                if peer not in found:
                    continue
                step = _step(found[peer], given)
                step()
                torch.cuda.synchronize()
                first = time.perf_counter() - begun
                torch.cuda.reset_peak_memory_stats()
                base = torch.cuda.memory_allocated()
                step()
                peak = torch.cuda.max_memory_allocated() - base
                taken = do_bench(step, warmup=10, rep=60, return_mode="median")
                row[peer] = {
                    "times": round(taken / limit, 3),
                    "ms": round(taken, 4),
                    "first_s": round(first, 2),
                    "peak_mib": round(peak / 2**20),
                    "host_us": round(_host(step, 50 if limit > 0.2 else 300), 1),
                }
                if peer != "eager":
                    row[peer]["error"] = float(f"{_worst(found[peer], case.program, given):.2g}")
            except Exception as error:  # any: a peer that does not run is a row of its own
                row[peer] = {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
            torch._dynamo.reset()
        rows[name] = row
        said = ", ".join(f"{p} {_said(r)}" for p, r in row.items() if isinstance(r, dict))
        taken = time.perf_counter() - start
        print(
            f"{name} (goal {case.goal}, limit {limit:.3f} ms): {said} [{taken:.0f} s]", flush=True
        )
        del given
        torch.cuda.empty_cache()
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "device": torch.cuda.get_device_name(),
                    "gb_s": speed * 1e-6,
                    "torch": torch.__version__,
                    "rows": rows,
                },
                file,
                indent=1,
            )
    print("JSON " + json.dumps(rows))


if __name__ == "__main__":
    sys.exit(main())
