"""Routes without a tracer: the engine, its modes, hooks, saved tensors, checkpoint, threads."""

import threading
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import Node, save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.function.everywhere.compare import (
    ROWS,
    Call,
    Tensors,
    assert_equal,
    assert_same_pull,
    cotangent,
    flat,
    floating,
    gradients,
    leaves,
    second_gradients,
    weighed,
)
from tests.function.everywhere.routes.route import Route


def backward(f: Call, reference: Call, tensors: Tensors) -> None:
    assert_same_pull(f, reference, tensors(ROWS))


def double_backward(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = tensors(ROWS)
    assert_equal(second_gradients(f, xs), second_gradients(reference, xs))


def numerical(f: Call, reference: Call, tensors: Tensors) -> None:
    assert gradcheck(lambda *xs: floating(f(*xs)), leaves(tensors(2)), rtol=1e-5, atol=1e-7)


def numerical_twice(f: Call, reference: Call, tensors: Tensors) -> None:
    assert gradgradcheck(lambda *xs: floating(f(*xs)), leaves(tensors(2)))


def accumulated(f: Call, reference: Call, tensors: Tensors) -> None:
    """`.backward()` twice on one retained graph adds the gradient twice."""
    xs = leaves(tensors(ROWS))
    loss = weighed(f(*xs))

    loss.backward(retain_graph=True)
    loss.backward()

    expected = gradients(reference, tensors(ROWS))
    assert_equal(tuple(x.grad for x in xs), tuple(2 * grad for grad in expected))


def some_inputs(f: Call, reference: Call, tensors: Tensors) -> None:
    """`backward(inputs=[x])` fills the gradient of `x` alone, for each input in turn."""
    expected = gradients(reference, tensors(ROWS))
    for i, of_x in enumerate(expected):
        xs = leaves(tensors(ROWS))
        weighed(f(*xs)).backward(inputs=[xs[i]])

        assert [x.grad is not None for x in xs] == [j == i for j in range(len(xs))]
        assert_equal(xs[i].grad, of_x)


def some_require_grad(f: Call, reference: Call, tensors: Tensors) -> None:
    """Each input in turn is the only one that requires grad."""
    expected = gradients(reference, tensors(ROWS))
    for i, of_x in enumerate(expected):
        xs = [x.clone().requires_grad_(i == j) for j, x in enumerate(tensors(ROWS))]
        weighed(f(*xs)).backward()

        assert_equal(xs[i].grad, of_x)


def strided(f: Call, reference: Call, tensors: Tensors) -> None:
    """Inputs that are views of other tensors, with a cotangent that is expanded."""

    def through_views(g: Call) -> Call:
        return lambda *xs: [
            out.sum() if out.is_floating_point() else out
            for out in flat(g(*(x.t().contiguous().t()[..., :] for x in xs)))
        ]

    assert_same_pull(through_views(f), through_views(reference), tensors(ROWS))


def without_grad(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = leaves(tensors(ROWS))
    with torch.no_grad():
        outputs = flat(f(*xs))

    assert [out.requires_grad for out in outputs] == [False] * len(outputs)
    assert [out.grad_fn for out in outputs] == [None] * len(outputs)
    assert [x.requires_grad for x in xs] == [True] * len(xs)
    assert_equal(outputs, tuple(out.detach() for out in flat(reference(*xs))))


def in_inference_mode(f: Call, reference: Call, tensors: Tensors) -> None:
    xs = leaves(tensors(ROWS))
    with torch.inference_mode():
        outputs = flat(f(*xs))
        expected = flat(reference(*xs))

        assert [out.is_inference() for out in outputs] == [out.is_inference() for out in expected]
        assert_equal(outputs, expected)


def in_anomaly_mode(f: Call, reference: Call, tensors: Tensors) -> None:
    with torch.autograd.detect_anomaly():
        assert_same_pull(f, reference, tensors(ROWS))


def in_autocast(f: Call, reference: Call, tensors: Tensors) -> None:
    """Autocast leaves float64 alone, so that values and gradients are those outside."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same_pull(f, reference, tensors(ROWS))


def tensor_hooks(f: Call, reference: Call, tensors: Tensors) -> None:
    """Hooks on inputs and outputs see and may change the gradients that pass."""

    def run(g: Call) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        seen: list[Tensor] = []
        xs = leaves(tensors(ROWS))
        inner = [x * 1.0 for x in xs]
        for x in inner:
            x.register_hook(lambda grad: seen.append(grad.clone()))
        outs = floating(g(*inner))
        for out in outs:
            out.register_hook(lambda grad: 2 * grad)
            out.register_hook(lambda grad: seen.append(grad.clone()))
            out.retain_grad()
        weighed(outs).backward()
        return seen, tuple(x.grad for x in (*xs, *outs))

    seen, grads = run(f)
    expected_seen, expected_grads = run(reference)

    # The order of hooks of independent tensors is the engine's own.
    assert_equal(sorted(x.sum() for x in seen), sorted(x.sum() for x in expected_seen))
    assert_equal(grads, expected_grads)


def node_hooks(f: Call, reference: Call, tensors: Tensors) -> None:
    """Pre-hooks run before `backward` and post-hooks after it, and both may replace gradients."""
    xs = leaves(tensors(ROWS))
    inner = [x * 1.0 for x in xs]
    outs = floating(f(*inner))
    node = outs[0].grad_fn
    log: list[str] = []

    def before(grads):
        log.append("before")
        return tuple(None if grad is None else 3 * grad for grad in grads)

    def after(of_inputs, of_outputs):
        log.append("after")
        return tuple(None if grad is None else 5 * grad for grad in of_inputs)

    handles = [node.register_prehook(before), node.register_hook(after)]
    dropped = node.register_hook(lambda *_: log.append("removed"))
    dropped.remove()
    weighed(outs).backward(retain_graph=True)
    hooked = tuple(x.grad.clone() for x in xs)
    for handle in handles:
        handle.remove()
    again = torch.autograd.grad(weighed(outs), xs)

    expected = gradients(reference, tensors(ROWS))
    assert isinstance(node, Node)
    assert log == ["before", "after"]
    assert_equal(again, expected)
    assert_equal(hooked, tuple(15 * grad for grad in expected))


def saved_hooks(f: Call, reference: Call, tensors: Tensors) -> None:
    """Hooks that keep every saved tensor as numbers elsewhere give back the right gradients."""
    packed: list[torch.Size] = []

    def pack(x: Tensor):
        packed.append(x.shape)
        return x.shape, x.dtype, x.detach().flatten().tolist()

    def unpack(kept):
        shape, dtype, numbers = kept
        return torch.tensor(numbers, dtype=dtype).reshape(shape)

    def hooked(*xs: Tensor):
        with saved_tensors_hooks(pack, unpack):
            return f(*xs)

    assert_same_pull(hooked, reference, tensors(ROWS))
    assert packed


def offloaded(f: Call, reference: Call, tensors: Tensors) -> None:
    with save_on_cpu():
        assert_same_pull(f, reference, tensors(ROWS))


def checkpointed(reentrant: bool) -> Route:
    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        runs: list[bool] = []

        def counted(*xs: Tensor):
            runs.append(torch.is_grad_enabled())
            return f(*(1.5 * x for x in xs))

        def recomputed(*xs: Tensor):
            return checkpoint(counted, *xs, use_reentrant=reentrant)

        def plain(*xs: Tensor):
            return reference(*(1.5 * x for x in xs))

        grads = gradients_by_backward(recomputed, tensors(ROWS))

        assert len(runs) == 2
        assert_equal(grads, gradients_by_backward(plain, tensors(ROWS)))

    return Route(run, needs=("saves",))


def gradients_by_backward(f: Call, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """As `gradients`, by the one way which reentrant checkpoint allows."""
    xs = leaves(tensors)
    weighed(f(*xs)).backward()
    return tuple(x.grad for x in xs)


def checkpointed_twice(f: Call, reference: Call, tensors: Tensors) -> None:
    def recomputed(*xs: Tensor):
        return checkpoint(f, *xs, use_reentrant=False)

    xs = tensors(ROWS)
    assert_equal(second_gradients(recomputed, xs), second_gradients(reference, xs))


def in_threads(f: Call, reference: Call, tensors: Tensors) -> None:
    """Eight threads at once, each with inputs of its own, then all on one retained graph."""
    count = 8
    shared = leaves(tensors(ROWS))
    loss = weighed(f(*shared))
    results: list = [None] * count
    start = threading.Barrier(count)

    def work(i: int) -> None:
        start.wait()
        own = [gradients(f, tensors(i + 1)) for _ in range(5)]
        common = torch.autograd.grad(loss, shared, retain_graph=True)
        results[i] = (own, common)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    of_shared = gradients(reference, tensors(ROWS))
    for i, (own, common) in enumerate(results):
        assert_equal(own, [gradients(reference, tensors(i + 1))] * 5)
        assert_equal(common, of_shared)


def under(context: type[AbstractContextManager]) -> Route:
    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        with context():
            assert_same_pull(f, reference, tensors(ROWS))

    return Route(run)


def batched_gradients(f: Call, reference: Call, tensors: Tensors) -> None:
    """`is_grads_batched` runs one backward under vmap for several cotangents."""

    def run(g: Call) -> tuple[Tensor, ...]:
        xs = leaves(tensors(ROWS))
        outs = floating(g(*xs))
        batch = [torch.stack([cotangent(out, draw) for draw in range(4)]) for out in outs]
        return torch.autograd.grad(outs, xs, batch, is_grads_batched=True)

    assert_equal(run(f), run(reference))


EAGER = {
    "backward": Route(backward),
    "double_backward": Route(double_backward, needs=("retains",)),
    "gradcheck": Route(numerical, needs=("exact", "retains")),
    "gradgradcheck": Route(numerical_twice, needs=("retains",)),
    "retain_graph": Route(accumulated, needs=("retains",)),
    "backward_inputs": Route(some_inputs),
    "one_requires_grad": Route(some_require_grad),
    "strided": Route(strided),
    "batched_gradients": Route(batched_gradients),
    "no_grad": Route(without_grad),
    "inference_mode": Route(in_inference_mode),
    "anomaly_mode": Route(in_anomaly_mode),
    "autocast": Route(in_autocast),
    "tensor_hooks": Route(tensor_hooks),
    "node_hooks": Route(node_hooks, needs=("retains",)),
    "saved_tensors_hooks": Route(saved_hooks, needs=("saves",)),
    "save_on_cpu": Route(offloaded),
    "checkpoint": checkpointed(reentrant=False),
    "reentrant_checkpoint": checkpointed(reentrant=True),
    "checkpoint_double_backward": Route(checkpointed_twice, needs=("retains",)),
    "threads": Route(in_threads, needs=("retains",)),
    "multithreading_disabled": under(lambda: torch.autograd.set_multithreading_enabled(False)),
}
