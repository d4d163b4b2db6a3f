"""Section H: the engine, hooks, threads and names around a Function."""

import threading
import warnings
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch.autograd import grad

import pullback as pb


def make_double(Function):
    """`2 * x`; keeps the cotangents it gets on the class."""

    class Double(Function):
        cotangents: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            Double.cotangents.append(g.tolist())
            return 2 * g

    return Double


def make_product(Function):
    """`x * y` of two tensors, with a number between them."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x, number, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, None, g * x

    return Product


# ---- re-entrant backward ----


def make_reentrant(Function):
    """Its backward runs the backward of a graph that forward built and kept."""

    class Reentrant(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.leaf = x.detach().requires_grad_()
                ctx.result = (ctx.leaf**3).sum()
            return ctx.result.detach()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                (inner,) = grad(ctx.result, ctx.leaf)
            return g * inner

    return Reentrant


def test_backward_may_run_a_graph(Function):
    """H01: backward runs a graph kept on ctx."""
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (gx,) = grad(make_reentrant(Function).apply(x) * 10, x)

    assert gx.tolist() == [30.0, 120.0]


def test_backward_may_run_a_graph_in_saved_data():
    """H01: backward runs a graph held in saved_data."""

    class Reentrant(pb.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                ctx.saved_data["leaf"] = leaf
                ctx.saved_data["result"] = (leaf**3).sum()
            return ctx.saved_data["result"].detach()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                ctx.saved_data["result"].backward()
            return g * ctx.saved_data["leaf"].grad

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (gx,) = grad(Reentrant.apply(x) * 10, x)

    assert gx.tolist() == [30.0, 120.0]


def make_countdown(Function, order):
    """Its backward applies itself to `x - 1` and runs that backward, until x is below zero."""

    class Countdown(Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.inner = x.detach().requires_grad_() - 1
            return ctx.inner.detach()

        @staticmethod
        def backward(ctx, g):
            order.append("countdown")
            if ctx.inner >= 0:
                with torch.enable_grad():
                    Countdown.apply(ctx.inner).backward()
            return g

    return Countdown


DEEP = """
import torch

import pullback as pb
from tests.function.contract.test_engine import make_countdown

order = []
x = torch.tensor(2000.0, requires_grad=True)
make_countdown({function}, order).apply(x).backward()
print(len(order), x.grad.item())
"""


def test_deep_reentrant_backward_does_not_overflow(Function, run_python):
    """H02: thousands of nested re-entrant backwards, for which the engine starts threads.

    In a process of its own: what is forked from one with such threads has no autograd.
    """
    name = "pb.Function" if Function is pb.Function else "torch.autograd.Function"
    root = Path(__file__).resolve().parents[3]
    done = run_python("-c", DEEP.format(function=name), folder=root)

    assert done.stdout.strip() == "2001 1.0", done.stderr


def test_reentrant_work_is_finished_first(Function):
    """H03: before other nodes of the outer backward that are ready."""
    order = []

    class Last(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            order.append("last")
            return g

    first = Last.apply(torch.tensor(6.0, requires_grad=True))
    second = make_countdown(Function, order).apply(torch.tensor(9.0, requires_grad=True))
    (first * second).backward()

    assert order == ["countdown"] * 10 + ["last"]


# ---- hooks on tensors ----


def test_output_hook_feeds_backward(Function):
    """H04: it runs before backward, which receives its return value; removal restores."""
    Double = make_double(Function)
    x = torch.ones(1, requires_grad=True)
    out = Double.apply(x)
    handle = out.register_hook(lambda g: g * 100)
    hooked = grad(out, x, retain_graph=True)
    handle.remove()
    plain = grad(out, x)

    assert Double.cotangents == [[100.0], [1.0]]
    assert [g.item() for g in (*hooked, *plain)] == [200.0, 2.0]


def test_output_hooks_get_tensors(Function):
    """H05: also where the matching gradient is None or the input needs none."""
    seen = []

    class Pass(Function):
        @staticmethod
        def forward(ctx, x, y, z):
            return x, y, z

        @staticmethod
        def backward(ctx, gx, gy, gz):
            return gx, None, None

    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    outs = Pass.apply(x, y, torch.ones(2))
    for out in outs:
        out.register_hook(lambda g: seen.append(g.tolist()))
    sum(outs).sum().backward()

    assert seen == [[1.0, 1.0]] * 3
    assert x.grad.tolist() == [1.0, 1.0]
    assert y.grad is None


def make_triple_in_place(Function):
    """Triples its input in place."""

    class Triple(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx, g):
            return 3 * g

    return Triple


@pytest.mark.parametrize("times", [1, 2])
def test_hooks_follow_their_value(Function, times):
    """H06, L60: a hook set before a dirty Function sees the old value's gradient."""
    Triple = make_triple_in_place(Function)
    seen = []
    leaf = torch.ones(1, requires_grad=True)
    x = leaf.clone()
    x.register_hook(lambda g: seen.append(("before", g.item())))
    for _ in range(times):
        Triple.apply(x)
    x.register_hook(lambda g: seen.append(("after", g.item())))
    (x * 10).backward()

    assert seen == [("after", 10.0), ("before", 10.0 * 3**times)]
    assert leaf.grad.item() == 10.0 * 3**times


