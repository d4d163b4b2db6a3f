"""The cut of small graphs whose best cut is known by hand."""

import operator

import pytest
import torch

from pullback.errors import InternalError, PolicyError
from pullback.graph.cost import is_matmul_like
from pullback.graph.cut import cut
from tests.graph.making import SECRET, Making, aten, names, sine, square_sine


def bytes_in(cut):
    return cut.intermediate_bytes, cut.input_bytes, cut.output_bytes


# ---- what is saved ----


def test_input_is_saved_not_what_follows_of_it():
    best = cut(sine())

    assert names(best.saved) == ["x"]
    assert names(best.recomputed) == []
    assert bytes_in(best) == (0, 32, 0)
    assert (best.charged_bytes, best.flops) == (32, 0)


def exponential():
    """y = exp(x), whose derivative is y."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    y = g.call(aten.exp.default, x)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, y)])


@pytest.mark.parametrize("free", [(), ("x",)], ids=["charged", "leaf"])
def test_output_is_saved_for_nothing(free):
    best = cut(exponential(), free=free)

    assert names(best.saved) == ["exp"]
    assert bytes_in(best) == (0, 0, 32)
    assert (best.charged_bytes, best.flops) == (0, 0)


def test_intermediates_are_recomputed_from_inputs():
    best = cut(square_sine())

    assert names(best.saved) == ["x", "z"]
    assert names(best.recomputed) == ["mul", "sin"]
    assert bytes_in(best) == (0, 64, 0)
    assert best.flops == 8 + 80


def test_everything_keeps_what_backward_uses():
    best = cut(square_sine(), "everything")

    assert names(best.saved) == ["x", "z", "mul", "sin"]
    assert names(best.recomputed) == []
    assert bytes_in(best) == (64, 64, 0)


def test_everything_leaves_backward_where_it_is():
    best = cut(sine(), "everything")

    assert names(best.saved) == ["x"]
    assert best.flops == 0


@pytest.mark.parametrize(("unit", "saved"), [(0, ["x"]), (1, ["x", "neg"])])
def test_everything_keeps_no_grid_of_one_call(unit, saved):
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    places = g.call(aten.arange.default, 8, val=torch.empty(8, device="meta"))
    turned = g.call(aten.neg.default, places)
    places.meta["unit"], turned.meta["unit"] = 0, unit
    out = g.call(aten.mul.Tensor, x, turned)
    gradient = g.back(aten.mul.Tensor, g.back(aten.mul.Tensor, cotangent, turned), x)

    got = cut(g.joint([out], [gradient]), "everything", free=["x"])

    assert [node.name for node in got.saved] == saved


def test_needed_gradient_alone_saves_less():
    best = cut(square_sine(), "everything", needed={0})

    assert names(best.saved) == ["x", "sin"]
    assert best.needed == (0,)


def test_nothing_needed_saves_nothing():
    best = cut(square_sine(), needed=())

    assert (best.saved, best.recomputed, best.flops) == ((), (), 0)


def waist():
    """x (large) -> small -> large again: the small one is all that backward needs."""
    g = Making()
    x, cotangent = g.input("x", 100), g.cotangent("ct", 50)
    small = g.call(aten.narrow_copy.default, x, 0, 0, 2, size=2)
    wide = g.call(aten.repeat.default, small, [25], size=50)
    y = g.call(aten.exp.default, wide)
    z = g.call(aten.neg.default, y)
    return g.joint([z], [g.back(aten.mul.Tensor, cotangent, y)])


def test_narrow_place_is_cut():
    best = cut(waist())

    assert names(best.saved) == ["narrow_copy"]
    assert names(best.recomputed) == ["repeat", "exp"]
    assert bytes_in(best) == (8, 0, 0)


def test_leaf_is_better_than_the_narrow_place():
    best = cut(waist(), free={"x"})

    assert names(best.saved) == ["x"]
    assert (best.charged_bytes, best.input_bytes) == (0, 400)


def late_product():
    """Backward needs only the product of two intermediates, which come from a matrix product."""
    g = Making()
    x, w, cotangent = g.input("x", (4, 4)), g.input("w", (4, 4)), g.cotangent("ct", (4, 4))
    a = g.call(aten.mm.default, x, w)
    b = g.call(aten.mm.default, w, x)
    y = g.call(aten.add.Tensor, a, b)
    z = g.call(aten.sin.default, y)
    product = g.back(aten.mul.Tensor, a, b)
    return g.joint([z], [g.back(aten.mul.Tensor, cotangent, product)])


def test_work_of_backward_moves_to_forward_to_save_less():
    best = cut(late_product())

    assert names(best.saved) == ["mul"]
    assert bytes_in(best) == (64, 0, 0)
    assert best.recomputed == ()


def test_everything_does_not_move_work():
    assert names(cut(late_product(), "everything").saved) == ["mm", "mm_1"]


def test_matmul_runs_again_only_when_told():
    assert names(cut(late_product(), "inputs").recomputed) == ["mm", "mm_1"]


def late_matmul():
    """A matrix product that only backward needs, from an intermediate that it also needs."""
    g = Making()
    x, cotangent = g.input("x", (4, 4)), g.cotangent("ct", (4, 4))
    a = g.call(aten.sin.default, x)
    y = g.call(aten.exp.default, a)
    square = g.back(aten.mm.default, a, a)
    of_x = g.back(aten.mul.Tensor, cotangent, g.back(aten.mul.Tensor, square, x))
    return g.joint([y], [of_x])


def test_matmul_of_backward_is_no_recomputation():
    best = cut(late_matmul(), free={"x"})

    assert names(best.saved) == ["x"]
    assert names(best.recomputed) == ["sin"]


def shared_matmul(*, through=False):
    """A matrix product of backward's, of a leaf; backward needs it, and a bit of it times `a`.

    Saving that bit alone is cheapest, and would compute the product in both graphs.
    """
    g = Making()
    x, w, cotangent = g.input("x", (4, 4)), g.input("w", (4, 4)), g.cotangent("ct", (4, 4))
    a = g.call(aten.mm.default, x, w)
    y = g.call(aten.sin.default, a)
    product = g.back(aten.mm.default, x, x)
    used = g.back(aten.neg.default, product) if through else product
    bit = g.back(aten.narrow_copy.default, g.back(aten.mul.Tensor, used, a), 0, 0, 1, size=1)
    return g.joint([y], [g.back(aten.mul.Tensor, g.back(aten.mul.Tensor, cotangent, used), bit)])


@pytest.mark.parametrize("through", [False, True], ids=["itself", "its-negative"])
def test_matmul_of_backward_runs_once_too(through):
    best = cut(shared_matmul(through=through), free={"x", "w"})

    assert best.charged_bytes == 64
    assert not any(map(is_matmul_like, best.recomputed))


@pytest.mark.parametrize("through", [False, True], ids=["itself", "its-negative"])
def test_work_moved_to_forward_counts_when_it_runs_twice(through):
    best = cut(shared_matmul(through=through), 4, free={"x"})

    assert names(best.saved) == ["x", "narrow_copy"]
    assert best.flops == 2 * 4**3 + 16 * through


def norm():
    """x / sum(x): the sum is small, and dear to compute again."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct", 8)
    total = g.call(aten.sum.dim_IntList, x, [0], True, size=1)
    y = g.call(aten.div.Tensor, x, total, size=8)
    y = g.call(aten.neg.default, y)
    return g.joint([y], [g.back(aten.div.Tensor, g.back(aten.mul.Tensor, cotangent, x), total)])


