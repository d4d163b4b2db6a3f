"""Section F: what is kept from `forward` to `backward`."""

import weakref
from typing import ClassVar

import pytest
import torch
from torch.autograd import grad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

import pullback as pb
from pullback import errors

on_access = pytest.mark.skipif(
    not hasattr(torch.autograd.Function, "clear_saved_tensors_on_access"),
    reason="this torch has no clear_saved_tensors_on_access",
)
boxed = pytest.mark.skipif(
    not hasattr(torch.autograd.Function, "boxed_grads_call"),
    reason="this torch has no boxed_grads_call",
)


class Marker:
    """A plain object that can be watched."""


def make_square(Function):
    """`x * x`, its input saved."""

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g

    return Square


def make_exp(Function):
    """`exp(x)`, its output saved; keeps on the class what it unpacked."""

    class Exp(Function):
        unpacked: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x):
            out = x.exp()
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, g):
            (out,) = ctx.saved_tensors
            Exp.unpacked.append((out, out.grad_fn, ctx))
            return g * out

    return Exp


def make_sine(Function):
    """`sin(x)`, with the intermediate cosine saved and watched by a weak reference."""

    class Sine(Function):
        saved: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x):
            cosine = x.cos()
            Sine.saved.append(weakref.ref(cosine))
            ctx.save_for_backward(cosine)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (cosine,) = ctx.saved_tensors
            return g * cosine

    return Sine


# ---- save_for_backward ----


def make_keeper(Function, *, read):
    """Saves (None, x, None, y) and gives back what `read(ctx)` gives in backward."""

    class Keeper(Function):
        got: ClassVar[list] = []

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(None, x, None, y)
            return x + y

        @staticmethod
        def backward(ctx, g):
            Keeper.got.append(read(ctx))
            return g, g

    return Keeper


def test_none_may_be_saved(Function):
    """F01, L24: None comes back as None in its position."""
    Keeper = make_keeper(Function, read=lambda ctx: ctx.saved_tensors)
    x, y = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    Keeper.apply(x, y).backward()
    (got,) = Keeper.got

    assert [value if value is None else value.item() for value in got] == [None, 1.0, None, 2.0]


