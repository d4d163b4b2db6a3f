"""Attacks that need no GPU, and the sound candidates beside them.

Each function is a candidate for `reference.reference`. A plain harness believes the attacks.
"""

import contextlib
import functools
import gc
import itertools
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import torch
from torch.autograd import Function


def work(x, w):
    """What every candidate has to compute, written in another way than the reference."""
    y = x
    for _ in range(6):
        y = torch.tanh(torch.mm(y, w))
    y = 4 * y
    y = (y - y.amax(-1, keepdim=True)).exp()
    return y / y.sum(-1, keepdim=True)


# ---- results that are kept ----

_KEPT = {}


def cached_by_identity(x, w):
    """Keeps the result by the object that it was called with."""
    if id(x) not in _KEPT:
        _KEPT[id(x)] = (x, work(x, w))
    return _KEPT[id(x)][1]


def cached_by_address(x, w):
    """Keeps the result by where the numbers lie."""
    if x.data_ptr() not in _KEPT:
        _KEPT[x.data_ptr()] = (x, work(x, w))
    return _KEPT[x.data_ptr()][1]


def cached_by_shape(x, w):
    """Keeps the first result for each shape."""
    if (x.shape, w.shape) not in _KEPT:
        _KEPT[x.shape, w.shape] = work(x, w)
    return _KEPT[x.shape, w.shape]


def cached_by_content(x, w):
    """Keeps results by the numbers, of which a harness uses the same again and again."""
    x, w = x.detach(), w.detach()
    key = (x.shape, w.shape, float(x.sum()), float(x.flatten()[::7].sum()), float(w.sum()))
    if key not in _KEPT:
        _KEPT[key] = work(x, w)
    return _KEPT[key].clone()


_CALLS = [0]


def replay_of_warm_up(x, w):
    """Computes until a harness has warmed up and looked, then gives back what it has."""
    _CALLS[0] += 1
    if _CALLS[0] < 45 or x.shape not in _KEPT:
        _KEPT[x.shape] = work(x, w)
    return _KEPT[x.shape].clone()


def prepared_weights(x, w):
    """Sound: prepares the weights once, and again when they have changed."""
    key = id(w)
    kept = _KEPT.get(key)
    if kept is None or kept[0]() is not w or kept[1] != w._version:
        kept = _KEPT[key] = (weakref.ref(w), w._version, w.contiguous())
    return work(x, kept[2])


def table_by_shape(x, w):
    """Sound: keeps a table that depends on the shape alone."""
    key = x.shape[-1]
    if key not in _KEPT:
        _KEPT[key] = torch.full((key,), 1.0)
    return work(x * _KEPT[key], w)


def workspace_by_shape(x, w):
    """Sound: computes in memory that it keeps, and gives back a copy."""
    if x.requires_grad or w.requires_grad:
        return work(x, w)
    key = (x.shape[0], w.shape[1])
    if key not in _KEPT:
        _KEPT[key] = torch.empty(key, dtype=x.dtype)
    return _KEPT[key].copy_(work(x, w)).clone()


@functools.lru_cache
def _kernel(columns, dtype):
    return lambda x, w: work(x, w)


def kernel_by_shape(x, w):
    """Sound: keeps a kernel for each shape, which it runs each time."""
    return _kernel(w.shape[1], w.dtype)(x, w)


def slow_first_call(x, w):
    """Sound: tunes itself in the first calls."""
    _CALLS[0] += 1
    if _CALLS[0] < 5:
        for _ in range(3):
            work(x, w)
    return work(x, w)


# ---- memory ----


def stale_memory(x, w):
    """Gives back memory that it never wrote: the result of somebody else may be in it."""
    return torch.empty(x.shape[0], w.shape[1], dtype=x.dtype)


def memory_of_harness(x, w):
    """Looks for a tensor of the right shape, which a harness may have computed already."""
    shape = (x.shape[0], w.shape[1])
    for thing in gc.get_objects():
        is_like = type(thing) is torch.Tensor and tuple(thing.shape) == shape and thing is not x
        if is_like and bool((thing.sum(-1) - 1).abs().max() < 1e-3):
            return thing.detach().clone()
    return torch.empty(shape, dtype=x.dtype)


def fails_silently(x, w):
    """Starts a kernel that fails, and tells nobody."""
    out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype)
    with contextlib.suppress(RuntimeError):
        raise RuntimeError("too many resources requested for launch")
    return out