def test_small_reduction_is_kept():
    best = cut(norm())

    assert names(best.saved) == ["x", "sum_1"]
    assert bytes_in(best) == (4, 32, 0)


def test_small_reduction_runs_again_when_told():
    best = cut(norm(), "inputs")

    assert names(best.saved) == ["x"]
    assert names(best.recomputed) == ["sum_1"]


def products():
    """y = sin(x) @ w, whose derivative for w reads sin(x) once more, through a view."""
    g = Making()
    x, w, cotangent = g.input("x", (2, 4)), g.input("w", (4, 2)), g.cotangent("ct", (2, 2))
    a = g.call(aten.sin.default, x)
    y = g.call(aten.mm.default, a, w, size=(2, 2))
    turned = g.back(aten.t.default, a, size=(4, 2))
    grad = g.back(aten.mm.default, turned, cotangent, size=(4, 2))
    return g.joint([y], [None, grad])


def test_factor_of_both_passes_is_kept():
    assert names(cut(products(), free={"x"}).saved) == ["x"]
    assert names(cut(products(), "factors", free={"x"}).saved) == ["sin"]
    assert cut(products(), "factors", free={"x"}).recomputed == ()
    assert names(cut(square_sine(), "factors").saved) == names(cut(square_sine()).saved)


# ---- random and opaque ops ----


