"""Compiled compositions in every layout: right, compiled, and counted; what is not says so once."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import pullback as pb
from pullback.errors import UncompiledWarning, WrongCodeWarning

pytestmark = pytest.mark.needs_compiler

COMPILING = ["inductor", "native"]


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def rope(q, cos, sin):
    half = q.shape[-1] // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * cos + turned * sin


def scale(x, w):
    return torch.tanh(x * w) + x


LAYOUTS = {
    "contiguous": lambda: leaf(2, 4, 6, 8),
    "transposed": lambda: leaf(2, 6, 4, 8).transpose(1, 2),
    "turned round": lambda: leaf(8, 6, 4, 2).permute(3, 2, 1, 0),
    "sliced": lambda: leaf(2, 4, 12, 9)[:, :, ::2, 1:],
    "expanded": lambda: leaf(2, 1, 6, 8).expand(2, 4, 6, 8),
    "channels last": lambda: leaf(2, 4, 6, 8).contiguous(memory_format=torch.channels_last),
    "one row": lambda: leaf(2, 4, 12, 8)[:, :, 5:11],
}

# What is done with the output, and so the cotangent that comes back.
ENDS = {
    "dense": lambda y: (y * torch.linspace(0, 1, y.numel()).view_as(y)).sum(),
    "sum": lambda y: y.sum(),
    "a row": lambda y: y[:, 1].square().sum(),
    "attention": lambda y: F.scaled_dot_product_attention(y, y, y).sum(),
    "a product": lambda y: (y.transpose(1, 2).flatten(2) @ torch.ones(y.shape[1] * 8, 3)).sum(),
    "mean of a view": lambda y: y.transpose(-1, -2).mean(0).square().sum(),
}


def gradients(function, x, w, end):
    return torch.autograd.grad(end(function(x, w)), (x, w))


def check_layouts(backend, layouts, ends):
    w = leaf(8)
    combined = pb.combine(scale, leaf(2, 4, 6, 8), w, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        warnings.simplefilter("error", WrongCodeWarning)
        for make in (LAYOUTS[name] for name in layouts):
            x = make()
            for end in (ENDS[name] for name in ends):
                expected = gradients(scale, x, w, end)
                for _ in range(2):  # cotangents that come again may get code of their own
                    got = gradients(combined.apply, x, w, end)
                    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            assert combined.apply(x, w).stride() == scale(x, w).stride()
    count = len(layouts) * (2 * len(ends) + 1)
    assert "uncompiled" not in combined.explain()
    assert f'{count} calls run by backend "{backend}"' in combined.explain()


@pytest.mark.slow
def test_some_layouts_and_cotangents_are_right_and_compiled():
    check_layouts("native", ["transposed", "expanded"], ["dense", "attention"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", COMPILING)
def test_every_layout_and_cotangent_is_right_and_compiled(backend):
    check_layouts(backend, list(LAYOUTS), list(ENDS))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_sizes_share_code_in_each_pattern_of_strides(backend, monkeypatch):
    from pullback.run.backends import inductor

    made = []
    real = inductor._made
    monkeypatch.setattr(
        inductor, "_made", lambda *a, **k: (made.append(k.get("free_sizes")), real(*a, **k))[1]
    )
    w = leaf(8)
    combined = pb.combine(scale, leaf(3, 8), w, backend=backend)
    for size in (3, 5, 9, 17):
        for x in (leaf(size, 8), leaf(8, size).t()):
            got = torch.autograd.grad(combined.apply(x, w).square().sum(), (x, w))
            expected = torch.autograd.grad(scale(x, w).square().sum(), (x, w))
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)

    assert made.count(True) == 4  # forward and backward for each of two patterns
    assert made.count(None) <= 6


def waves(x):
    return x.sin(), x.cos()


@pytest.mark.parametrize(
    "layout",
    ["sliced", *(pytest.param(n, marks=pytest.mark.slow) for n in ("expanded", "turned round"))],
)
def test_gradient_of_one_output_alone_is_right_in_every_layout(layout):
    combined = pb.combine(waves, leaf(2, 4, 6, 8), backend="inductor")
    x = LAYOUTS[layout]()

    for place in (0, 1):
        got = torch.autograd.grad(combined.apply(x)[place].sum(), x)
        torch.testing.assert_close(got, torch.autograd.grad(waves(x)[place].sum(), x))


@pytest.mark.slow
def test_rope_of_transposed_heads_is_compiled():
    q = leaf(2, 6, 4, 8).transpose(1, 2)
    angle = torch.arange(6.0)[:, None] * torch.ones(8)
    args = q, angle.cos(), angle.sin()
    combined = pb.combine(rope, *args, backend="native")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        out = combined.apply(*args)
        cotangent = torch.randn(2, 6, 4, 8).transpose(1, 2)
        (got,) = torch.autograd.grad(out, q, cotangent)

    assert out.stride() == rope(*args).stride()
    torch.testing.assert_close(got, torch.autograd.grad(rope(*args), q, cotangent)[0])
    assert '1 call run by backend "native"' in combined.explain()


# ---- moments ----


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_no_grad_inference_and_autocast_are_compiled(backend):
    def linear(x, w):
        return torch.tanh(x @ w) * 2

    x, w = leaf(4, 8), leaf(8, 8)
    combined = pb.combine(linear, x, w, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        for moment in (torch.no_grad, torch.inference_mode):
            with moment():
                out = combined.apply(x, w)
                assert not out.requires_grad
                torch.testing.assert_close(out, linear(x, w))
        with torch.autocast("cpu", torch.bfloat16):
            out, expected = combined.apply(x, w), linear(x, w)
        assert out.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
        got = torch.autograd.grad(out.float().sum(), (x, w))
        wanted = torch.autograd.grad(expected.float().sum(), (x, w))
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)
        plain = combined.apply(x.detach(), w.detach())
    assert not plain.requires_grad
    torch.testing.assert_close(plain, linear(x, w).detach())
    assert "uncompiled" not in combined.explain()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_lists_dicts_and_keywords_are_compiled(backend):
    def program(pair, more, *, factor=2.0):
        return pair[0] * more["w"] * factor + pair[1]

    def placed(pair, more, factor=2.0):
        return program(pair, more, factor=factor)

    x, y, w = leaf(3), leaf(3), leaf(3)
    combined = pb.combine(placed, [x, y], {"w": w}, backend=backend)
    for call in (
        lambda: combined.apply([x, y], {"w": w}),
        lambda: combined.apply(more={"w": w}, pair=[x, y]),
        lambda: combined.apply([x, y], {"w": w}, factor=3.0),
    ):
        call().sum().backward()
    torch.testing.assert_close(x.grad, (2 + 2 + 3) * w.detach())
    assert "uncompiled" not in combined.explain()


# ---- outputs without cotangent, or without gradient ----


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_output_that_nobody_uses_costs_no_compiled_code(backend):
    def two(x, w, b):
        return torch.sin(x * w), x * b

    args = leaf(4, 5), leaf(5), leaf(5)
    combined = pb.combine(two, *args, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        for place in (0, 1):
            got = torch.autograd.grad(combined.apply(*args)[place].sum(), args, allow_unused=True)
            want = torch.autograd.grad(two(*args)[place].sum(), args, allow_unused=True)
            assert [g is None for g in got] == [g is None for g in want]
            for g, e in zip(got, want, strict=True):
                if e is not None:
                    torch.testing.assert_close(g, e)


@pytest.mark.parametrize("backend", ["inductor", pytest.param("native", marks=pytest.mark.slow)])
def test_output_that_nobody_uses_costs_no_code_of_open_sizes(backend):
    def two(x, w, b):
        return torch.sin(x * w), x * b, b.exp()

    def args(size):
        return leaf(4, size), leaf(4, 1), leaf(size)

    combined = pb.combine(two, *args(5), backend=backend)
    combined.apply(*args(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        for size, place in ((6, 1), (6, 0), (7, 2), (6, 1)):
            given = args(size)
            got = torch.autograd.grad(combined.apply(*given)[place].sum(), given, allow_unused=True)
            want = torch.autograd.grad(two(*given)[place].sum(), given, allow_unused=True)
            assert [g is None for g in got] == [g is None for g in want]
            for g, e in zip(got, want, strict=True):
                if e is not None:
                    torch.testing.assert_close(g, e)
    assert "uncompiled" not in combined.explain()


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verify", [True, False])
def test_first_backward_may_come_at_another_size_than_the_first_call(backend, verify):
    def scaled(x, w):
        return (x * w).sin()

    w = leaf(3, 1)
    combined = pb.combine(scaled, leaf(3, 5), w, backend=backend, verify=verify)
    for size in (5, 6):
        combined.apply(leaf(3, size), w)
    for size in (7, 1):
        x = leaf(3, size)
        got = torch.autograd.grad(combined.apply(x, w).sum(), (x, w))
        torch.testing.assert_close(got, torch.autograd.grad(scaled(x, w).sum(), (x, w)))


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=pytest.mark.slow), "native"])
def test_value_returned_with_and_without_gradient(backend):
    def both(x):
        y = x.sin() * 2
        return y, y.detach()

    x = leaf(5)
    combined = pb.combine(both, x, backend=backend)
    y, still = combined.apply(x)

    assert y.requires_grad
    assert not still.requires_grad
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x.cos())
    assert f'1 call run by backend "{backend}"' in combined.explain()


# ---- what runs uncompiled ----


def told(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(one.message) for one in caught if issubclass(one.category, UncompiledWarning)]


def dropped(x):
    return F.dropout(x, 0.5) * 2


def returns_view(x):
    return x.t(), x * 2


def decides(x):
    return x * 2 if x.sum() > 0 else x


UNCOMPILED = {
    "random numbers": (dropped, lambda k: k.apply(leaf(3, 4)), "random numbers"),
    "a view of an input": (returns_view, lambda k: k.apply(leaf(3, 4)), "share memory"),
    "second derivative": (
        torch.sin,
        lambda k: torch.autograd.grad(k.apply(x := leaf(3, 4)).sum(), x, create_graph=True),
        "is differentiated",
    ),
    "a transform": (torch.sin, lambda k: torch.vmap(k.apply)(torch.ones(3, 4)), "torch.func"),
}


@pytest.mark.parametrize("case", UNCOMPILED)
def test_uncompiled_call_is_told_once_and_counted(case):
    program, call, said = UNCOMPILED[case]
    combined = pb.combine(program, leaf(3, 4), backend="inductor")
    first, second = told(lambda: call(combined)), told(lambda: call(combined))

    assert len(first) == 1
    assert first[0].startswith("W501 uncompiled-call: ")
    assert said in first[0]
    assert "fix:" in first[0]
    assert not second
    assert said in combined.explain() or "general way" in combined.explain()


def test_program_that_cannot_be_captured_is_told():
    said = told(lambda: pb.combine(decides, leaf(3, 4), backend="inductor"))

    assert len(said) == 1
    assert "must do the same work whatever the values" in said[0]


def test_eager_backend_tells_nothing():
    combined = pb.combine(dropped, leaf(3, 4), backend="eager")

    assert not told(lambda: combined.apply(leaf(3, 4)))
    assert "call" not in combined.explain()


def test_more_patterns_than_code_is_made_for_are_told(monkeypatch):
    from pullback.run.nodes import making

    monkeypatch.setattr(making, "PATTERNS", 0)
    args = leaf(3, 4), leaf(4)
    combined = pb.combine(scale, *args, backend="inductor")
    said = told(lambda: combined.apply(*args))

    assert len(said) == 1
    assert "more layouts" in said[0]
    assert "eagerly" in combined.explain()


# ---- modules ----


def test_module_without_gradients_is_compiled():
    block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    fast = pb.combine(block, leaf(3, 4), backend="inductor")
    x = leaf(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), block(x))
    assert '1 call without gradients by backend "inductor"' in fast.explain()


def test_module_that_runs_as_written_says_so_once():
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    block[0].register_forward_hook(lambda *_: None)
    fast = pb.combine(block, leaf(3, 4), backend="inductor")
    first, second = told(lambda: fast(leaf(3, 4))), told(lambda: fast(leaf(3, 4)))

    assert len(first) + len(second) <= 1  # said when it was combined, or at its first call
    assert "hook" in fast.explain()


def halved(x):
    half = x.chunk(2, 0)[1] * -0.75
    return half.sum(), half


@pytest.mark.slow
def test_backward_that_saves_no_input_gets_code_for_expanded_cotangents():
    """The size of the input, which it needs, is not that of anything that it is given."""
    x = torch.randn(6, 6, dtype=torch.float64, requires_grad=True)
    combined = pb.combine(halved, x, backend="inductor")
    cotangents = [torch.tensor(2.0, dtype=torch.float64), torch.ones(1, 1).double().expand(3, 6)]
    expected = torch.autograd.grad(halved(x), x, cotangents)
    for _ in range(2):
        got = torch.autograd.grad(combined.apply(x), x, cotangents)
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", COMPILING)
def test_first_call_compiles_one_backward(backend, monkeypatch):
    """The expanded cotangent of a sum is copied, and gets code of its own if it comes again."""
    from pullback.run.backends import inductor

    made = []
    real = inductor._made
    monkeypatch.setattr(
        inductor,
        "_made",
        lambda graph, row, name, **k: (made.append(name), real(graph, row, name, **k))[1],
    )
    x, w = leaf(5, 8), leaf(8)
    combined = pb.combine(scale, x, w, backend=backend)
    counts = []
    for _ in range(3):
        got = torch.autograd.grad(combined.apply(x, w).sum(), (x, w))
        torch.testing.assert_close(got, torch.autograd.grad(scale(x, w).sum(), (x, w)))
        counts.append(made.count("backward"))

    assert counts == [1, 2, 2]


# ---- programs that ask how a tensor lies in its memory ----


def scaled_by_stride(x):
    return x * x.stride(0) * 1


def scaled_by_beginning(x):
    return x * (1 + x.storage_offset()) * 1


def branched_by_gaps(x):
    return x.sin() * 2 if x.is_contiguous() else x.cos() * 3


def viewed_from_beginning(x):
    return x.as_strided((2,), (1,), x.storage_offset() + 1).sin() * 1


ASKING = (scaled_by_stride, scaled_by_beginning, branched_by_gaps, viewed_from_beginning)
MEMORY = torch.linspace(-1, 1, 12, dtype=torch.float64)
PLACES = (MEMORY[:3], MEMORY[:6:2], MEMORY[4:7], MEMORY[1:8:3], MEMORY[:1].expand(3))
MAKERS = {
    "derive": lambda program, x: pb.derive(program, x),
    "combine": lambda program, x: pb.combine(program, x, backend="eager"),
    "hybrid": lambda program, x: pb.hybrid(program, x, groups=[(0, 1)], backend="eager"),
}


@pytest.mark.quick(8)
@pytest.mark.filterwarnings("ignore::pullback.errors.UncompiledWarning")
@pytest.mark.parametrize("first", range(2))
@pytest.mark.parametrize("program", ASKING)
@pytest.mark.parametrize("maker", MAKERS)
def test_program_that_asks_for_its_layout_gets_that_of_each_call(maker, program, first):
    leaves = [place.detach().requires_grad_() for place in PLACES]
    if program is viewed_from_beginning:
        leaves = leaves[:3]
    made = MAKERS[maker](program, leaves[first])

    for x in leaves:
        for got, expected in zip(results(made.apply, x), results(program, x), strict=True):
            assert torch.equal(got, expected)


def results(call, x):
    y = call(x)
    return y, torch.autograd.grad(y.sum(), x)[0]


def test_backward_that_views_its_cotangent_gets_a_copy_of_it():
    """Code for the cotangent's own layout cannot be had: no reason to say that nothing compiles."""

    def flat(x, w):
        return (x.flatten() * w).view(x.shape)

    x, w = leaf(4, 6), leaf(24)
    combined = pb.combine(flat, x, w, backend="inductor")
    cotangent = torch.randn(6, 4).mT
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        for _ in range(3):
            got = torch.autograd.grad(combined(x, w), (x, w), cotangent)
            torch.testing.assert_close(got, torch.autograd.grad(flat(x, w), (x, w), cotangent))

    assert "eager" not in combined.explain()