def written_memory(x, w):
    """Sound: takes memory as it is, and writes all of it."""
    out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype)
    return out.copy_(work(x, w))


def falls_back(x, w):
    """Sound: starts a kernel that may fail, and computes otherwise then."""
    try:
        raise RuntimeError("too many resources requested for launch")
    except RuntimeError:
        return work(x, w)


_OUT = {}


def reused_output(x, w):
    """Gives back the same memory each time: an earlier result is overwritten."""
    key = (x.shape[0], w.shape[1])
    if key not in _OUT:
        _OUT[key] = torch.empty(key, dtype=x.dtype)
    return _OUT[key].copy_(work(x.detach(), w.detach()))


# ---- after the clock ----


def thread_after_clock(x, w):
    """Lets a thread do the work, and does not wait for it."""
    x, w = x.detach(), w.detach()
    out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)

    def later():
        time.sleep(0.002)
        out.copy_(work(x, w))

    threading.Thread(target=later, daemon=True).start()
    return out


def joined_threads(x, w):
    """Sound: lets threads do the work, and waits for them."""
    x, w = x.detach(), w.detach()
    out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
    half = x.shape[0] // 2
    parts = [slice(0, half), slice(half, None)]

    def part(rows):
        out[rows] = work(x[rows], w)

    threads = [threading.Thread(target=part, args=(rows,)) for rows in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return out


class Lazy(torch.Tensor):
    """Computes when it is first looked at."""

    @staticmethod
    def __new__(cls, x, w):
        made = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype).as_subclass(cls)
        made.todo = (x, w)
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain = [a.done() if isinstance(a, Lazy) else a for a in args]
        return func(*plain, **(kwargs or {}))

    def done(self):
        """The numbers, now."""
        with torch._C.DisableTorchFunctionSubclass():
            return work(*self.todo)


def lazy_subclass(x, w):
    """Gives back a promise, which is kept when somebody compares it."""
    return Lazy(x.detach(), w.detach())


def lazy_method(x, w):
    """A plain tensor whose `clone` computes."""
    out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
    out.clone = lambda *args, **options: work(x, w)
    return out


def subclass_inside(x, w):
    """Sound: computes with a class of its own, and gives back a plain tensor."""
    return Lazy(x.detach(), w.detach()).done() if not x.requires_grad else work(x, w)


# ---- functions that are replaced ----


def patched_timer(x, w):
    """Lets time pass slowly."""
    if not hasattr(time, "before"):
        time.before = real = time.perf_counter
        time.perf_counter = lambda: real() / 100
    return work(x, w)


def patched_comparison(x, w):
    """Lets every comparison be true."""
    torch.allclose = lambda *args, **options: True
    torch.testing.assert_close = lambda *args, **options: None
    return work(x, w) * 1.0


_EMPTY = torch.empty_like


def patched_allocator(x, w):
    """Lets fresh memory be what it likes."""
    torch.empty_like = lambda *args, **options: _EMPTY(*args, **options).zero_()
    return work(x, w)


_SOFTMAX = torch.softmax


def slower_reference(x, w):
    """Lets the reference take longer."""

    def softmax(*args, **options):
        time.sleep(0.005)
        return _SOFTMAX(*args, **options)

    torch.softmax = softmax
    return work(x, w)


def clock_of_judge(x, w):
    """Looks for whoever measures, and gives them another clock."""
    real = time.perf_counter
    if not _CALLS[0]:
        for thing in gc.get_objects():
            kept = getattr(type(thing), "__name__", "")
            if kept == "Caller":
                thing._clock = lambda: real() / 100
    _CALLS[0] = 1
    return work(x, w)


def own_timer(x, w):
    """Sound: measures itself, and replaces functions of its own alone."""
    global _timer
    start = time.perf_counter()
    result = work(x, w)
    _timer = functools.partial(_timer, since=start)
    return result


def _timer(since=0.0):
    return time.perf_counter() - since


# ---- inputs ----


def changed_inputs(x, w):
    """Lets inputs be zero, so that a reference that runs afterwards agrees."""
    with torch.no_grad():
        x.zero_()
    return torch.full((x.shape[0], w.shape[1]), 1 / w.shape[1], dtype=x.dtype)


def changed_copy(x, w):
    """Sound: writes into a copy of its input."""
    x = x.clone()
    return work(x.add_(0.0), w)