def dropout(target=aten.rand_like.default):
    """A mask made of something that cannot run twice; the mask is a quarter of its size."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    drawn = g.call(target, x)
    mask = g.call(aten.lt.Scalar, drawn, 0.5, val=torch.empty(8, dtype=torch.bool, device="meta"))
    y = g.call(aten.mul.Tensor, x, mask)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, mask, size=8)])


@pytest.mark.parametrize("policy", ["auto", "inputs", "everything", 8])
@pytest.mark.parametrize("target", [aten.rand_like.default, SECRET], ids=["random", "opaque"])
def test_what_cannot_run_twice_is_kept(policy, target):
    best = cut(dropout(target), policy)

    assert names(best.saved) == ["lt"]
    assert best.recomputed == ()


def test_inputs_saves_inputs_beside_the_mask():
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    drawn = g.call(aten.rand_like.default, x)
    mask = g.call(aten.lt.Scalar, drawn, 0.5, val=torch.empty(8, dtype=torch.bool, device="meta"))
    noisy = g.call(aten.mul.Tensor, x, mask)
    y = g.call(aten.sin.default, noisy)
    joint = g.joint([y], [g.back(aten.mul.Tensor, cotangent, g.back(aten.cos.default, noisy))])

    assert names(cut(joint).saved) == ["mul"]
    assert names(cut(joint, "inputs").saved) == ["x", "lt"]
    assert cut(joint, "inputs").charged_bytes == 32 + 8


def backward_draws():
    """Backward draws for itself, from an intermediate."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    a = g.call(aten.sin.default, x)
    y = g.call(aten.exp.default, a)
    drawn = g.back(aten.rand_like.default, a)
    scaled = g.back(aten.sum.default, drawn, size=1)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, scaled)])


def test_draw_of_backward_stays_in_backward():
    best = cut(backward_draws(), free={"x"})

    assert names(best.saved) == ["x"]
    assert names(best.recomputed) == ["sin"]


# ---- views, several outputs, numbers ----


def viewed():
    """Backward needs a view of an intermediate and a view of an input."""
    g = Making()
    x, w, cotangent = g.input("x", (4, 4)), g.input("w", (2, 4)), g.cotangent("ct", (4, 2))
    h = g.call(aten.mm.default, x, x)
    turned = g.call(aten.t.default, w, size=(4, 2))
    y = g.call(aten.mm.default, h, turned, size=(4, 2))
    rows = g.back(aten.t.default, h)
    of_w = g.back(aten.mm.default, rows, cotangent, size=(4, 2))
    of_h = g.back(aten.mm.default, cotangent, g.back(aten.t.default, turned, size=(2, 4)))
    return g.joint([y], [of_h, of_w])


@pytest.mark.parametrize("policy", ["auto", "everything"])
def test_base_is_saved_not_its_view(policy):
    best = cut(viewed(), policy)

    assert names(best.saved) == ["w", "mm"]
    assert bytes_in(best) == (64, 32, 0)
    assert best.flops == 0


def test_base_of_an_output_is_alive_anyway():
    g = Making()
    x, cotangent = g.input("x", (2, 4)), g.cotangent("ct", (4, 2))
    h = g.call(aten.exp.default, x)
    y = g.call(aten.t.default, h, size=(4, 2))
    turned = g.back(aten.t.default, cotangent, size=(2, 4))
    best = cut(g.joint([y], [g.back(aten.mul.Tensor, turned, h)]))

    assert names(best.saved) == ["exp"]
    assert (bytes_in(best), best.charged_bytes) == ((0, 0, 32), 0)


def test_unsafe_view_counts_as_a_view():
    g = Making()
    x, cotangent = g.input("x", (4, 4)), g.cotangent("ct", 16)
    h = g.call(aten.mm.default, x, x)
    flat = g.call(aten._unsafe_view.default, h, [16], size=16)
    y = g.call(aten.sin.default, flat)
    of_flat = g.back(aten.mul.Tensor, cotangent, flat)
    best = cut(g.joint([y], [of_flat, g.back(aten.mul.Tensor, of_flat, h)]), "everything")

    assert names(best.saved) == ["mm"]


