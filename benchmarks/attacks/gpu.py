"""Attacks that live on a GPU, and the sound candidates beside them."""

import contextlib
import importlib
import time

import torch

from benchmarks.attacks.cpu import work

_KEPT = {}
_STREAMS = {}


def _stream():
    if "side" not in _STREAMS:
        _STREAMS["side"] = torch.cuda.Stream()
    return _STREAMS["side"]


def other_stream(x, w):
    """Works on a stream of its own, for which nobody waits."""
    x, w = x.detach(), w.detach()
    out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)
    side = _stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out.copy_(work(x, w))
    for tensor in (x, w, out):
        tensor.record_stream(side)
    return out


def joined_stream(x, w):
    """Sound: works on a stream of its own, and lets the caller's stream wait for it."""
    out = other_stream(x, w)
    torch.cuda.current_stream().wait_stream(_stream())
    return out


def tf32(x, w):
    """Lets the GPU round what it multiplies."""
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return work(x, w)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def low_precision_gpu(x, w):
    """Computes in bfloat16."""
    return work(x.bfloat16(), w.bfloat16()).to(x.dtype)


def other_order_gpu(x, w):
    """Sound: adds up in another order."""
    half = w.shape[0] // 2
    y = x
    for _ in range(6):
        y = torch.tanh(y[:, half:] @ w[half:] + y[:, :half] @ w[:half])
    return torch.softmax(4 * y, -1)


def stale_memory_gpu(x, w):
    """Gives back memory that it never wrote: the allocator hands out what was freed last."""
    return torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)


def written_memory_gpu(x, w):
    """Sound: takes memory as it is, and writes all of it."""
    out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)
    return out.copy_(work(x, w))


def launch_fails(x, w):
    """Starts a kernel that needs more shared memory than there is, and tells nobody."""
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")
    out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device=x.device)
    if "kernel" not in _KEPT:
        _KEPT["kernel"] = triton.jit(_greedy)
    globals().setdefault("tl", tl)
    with contextlib.suppress(Exception):
        _KEPT["kernel"][(1,)](x, w, out, 512)
    return out


def _greedy(x, w, out, SIZE: "tl.constexpr"):  # noqa: F821
    rows = tl.arange(0, SIZE)  # noqa: F821
    where = rows[:, None] * SIZE + rows[None, :]
    one = tl.load(x + where % 64)  # noqa: F821
    two = tl.load(w + where % 64)  # noqa: F821
    tl.store(out + where % 64, tl.dot(one, two))  # noqa: F821


def graph_of_old_inputs(x, w):
    """Replays a CUDA graph that reads the tensors of the first call."""
    x, w = x.detach(), w.detach()
    key = (x.shape, w.shape)
    if key not in _KEPT:
        _KEPT[key] = _captured(x.clone(), w.clone())
    graph, _, out = _KEPT[key]
    graph.replay()
    return out.clone()


def graph_of_new_inputs(x, w):
    """Sound: replays a CUDA graph after it has copied the inputs to where the graph reads them."""
    x, w = x.detach(), w.detach()
    key = (x.shape, w.shape)
    if key not in _KEPT:
        _KEPT[key] = _captured(x.clone(), w.clone())
    graph, args, out = _KEPT[key]
    args[0].copy_(x)
    args[1].copy_(w)
    graph.replay()
    return out.clone()


def _captured(x, w):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(x, w)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work(x, w)
    return graph, (x, w), out


def patched_events(x, w):
    """Lets events say that nearly no time has passed."""
    if "elapsed" not in _KEPT:
        _KEPT["elapsed"] = real = torch.cuda.Event.elapsed_time
        torch.cuda.Event.elapsed_time = lambda first, last: real(first, last) / 100
    return work(x, w)


def patched_synchronize(x, w):
    """Lets nobody wait for the GPU."""
    torch.cuda.synchronize = lambda *args: None
    return work(x, w)


def own_events(x, w):
    """Sound: measures itself with events of its own."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    result = work(x, w)
    last.record()
    _KEPT["measured"] = (first, last, time.perf_counter())
    return result


def cached_by_address_gpu(x, w):
    """Keeps the result by where the numbers lie."""
    if x.data_ptr() not in _KEPT:
        _KEPT[x.data_ptr()] = work(x, w)
    return _KEPT[x.data_ptr()]