def test_saved_variables_are_the_saved_tensors():
    """F02, L53: get_saved_variables gives the same, in the saved order."""
    Keeper = make_keeper(pb.Function, read=lambda ctx: ctx.get_saved_variables())
    x, y = torch.tensor(1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    Keeper.apply(x, y).backward()
    (got,) = Keeper.got

    assert [value if value is None else value.item() for value in got] == [None, 1.0, None, 2.0]


def test_changed_saved_tensor_raises(Function):
    """F03, L27: unpacking raises if the tensor was changed in place after the save."""
    x = torch.ones(2, requires_grad=True)
    y = x.clone()
    out = make_square(Function).apply(y)
    y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_changed_saved_variable_raises():
    """F03, L53: get_saved_variables makes the same check."""
    Keeper = make_keeper(pb.Function, read=lambda ctx: ctx.get_saved_variables())
    x, y = torch.ones(2, requires_grad=True).clone(), torch.ones(2)
    out = Keeper.apply(x, y)
    y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_backward_needs_retained_graph(Function):
    """F04, L62: without retain_graph the second backward raises, with it it works."""
    x = torch.tensor([3.0], requires_grad=True)
    out = make_square(Function).apply(x)
    first = grad(out, x, retain_graph=True)
    second = grad(out, x)

    assert first == second == (torch.tensor([6.0]),)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        grad(out, x)


def test_second_unpacking_of_variables_raises():
    """F04: get_saved_variables too is refused once the saved tensors are freed."""
    Keeper = make_keeper(pb.Function, read=lambda ctx: ctx.get_saved_variables())
    x = torch.tensor([3.0], requires_grad=True)
    out = Keeper.apply(x, torch.ones(1))
    grad(out, x)

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        grad(out, x)


def test_nothing_saved_allows_second_backward(Function):
    """F05, L62: a Function that saved nothing may be run backward twice."""

    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = torch.ones(1, requires_grad=True)
    out = Double.apply(x)

    assert grad(out, x) == grad(out, x) == (torch.tensor([2.0]),)


def test_saved_input_keeps_its_history(Function):
    """F06, L33: a backward in tensor ops can be differentiated again."""
    x = torch.randn(3, requires_grad=True)
    Square = make_square(Function)

    assert gradcheck(lambda x: Square.apply(x.sin()), (x,))
    assert gradgradcheck(lambda x: Square.apply(x.sin()), (x,))


def test_saved_input_unpacks_as_the_input(Function):
    """F06: a leaf unpacks as a leaf that shares its storage, a result with its grad_fn."""
    seen = []

    class Watch(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            seen.extend([x.is_leaf, x.requires_grad, x.data_ptr(), y.grad_fn])
            return g * y, g * x

    x = torch.ones(2, requires_grad=True)
    y = x * 2
    grad(Watch.apply(x, y).sum(), x)

    assert seen == [True, True, x.data_ptr(), y.grad_fn]


def test_saved_output_unpacks_with_this_node(Function):
    """F07, L33: its grad_fn is the node itself, and double backward is right."""
    Exp = make_exp(Function)
    x = torch.randn(3, requires_grad=True)
    out = Exp.apply(x)
    grad(out.sum(), x, create_graph=True)
    ((unpacked, node, ctx),) = Exp.unpacked

    assert node is out.grad_fn
    assert ctx is out.grad_fn
    assert torch.equal(unpacked, out)
    assert gradcheck(Exp.apply, (x,))
    assert gradgradcheck(Exp.apply, (x,))


def test_saved_output_makes_no_cycle(Function, no_collector):
    """F07, L26: dropped without a backward, output and node are freed at once."""
    out = make_exp(Function).apply(torch.randn(3, requires_grad=True))
    watched = weakref.ref(out), weakref.ref(out.grad_fn)
    del out

    assert [ref() for ref in watched] == [None, None]


def test_saved_output_is_checked_for_changes(Function):
    """F03: an output changed in place after it was saved raises as well."""
    x = torch.ones(2, requires_grad=True)
    out = make_exp(Function).apply(x)
    out.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.filterwarnings("ignore")
def test_second_save_replaces_the_first(Function):
    """F08, L24: only what the last call named comes back."""
    seen = []

    class Saves(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x, x * 2)
            ctx.save_for_backward(x * 3)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen.extend(saved.item() for saved in ctx.saved_tensors)
            return g

    Saves.apply(torch.tensor(1.0, requires_grad=True)).backward()

    assert seen == [3.0]


def test_no_saved_variables_without_a_save():
    """F09: get_saved_variables is empty in forward and in backward."""
    seen = []

    class Saves(pb.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(len(ctx.get_saved_variables()))
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen.append(len(ctx.get_saved_variables()))
            seen.append(len(ctx.saved_tensors))
            return g

    Saves.apply(torch.tensor(1.0, requires_grad=True)).backward()

    assert seen == [0, 0, 0]


@pytest.mark.parametrize("thing", [3, "text", [torch.ones(1)]])
def test_only_tensors_may_be_saved(Function, thing):
    """L24: anything but a tensor or None is a TypeError."""

    class Saves(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(thing)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(TypeError, match="save_for_backward"):
        Saves.apply(torch.ones(1, requires_grad=True))


def test_saved_tensors_are_released_after_backward(Function, no_collector):
    """L25: a saved tensor lives until the node's backward is done, not longer."""
    Sine = make_sine(Function)
    x = torch.ones(2, requires_grad=True)
    out = Sine.apply(x)
    (saved,) = Sine.saved
    grad(out.sum(), x, retain_graph=True)

    assert saved() is not None
    grad(out.sum(), x)

    assert saved() is None
    assert out.grad_fn is not None


# ---- saved_data ----

PLAIN = {
    "bool": True,
    "int": 3,
    "float": 2.5,
    "str": "text",
    "list": [1, "two", 3.0],
    "dict": {"a": [1], "b": {"c": 2}},
    "none": None,
}


class Keeps(pb.Function):
    """`2 * x`; keeps what it is given in saved_data, and shows it to whoever asks in backward."""

    @staticmethod
    def forward(ctx, x, data, watch):
        watch.append(dict(ctx.saved_data))
        ctx.saved_data.update(data)
        ctx.saved_data["watch"] = watch
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        ctx.saved_data["count"] = ctx.saved_data.get("count", 0) + 1
        ctx.saved_data["watch"].append({k: v for k, v in ctx.saved_data.items() if k != "watch"})
        return 2 * g, None, None


@pytest.mark.parametrize("key", PLAIN)
def test_saved_data_keeps_plain_values(key):
    """F10, L31: the very same value is there in backward."""
    watch = []
    Keeps.apply(torch.ones(1, requires_grad=True), {key: PLAIN[key]}, watch).backward()

    assert watch[1][key] is PLAIN[key]


@pytest.mark.parametrize("kind", ["input", "output", "other"])
def test_saved_data_keeps_tensors(kind):
    """F10: a tensor comes back with its values, be it input, output or neither."""
    seen = []

    class Stash(pb.Function):
        @staticmethod
        def forward(ctx, x):
            out = x * 2
            ctx.saved_data["t"] = {"input": x, "output": out, "other": torch.ones(3)}[kind]
            return out

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.saved_data["t"].detach().clone())
            return 2 * g

    x = torch.tensor([5.0], requires_grad=True)
    Stash.apply(x).backward()
    expected = {"input": [5.0], "output": [10.0], "other": [1.0, 1.0, 1.0]}[kind]

    assert seen[0].tolist() == expected
    assert x.grad.tolist() == [2.0]


def test_each_call_has_its_own_data():
    """F11: saved_data is empty at the start of forward, and not shared."""
    first, second = [], []
    x = torch.ones(1, requires_grad=True)
    out = Keeps.apply(x, {"a": 1}, first) + Keeps.apply(x, {"b": 2}, second)
    out.backward()

    assert first == [{}, {"a": 1, "count": 1}]
    assert second == [{}, {"b": 2, "count": 1}]


def test_backward_leaves_saved_data():
    """F12: readable in a second backward without retain_graph, and writable in backward."""
    watch = []
    out = Keeps.apply(torch.ones(1, requires_grad=True), {"a": 1}, watch)
    out.backward()
    out.backward()

    assert watch[1:] == [{"a": 1, "count": 1}, {"a": 1, "count": 2}]


@pytest.mark.parametrize("kind", ["input", "output", "other"])
def test_dropped_outputs_free_everything(no_collector, kind):
    """F13: node, ctx and a tensor stashed in saved_data go at once, without the collector."""
    watched = []

    class Stash(pb.Function):
        @staticmethod
        def forward(ctx, x):
            out, other, marker = x * 2, torch.ones(3), Marker()
            ctx.saved_data["t"] = {"input": x, "output": out, "other": other}[kind]
            ctx.saved_data["marker"] = marker
            ctx.marker = marker
            watched.extend([weakref.ref(other), weakref.ref(marker)])
            return out

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    out = Stash.apply(torch.ones(1, requires_grad=True))
    watched += [weakref.ref(out), weakref.ref(out.grad_fn)]
    assert watched[1]() is not None
    del out

    assert [ref() for ref in watched] == [None] * 4


def test_dropped_outputs_free_the_node(Function, no_collector):
    """F13: the same for what is kept in the Python spelling."""
    watched = []

    class Stash(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.marker = Marker()
            watched.append(weakref.ref(ctx.marker))
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    out = Stash.apply(torch.ones(1, requires_grad=True))
    watched += [weakref.ref(out), weakref.ref(out.grad_fn)]
    assert watched[0]() is not None
    del out

    assert [ref() for ref in watched] == [None] * 3


def test_absent_key_is_a_key_error():
    """F14: as with any mapping; `.get` gives None."""
    seen = []

    class Reads(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen.append(ctx.saved_data.get("absent"))
            seen.append("absent" in ctx.saved_data)
            return ctx.saved_data["absent"]

    with pytest.raises(KeyError, match="absent"):
        Reads.apply(torch.ones(1, requires_grad=True)).backward()

    assert seen == [None, False]


def test_plain_values_go_on_ctx(Function):
    """L31: attributes of ctx hold anything, and may be changed and deleted."""
    marker = Marker()
    seen = []

    class Keeper(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.marker, ctx.count, ctx.gone = marker, 1, 2
            del ctx.gone
            return x * 1

        @staticmethod
        def backward(ctx, g):
            ctx.count += 1
            seen.append((ctx.marker is marker, ctx.count, hasattr(ctx, "gone")))
            return g

    out = Keeper.apply(torch.ones(1, requires_grad=True))
    out.backward()
    out.backward()

    assert seen == [(True, 2, False), (True, 3, False)]


# ---- hooks ----


def test_hooks_see_every_saved_tensor(Function):
    """F15, L28, L29: packed once, unpacked as often as needed; backward gets what unpack gives."""
    packed, unpacked = [], []

    def pack(x):
        packed.append(x.item())
        return x.item()

    def unpack(value):
        unpacked.append(value)
        return torch.tensor(10 * value)

    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y, None)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y, _ = ctx.saved_tensors
            return g * y, g * x

    x, y = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    with saved_tensors_hooks(pack, unpack):
        out = Product.apply(x, y)
    for _ in range(2):
        assert grad(out, (x, y), retain_graph=True) == (torch.tensor(30.0), torch.tensor(20.0))

    assert packed == [2.0, 3.0]
    assert unpacked == [2.0, 3.0, 2.0, 3.0]


def test_hooks_see_a_saved_output(Function):
    """F15: an output that is saved goes through the hooks too."""
    packed = []
    x = torch.zeros(1, requires_grad=True)
    with saved_tensors_hooks(lambda t: packed.append(t.item()) or t, lambda t: t * 7):
        out = make_exp(Function).apply(x)

    assert packed == [1.0]
    assert grad(out, x)[0].tolist() == [7.0]


def test_pack_hook_must_not_change_its_input(Function):
    """L29: an in-place change inside the pack hook raises."""

    def pack(x):
        x.add_(1)
        return x

    x = torch.ones(1, requires_grad=True).clone()
    with pytest.raises(RuntimeError, match=r"in-?place"):
        with saved_tensors_hooks(pack, lambda x: x):
            make_square(Function).apply(x)


def test_raw_saved_tensors_take_hooks(Function):
    """L30: register_hooks on an entry of `_raw_saved_tensors` before it is released."""
    x = torch.tensor([3.0], requires_grad=True)
    out = make_square(Function).apply(x)
    (raw,) = out.grad_fn._raw_saved_tensors
    raw.register_hooks(lambda x: 100 * x.detach(), lambda x: x)

    assert grad(out, x)[0].tolist() == [600.0]
    with pytest.raises(RuntimeError, match=r"(?i)freed|released|already been"):
        out.grad_fn._raw_saved_tensors  # noqa: B018


# ---- double backward through what is saved ----


def test_intermediate_returned_as_output_is_right(Function):
    """L32: returned as an output, with its gradient added, an intermediate is differentiated."""

    class Sinh(Function):
        @staticmethod
        def forward(ctx, x):
            up, down = x.exp(), (-x).exp()
            ctx.save_for_backward(up, down)
            return (up - down) / 2, up, down

        @staticmethod
        def backward(ctx, g, g_up, g_down):
            up, down = ctx.saved_tensors
            return g * (up + down) / 2 + g_up * up - g_down * down

    x = torch.randn(3, requires_grad=True)

    assert gradcheck(lambda x: Sinh.apply(x)[0], (x,))
    assert gradgradcheck(lambda x: Sinh.apply(x)[0], (x,))


def test_saved_intermediate_is_right_or_raises():
    """L32: ours never gives a wrong second derivative in silence."""
    x = torch.randn(3, requires_grad=True)
    raised, second = False, torch.zeros(3)
    try:
        out = make_sine(pb.Function).apply(x)
        (first,) = grad((out * out).sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x)
    except errors.DoubleBackwardError:
        raised = True

    assert raised or torch.allclose(second, 2 * (2 * x).cos())
    assert issubclass(errors.DoubleBackwardError, RuntimeError)


# ---- the other ways to keep tensors ----


def make_scale(Function, saved):
    """`scale * x` with a jvp that reads what `save_for_forward` kept."""

    class Scale(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_forward(*saved(x, scale))
            return x * scale

        @staticmethod
        def jvp(ctx, x_t, scale_t):
            x, scale, _ = ctx.saved_tensors
            return x_t * scale + x * scale_t

    return Scale


def test_saved_for_forward_reaches_jvp(Function):
    """L34: save_for_forward keeps tensors (or None) for jvp, read through saved_tensors."""
    Scale = make_scale(Function, lambda x, scale: (x, scale, None))
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        scale = torch.autograd.forward_ad.make_dual(torch.tensor(5.0), torch.tensor(10.0))
        out = torch.autograd.forward_ad.unpack_dual(Scale.apply(x, scale))

    assert out.primal.item() == 10.0
    assert out.tangent.item() == 25.0


def test_only_tensors_are_saved_for_forward(Function):
    """L34: something else than a tensor raises."""
    with pytest.raises((AssertionError, TypeError), match="save_for_forward"):
        make_scale(Function, lambda x, scale: (3,)).apply(torch.ones(1), torch.ones(1))


@on_access
def test_first_access_hands_the_tensors_over(Function, no_collector):
    """L35: with clear_saved_tensors_on_access the first access gives the only reference."""
    alive = []

    class Once(Function):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x):
            cosine = x.cos()
            Once.saved = weakref.ref(cosine)
            ctx.save_for_backward(cosine)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (cosine,) = ctx.saved_tensors
            gradient = g * cosine
            alive.append(Once.saved() is not None)
            del cosine
            alive.append(Once.saved() is not None)
            return gradient

    x = torch.zeros(2, requires_grad=True)
    (gx,) = grad(Once.apply(x).sum(), x)

    assert gx.tolist() == [1.0, 1.0]
    assert alive == [True, False]


@on_access
def test_second_access_raises(Function):
    """L35: and a second access in the same backward raises."""

    class Once(Function):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            ctx.saved_tensors  # noqa: B018
            return 2 * g * ctx.saved_tensors[0]

    with pytest.raises(RuntimeError, match=r"(?i)clear|freed|second"):
        Once.apply(torch.ones(2, requires_grad=True)).sum().backward()


@boxed
def test_boxed_cotangents_come_as_one_list(Function, no_collector):
    """L36: one mutable list; taking an entry out frees it; the return value is as ever."""
    seen = []

    class Boxed(Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, cotangents):
            seen.append((type(cotangents), len(cotangents)))
            first = cotangents.pop(0)
            gradient = 2 * first
            watched = weakref.ref(first)
            del first
            seen.append(watched())
            return gradient + 3 * cotangents[0]

    x = torch.ones(2, requires_grad=True)
    first, second = Boxed.apply(x)
    (gx,) = grad((10 * first + second).sum(), x)

    assert seen == [(list, 2), None]
    assert gx.tolist() == [23.0, 23.0]


@boxed
def test_boxed_cotangents_include_none(Function):
    """L36: an unused output is None in the list when nothing is materialised."""
    seen = []

    class Boxed(Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, cotangents):
            seen.append([g is None for g in cotangents])
            return 2 * cotangents[0]

    x = torch.ones(2, requires_grad=True)
    (gx,) = grad(Boxed.apply(x)[0].sum(), x)

    assert seen == [[False, True]]
    assert gx.tolist() == [2.0, 2.0]