@pytest.mark.parametrize("times", [1, 2])
def test_retain_grad_follows_the_new_value(Function, times):
    """H06, L60: retain_grad before a dirty Function gives the new value's gradient."""
    Triple = make_triple_in_place(Function)
    leaf = torch.ones(1, requires_grad=True)
    x = leaf.clone()
    x.retain_grad()
    for _ in range(times):
        Triple.apply(x)
    (x * 10).backward()

    assert x.grad.item() == 10.0
    assert leaf.grad.item() == 10.0 * 3**times


# ---- anomaly mode ----


def make_nan(Function):
    """Its gradient is not a number."""

    class GivesNan(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * float("nan")

    return GivesNan


def test_anomaly_mode_names_the_function(Function):
    """H07: an error naming the Function, and a warning that shows the forward call."""
    x = torch.ones(1, requires_grad=True)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=r"GivesNanBackward.*nan"):
            with torch.autograd.detect_anomaly():
                make_nan(Function).apply(x).backward()
    shown = [str(w.message) for w in caught if "forward call" in str(w.message)]

    assert len(shown) == 1
    assert "make_nan(Function).apply(x)" in shown[0]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_may_let_nan_pass(Function):
    """H07: with check_nan=False."""
    x = torch.ones(1, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        make_nan(Function).apply(x).backward()

    assert x.grad.isnan().all()


# ---- backward(inputs=...) ----


def test_listed_inputs_alone_are_filled(Function):
    """H08: backward(inputs=[x]) fills x.grad and no other, non-leaf inputs too."""
    x, y = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    between = y * 1
    out = make_product(Function).apply(x, 7, between)
    out.backward(inputs=[x], retain_graph=True)

    assert (x.grad.item(), y.grad) == (3.0, None)
    out.backward(inputs=[between])

    assert (x.grad.item(), y.grad, between.grad.item()) == (3.0, None, 2.0)


def test_empty_list_of_inputs_is_refused(Function):
    """H08: backward with no inputs listed."""
    out = make_double(Function).apply(torch.tensor(2.0, requires_grad=True))

    with pytest.raises(RuntimeError, match="cannot be empty"):
        out.backward(inputs=[])


# ---- threads ----


def run_threads(work, count):
    """Run `work(i)` in `count` threads at once; what they raised."""
    failures = []
    start = threading.Barrier(count)

    def target(i):
        start.wait()
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=target, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_threads_share_one_class(Function):
    """H09, L58: forward and backward of one class in eight threads at once."""
    Product = make_product(Function)
    got = {}

    def work(i):
        for _ in range(20):
            x = torch.full((3,), float(i), requires_grad=True)
            y = torch.full((3,), 2.0 * i, requires_grad=True)
            got[i] = grad(Product.apply(x, i, y).sum(), (x, y))

    assert run_threads(work, 8) == []
    assert [(got[i][0].tolist(), got[i][1].tolist()) for i in range(8)] == [
        ([2.0 * i] * 3, [1.0 * i] * 3) for i in range(8)
    ]


def test_threads_share_one_graph(Function):
    """H09, L58: one retained graph differentiated by eight threads."""
    x, y = torch.full((3,), 2.0, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
    out = make_product(Function).apply(x, 7, y).sum()
    got = {}

    def work(i):
        for _ in range(20):
            got[i] = grad(out * i, (x, y), retain_graph=True)

    assert run_threads(work, 8) == []
    assert [got[i][0].tolist() for i in range(8)] == [[5.0 * i] * 3 for i in range(8)]
    assert [got[i][1].tolist() for i in range(8)] == [[2.0 * i] * 3 for i in range(8)]


# ---- the node ----


def test_create_graph_warns_of_the_cycle(Function):
    """H10: .backward(create_graph=True) warns, like any other graph."""
    # PyTorch gives this warning once per process unless it is told to repeat itself.
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    x = torch.ones(1, requires_grad=True)
    try:
        with pytest.warns(UserWarning, match="reference cycle"):
            make_double(Function).apply(x).backward(create_graph=True)
    finally:
        torch.set_warn_always(before)

    assert x.grad.tolist() == [2.0]
    x.grad = None


def test_node_carries_the_class_name(Function):
    """H11, L63: in name(), in the type and in the output's repr."""
    out = make_double(Function).apply(torch.ones(1, requires_grad=True))

    assert out.grad_fn.name() == "DoubleBackward"
    assert type(out.grad_fn).__name__ == "DoubleBackward"
    assert "DoubleBackward" in repr(out)


def test_grad_fn_is_a_graph_node(Function):
    """H12, L63: an instance of Node, with a dict of metadata of its own."""
    x = torch.ones(1, requires_grad=True)
    outs = [make_double(Function).apply(x) for _ in range(2)]
    first, second = (out.grad_fn for out in outs)
    first.metadata["note"] = 1

    assert isinstance(first, torch.autograd.graph.Node)
    assert first.metadata == {"note": 1}
    assert second.metadata == {}


def test_next_functions_line_up_with_tensors(Function):
    """H12, L63: one entry per tensor input, None where no gradient is needed."""
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    Product = make_product(Function)
    outs = [Product.apply(a, 7, y) for a in (x, torch.ones(1))]
    both, one = (out.grad_fn.next_functions for out in outs)

    assert [type(node).__name__ for node, _ in both] == ["AccumulateGrad", "MulBackward0"]
    assert both[0][0].variable is x
    assert both[1] == (y.grad_fn, 0)
    assert one == ((None, 0), (y.grad_fn, 0))


def test_node_hooks_may_replace_gradients(Function):
    """H12, L63: pre-hooks change what backward gets, post-hooks what it gave."""
    Double = make_double(Function)
    order = []
    x = torch.ones(1, requires_grad=True)
    out = Double.apply(x)

    def before(cotangents):
        order.append(("before", len(Double.cotangents)))
        return (cotangents[0] * 10,)

    def after(gradients, cotangents):
        order.append(("after", len(Double.cotangents)))
        order.append((gradients[0].item(), cotangents[0].item()))
        return (gradients[0] * 100,)

    handles = [out.grad_fn.register_prehook(before), out.grad_fn.register_hook(after)]
    hooked = grad(out, x, retain_graph=True)
    for handle in handles:
        handle.remove()
    plain = grad(out, x)

    assert order == [("before", 0), ("after", 1), (20.0, 10.0)]
    assert Double.cotangents == [[10.0], [1.0]]
    assert [g.item() for g in (*hooked, *plain)] == [2000.0, 2.0]


def test_hooks_run_in_the_documented_order(Function):
    """L59: tensor hooks, node pre-hooks, the node with retain_grad done, node post-hooks."""
    order = []

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            order.append(("node", out.grad.item()))
            return 2 * g

    x = torch.ones(1, requires_grad=True)
    out = Double.apply(x)
    out.grad_fn.register_hook(lambda *_: order.append("post"))
    out.grad_fn.register_prehook(lambda g: order.append(("pre", g[0].item())))
    out.retain_grad()
    out.register_hook(lambda g: order.append("tensor") or g * 3)
    x.register_post_accumulate_grad_hook(lambda _: order.append("accumulated"))
    out.backward()

    assert order == ["tensor", ("pre", 3.0), ("node", 3.0), "post", "accumulated"]
    assert x.grad.item() == 6.0


def test_node_hooks_fire_only_if_it_runs(Function):
    """L61: the node of a tensor in `inputs` is not run; its tensor hooks are."""
    order = []
    x = torch.ones(1, requires_grad=True)
    out = make_double(Function).apply(x)
    out.register_hook(lambda g: order.append("tensor"))
    out.grad_fn.register_prehook(lambda g: order.append("pre"))
    out.grad_fn.register_hook(lambda *_: order.append("post"))
    total = (out * 3).sum()
    grad(total, out, retain_graph=True)
    without = list(order)
    order.clear()
    grad(total, x)

    assert "post" not in without
    assert "tensor" in without
    assert order == ["tensor", "pre", "post"]


def test_backward_adds_no_warning(Function):
    """H10: a plain forward and backward is silent."""
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_product(Function).apply(x, 7, x).backward()

    assert [str(w.message) for w in caught] == []