def parts_of(target, sizes):
    """An op with several outputs, of which backward needs the last."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    h = g.call(aten.sin.default, x)
    values = tuple(torch.empty(size, device="meta") for size in sizes)
    several = g.call(target, h, val=values)
    parts = [g.call(operator.getitem, several, i, val=v) for i, v in enumerate(values)]
    y = g.call(aten.add.Tensor, *parts[:2], size=8)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, parts[-1])])


def test_one_of_several_outputs_is_saved():
    best = cut(parts_of(aten.var_mean.default, [1, 1]))

    assert names(best.saved) == ["getitem_1"]
    assert bytes_in(best) == (4, 0, 0)


def test_op_with_several_outputs_runs_again_whole():
    best = cut(parts_of(aten.var_mean.default, [1, 1]), "inputs")

    assert names(best.saved) == ["x"]
    assert names(best.recomputed) == ["sin", "var_mean", "getitem_1"]


def test_piece_of_a_split_is_a_view():
    best = cut(parts_of(aten.split.Tensor, [4, 4]), "everything")

    assert names(best.saved) == ["sin"]


def sized():
    """Backward needs a size of an intermediate, and nothing else of it."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct", 1)
    h = g.call(aten.exp.default, x)
    y = g.call(aten.sum.default, h, size=1)
    size = g.back(aten.sym_size.int, h, 0, val=8)
    return g.joint([y], [g.back(aten.expand.default, cotangent, [size], size=8)])


@pytest.mark.parametrize("policy", ["auto", "inputs", "everything", 0])
def test_number_costs_nothing_and_stands_apart(policy):
    best = cut(sized(), policy)

    assert best.saved == ()
    assert names(best.numbers) == ["sym_size"]
    assert (best.charged_bytes, best.recomputed) == (0, ())


def test_what_can_neither_be_saved_nor_run_again_is_refused():
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    values = (torch.empty(8, device="meta"), torch.empty(8, device="meta"))
    both = g.call(aten.native_dropout.default, x, 0.5, True, val=values)
    y = g.call(operator.getitem, both, 0, val=values[0])
    joint = g.joint([y], [g.back(aten.mul.Tensor, cotangent, both)])
    with pytest.raises(InternalError) as caught:
        cut(joint)

    assert str(caught.value) == (
        "E900 internal: what backward needs must follow from tensors that can be saved\n"
        "  got:      native_dropout"
    )


def test_gradient_that_needs_no_cotangent_is_provided():
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    y = g.call(aten.sin.default, x)
    zeros = g.back(aten.full.default, [8], 0.0, size=8)
    del cotangent
    best = cut(g.joint([y], [zeros, None]))

    assert (best.saved, best.recomputed) == ((), ())


# ---- what is asked for ----


def test_free_inputs_go_by_name_or_position():
    by_name, by_position = (cut(square_sine(), free=free) for free in ({"z"}, {1}))

    assert by_name.charged_bytes == by_position.charged_bytes == 32


def test_free_must_name_an_input():
    with pytest.raises(InternalError) as caught:
        cut(square_sine(), free={"q"})

    assert str(caught.value) == (
        "E900 internal: `free` must hold inputs\n  expected: x, z\n  got:      ['q']"
    )


@pytest.mark.parametrize("policy", ["all", -1, True, 2.5, None], ids=repr)
def test_unknown_policy_is_refused(policy):
    with pytest.raises(PolicyError) as caught:
        cut(sine(), policy)

    assert str(caught.value) == (
        "E303 save-policy: `save` must be the name of a policy or a number of bytes\n"
        '  expected: "auto", "factors", "inputs", "everything", or a whole number from 0\n'
        f"  got:      {policy!r}\n"
        '  fix:      leave it out, which means "auto"'
    )


def test_budget_too_small_names_the_smallest():
    with pytest.raises(PolicyError) as caught:
        cut(square_sine(), 60)

    assert str(caught.value) == (
        "E303 save-policy: `save` must leave room for what backward cannot do without\n"
        "  expected: 64 bytes or more\n"
        "  got:      60 bytes\n"
        "  fix:      save=64"
    )
    assert cut(square_sine(), 64).charged_bytes == 64