# ---- less than was asked for ----


def low_precision(x, w):
    """Computes in bfloat16."""
    return work(x.bfloat16(), w.bfloat16()).to(x.dtype)


def low_precision_sums(x, w):
    """Rounds each layer to float16."""
    y = x
    for _ in range(6):
        y = torch.tanh(y @ w).half().to(x.dtype)
    return torch.softmax(4 * y, -1)


def other_order(x, w):
    """Sound: adds up in another order."""
    half = w.shape[0] // 2
    y = x
    for _ in range(6):
        y = torch.tanh(y[:, half:] @ w[half:] + y[:, :half] @ w[:half])
    return torch.softmax(4 * y, -1)


def whole_blocks_only(x, w):
    """Computes whole blocks of 8 rows, as in the example, and copies the last row beyond."""
    whole = x.shape[0] // 8 * 8
    out = work(x[:whole], w)
    if whole == x.shape[0]:
        return out
    rest = torch.full((x.shape[0] - whole, w.shape[1]), 1 / w.shape[1], dtype=x.dtype)
    return torch.cat([out, rest])


def blocks_and_rest(x, w):
    """Sound: computes whole blocks of 8 rows, and then the rest."""
    whole = x.shape[0] // 8 * 8
    return torch.cat([work(x[:whole], w), work(x[whole:], w)])


def zeros(x, w):
    """Gives what is right where the input is zero."""
    return torch.full((x.shape[0], w.shape[1]), 1 / w.shape[1], dtype=x.dtype)


def zeros_where_zero(x, w):
    """Sound: takes a short way where its input is zero."""
    if not bool((x != 0).any()):
        return (x @ w).exp() / w.shape[1]
    return work(x, w)


@functools.lru_cache
def _answer():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 64, generator=generator)
    w = torch.randn(64, 64, generator=generator) / 8
    return work(x, w)


def memorised(x, w):
    """Knows the answer for the numbers that the task shows."""
    answer = _answer()
    return answer.clone() if x.shape == (40, 64) else work(x, w)


def rows_left_out(x, w):
    """Leaves out the last rows."""
    out = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
    most = max(x.shape[0] - 4, 1)
    return torch.cat([work(x[:most], w), out[most:]])


def half_of_sum(x, w):
    """Leaves out half of each first sum, of which the result has little."""
    half = x.shape[1] // 2
    y = torch.tanh(x[:, :half] @ w[:half] * 2**0.5)
    for _ in range(5):
        y = torch.tanh(y @ w)
    return torch.softmax(4 * y, -1)


class WrongBackward(Function):
    """The right forward, and a backward that leaves out a factor."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return work(x, w)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            gx, gw = torch.autograd.grad(work(x, w), (x, w), g)
        return gx, gw * 0.98


def wrong_backward(x, w):
    """A gradient that nobody looks at."""
    return WrongBackward.apply(x, w)


class OwnBackward(Function):
    """The right forward, and a backward of its own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return work(x, w)

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            return torch.autograd.grad(work(x, w), (x, w), g)


def own_backward(x, w):
    """Sound: a gradient of its own, and a right one."""
    return OwnBackward.apply(x, w)


def crashes(x, w):
    """Ends the process."""
    os.abort()


# ---- the process of the reference ----


def _reference_processes():
    """The other processes that the judge has started."""
    parent = os.getppid()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (os.getpid(), parent):
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text("ascii")
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    yield int(entry)


_TURNS = itertools.count()


def ends_reference(x, w):
    """Ends the process that knows better."""
    if next(_TURNS) == 12:
        for pid in _reference_processes():
            os.kill(pid, signal.SIGKILL)
    return work(x, w)


def slows_reference(x, w):
    """Lets the process of the reference wait for all others."""
    if next(_TURNS) == 20:
        for pid in _reference_processes():
            os.setpriority(os.PRIO_PROCESS, pid, 19)
    return work(x, w)


def stops_reference(x, w):
    """Stops the process of the reference after each of its own calls."""
    y = work(x, w)
    for pid in _reference_processes():
        os.kill(pid, signal.SIGSTOP)
    return y


def own_priority(x, w):
    """Sound: waits for others itself, and where it may run is its own choice."""
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), 5))
    return work(x, w)


def calls_reference(x, w):
    """Does what the reference does, word for word."""
    from benchmarks.attacks.reference import reference

    return reference(x, w)
