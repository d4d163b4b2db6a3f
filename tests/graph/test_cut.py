"""The cut of small graphs whose best cut is known by hand, and of random ones by brute force."""

import itertools
import operator
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
import torch
from torch import fx

from pullback.errors import InternalError, PolicyError
from pullback.graph.cost import bytes_of, flops_of, is_matmul_like, is_opaque, is_random, is_view
from pullback.graph.cut import Point, cut, frontier
from pullback.graph.parts import BACKWARD, FORWARD, JointGraph, phase_of

aten = torch.ops.aten


@torch.library.custom_op("pullback_test_cut::secret", mutates_args=())
def secret(x: torch.Tensor) -> torch.Tensor:
    """An op whose inside nobody sees."""
    return x + 1


SECRET = torch.ops.pullback_test_cut.secret.default


@dataclass
class Making:
    """A joint graph in the making; a size is a number of float32 elements."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: int = 0

    def input(self, name, size):
        self.inputs += 1
        return self.cotangent(name, size)

    def cotangent(self, name, size=8):
        node = self.graph.placeholder(name)
        node.meta["val"] = torch.empty(size, device="meta")
        return node

    def call(self, target, *args, size=None, val=None, phase=FORWARD):
        name = str(target).split(".")[1] if "." in str(target) else target.__name__
        node = self.graph.create_node("call_function", target, args, {}, name)
        like = next((a.meta["val"] for a in args if isinstance(a, fx.Node)), None)
        val = torch.empty(size, device="meta") if size is not None else val
        node.meta.update(val=like if val is None else val, phase=phase, unit=None, place="")
        return node

    def back(self, target, *args, **kwargs):
        return self.call(target, *args, phase=BACKWARD, **kwargs)

    def joint(self, outputs, gradients):
        self.graph.output((*outputs, *gradients))
        self.graph.lint()
        return JointGraph(self.graph, self.inputs, len(outputs))


def names(nodes):
    return [node.name for node in nodes]


def bytes_in(cut):
    return cut.intermediate_bytes, cut.input_bytes, cut.output_bytes


# ---- what is saved ----


def sine():
    """y = sin(x), with a hand-written cos(x) in backward."""
    g = Making()
    x, cotangent = g.input("x", 8), g.cotangent("ct")
    y = g.call(aten.sin.default, x)
    cosine = g.back(aten.cos.default, x)
    return g.joint([y], [g.back(aten.mul.Tensor, cotangent, cosine)])


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


def square_sine():
    """y = x * x * sin(z): two intermediates, both of which follow from inputs."""
    g = Making()
    x, z, cotangent = g.input("x", 8), g.input("z", 8), g.cotangent("ct")
    square, sin = g.call(aten.mul.Tensor, x, x), g.call(aten.sin.default, z)
    y = g.call(aten.mul.Tensor, square, sin)
    of_square, of_sin = (g.back(aten.mul.Tensor, cotangent, other) for other in (sin, square))
    twice = g.back(aten.mul.Tensor, of_square, 2)
    of_x = g.back(aten.mul.Tensor, twice, x)
    of_z = g.back(aten.mul.Tensor, of_sin, g.back(aten.cos.default, z))
    return g.joint([y], [of_x, of_z])


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
        '  expected: "auto", "inputs", "everything", or a whole number from 0\n'
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


# ---- budgets and the frontier ----


def knapsack():
    """Three independent intermediates: 12, 20 and 32 bytes, worth 3, 5 and 80 flops."""
    g = Making()
    ops = {3: aten.neg.default, 5: aten.neg.default, 8: aten.sin.default}
    xs = [g.input(f"x{size}", size) for size in ops]
    cotangents = [g.cotangent(f"ct{size}", size) for size in ops]
    outputs, gradients = [], []
    for (size, op), x, cotangent in zip(ops.items(), xs, cotangents, strict=True):
        middle = g.call(op, x)
        outputs.append(g.call(aten.relu.default, middle))
        gradients.append(g.back(aten.mul.Tensor, g.back(aten.mul.Tensor, cotangent, middle), x))
        assert flops_of(middle) in (3, 5, 80), size
    return g.joint(outputs, gradients)


LEAVES = frozenset({"x3", "x5", "x8"})


@pytest.mark.parametrize(
    ("budget", "bytes_", "flops"),
    [
        *[(0, 0, 88), (11, 0, 88), (12, 12, 85), (20, 20, 83), (31, 20, 83), (32, 32, 8)],
        *[(44, 44, 5), (52, 52, 3), (63, 52, 3), (64, 64, 0), (10**9, 64, 0)],
    ],
)
def test_budget_is_spent_where_it_helps_most(budget, bytes_, flops):
    best = cut(knapsack(), budget, free=LEAVES)

    assert (best.charged_bytes, best.flops) == (bytes_, flops)


def test_frontier_has_points_off_the_convex_hull():
    points = frontier(knapsack(), free=LEAVES)
    expected = [(64, 0), (52, 3), (44, 5), (32, 8), (20, 83), (12, 85), (0, 88)]

    assert [(point.bytes, point.flops) for point in points] == expected


def test_frontier_measures_each_point_once():
    measured = []

    def time(cut):
        measured.append(cut)
        return float(len(measured))

    points = frontier(square_sine(), free={"x", "z"}, time=time)

    assert points == tuple(Point(cut, number) for number, cut in enumerate(measured, start=1))
    assert [point.bytes for point in points] == [64, 32, 0]


def test_point_without_a_clock_has_no_time():
    assert [point.time for point in frontier(sine())] == [None]


def chain(length):
    """A long chain of equal steps, each of which backward needs: ties everywhere."""
    g = Making()
    x, cotangent = g.input("x", 1000), g.cotangent("ct", 1000)
    steps = [g.call(aten.neg.default, x)]
    for _ in range(length - 1):
        steps.append(g.call(aten.neg.default, steps[-1]))
    gradient = cotangent
    for step in reversed(steps):
        gradient = g.back(aten.mul.Tensor, gradient, step)
    return g.joint([g.call(aten.relu.default, steps[-1])], [gradient])


def test_frontier_of_equal_steps_is_complete():
    points = frontier(chain(30), free={"x"})
    expected = [(4000 * kept, 1000 * (30 - kept)) for kept in range(30, -1, -1)]

    assert [(point.bytes, point.flops) for point in points] == expected


def test_search_that_is_cut_short_still_fits(monkeypatch):
    monkeypatch.setattr("pullback.graph.cut.EFFORT", 1)
    best = cut(knapsack(), 44, free=LEAVES)

    assert best.charged_bytes <= 44


def equal_gains():
    """Nine independent intermediates of 12 to 44 bytes, each worth 16 flops."""
    g = Making()
    xs = [g.input(f"x{size}", 16) for size in range(3, 12)]
    cotangent = g.cotangent("ct", 16)
    outputs, gradients = [], []
    for size, x in enumerate(xs, start=3):
        middle = g.call(aten.neg.default, x, size=size)
        outputs.append(g.call(aten.relu.default, middle))
        gradients.append(g.back(aten.mul.Tensor, g.back(aten.mul.Tensor, cotangent, middle), x))
    return g.joint(outputs, gradients)


def test_little_effort_is_enough_for_equal_gains(monkeypatch):
    monkeypatch.setattr("pullback.graph.cut.EFFORT", 1)
    points = frontier(equal_gains(), free=range(9))
    smallest = [4 * sum(range(3, 3 + count)) for count in range(10)]

    assert [point.bytes for point in points] == smallest[::-1]
    assert [point.flops for point in points] == [16 * count for count in range(10)]


def test_budget_keeps_no_more_alive_than_it_must():
    g = Making()
    x, z = g.input("x", 1000), g.input("z", 8)
    cotangents = g.cotangent("ct", 1000), g.cotangent("ct2", 8)
    steps = [g.call(aten.neg.default, x)]
    steps += [g.call(aten.neg.default, steps[0]), g.call(aten.neg.default, steps[0])]
    wide = torch.empty(8, dtype=torch.float64, device="meta")
    copied = g.call(aten._to_copy.default, z, val=wide)
    gradient = cotangents[0]
    for step in steps:
        gradient = g.back(aten.mul.Tensor, gradient, step)
    other = g.back(aten.mul.Tensor, cotangents[1], copied)
    outputs = [g.call(aten.relu.default, step) for step in steps]
    best = cut(g.joint([*outputs, copied], [gradient, other]), 8000, free={"x", "z"})

    assert (best.charged_bytes, best.flops) == (8000, 1000)
    assert (best.input_bytes, best.output_bytes) == (32, 0)


# ---- random graphs, and every cut of them ----

TARGETS = [
    *[aten.neg.default, aten.sin.default, aten.add.Tensor, aten.mul.Tensor] * 2,
    aten.mm.default,
    aten.sum.default,
    aten.rand_like.default,
    aten.view.default,
    SECRET,
]


def random_joint(seed):
    """A joint graph of random ops and sizes; some of the work of backward needs no cotangent."""
    draw = random.Random(seed)
    g = Making()
    early = [g.input(f"x{i}", draw.choice([1, 3, 8])) for i in range(2)]
    cotangent = g.cotangent("ct", 8)

    def add(pool, phase):
        target = draw.choice(TARGETS)
        first, second = draw.choice(pool), draw.choice(pool)
        size = draw.choice([1, 2, 5, 8])
        if target is aten.view.default:
            return g.call(target, first, [-1], phase=phase)
        if target in (aten.add.Tensor, aten.mul.Tensor):
            return g.call(target, first, second, size=size, phase=phase)
        if target is aten.mm.default:
            return g.call(target, first, second, size=(1, size), phase=phase)
        return g.call(target, first, size=size, phase=phase)

    for _ in range(6):
        early.append(add(early, FORWARD))
    late = list(early)
    for _ in range(3):
        late.append(add(late, BACKWARD))
    gradients = []
    for _ in range(2):
        grown = g.back(aten.mul.Tensor, cotangent, draw.choice(late[2:]), size=8)
        gradients.append(g.back(aten.mul.Tensor, grown, draw.choice(late), size=8))
    return g.joint([early[-1], draw.choice(early[2:])], gradients)


def reached(goals: Iterable, stop=frozenset()):
    found, pending = set(), [goal for goal in goals if isinstance(goal, fx.Node)]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.add(node)
        pending += [] if node in stop else node.all_input_nodes
    return found


def base(node):
    return base(node.args[0]) if is_view(node) else node


@dataclass
class Outcome:
    """What saving some nodes comes to, worked out from what runs where."""

    saved: tuple
    repeated: set
    charged: int
    alive: int
    flops: int


def outcomes(joint, free=frozenset()):
    """Every way to save, that backward can work with and that runs nothing twice that must not."""
    once = {n for n in joint.graph.nodes if is_random(n) or is_opaque(n)}
    after = {n for n in once if phase_of(n) == BACKWARD}
    before = once - after
    bound = set(joint.cotangents) | after
    for node in joint.graph.nodes:
        if node.op == "call_function" and bound & set(node.all_input_nodes):
            bound.add(node)
    inputs = set(joint.inputs)
    alive = {base(out) for out in joint.outputs} | {n for n in inputs if n.name in free}
    nodes = reached(joint.gradients) - bound
    able = [n for n in joint.graph.nodes if n in nodes and not is_view(n)]
    for count in range(len(able) + 1):
        for saved in itertools.combinations(able, count):
            backward = reached(joint.gradients, stop=frozenset(saved)) - set(saved)
            forward = reached([*joint.outputs, *saved, *filter(is_random, before)])
            if backward & (inputs | before) or forward & bound:
                continue
            twice = backward & forward
            charged = sum(bytes_of(n) for n in saved if n not in alive)
            total = sum(map(bytes_of, saved))
            flops = sum(map(flops_of, twice))
            yield Outcome(saved, twice, charged, total - charged, flops)


def is_dear(node):
    largest = max((bytes_of(source) for source in node.all_input_nodes), default=0)
    is_sum = node.target is aten.sum.default
    return is_matmul_like(node) or (is_sum and 4 * bytes_of(node) <= largest)


SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_auto_is_the_best_of_all_cuts(seed):
    joint = random_joint(seed)
    free = {"x0"} if seed % 2 else frozenset()
    allowed = [o for o in outcomes(joint, free) if not any(map(is_dear, o.repeated))]
    best = cut(joint, free=free)

    alive = sum(map(bytes_of, best.saved)) - best.charged_bytes
    prices = [(o.charged, o.alive, o.flops) for o in allowed]
    assert (best.charged_bytes, alive, best.flops) == min(prices)
    assert set(best.recomputed) in [o.repeated for o in allowed]


def unbeaten(prices):
    """The pairs that no other pair is as good as in both."""
    return {p for p in prices if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in prices)}


@pytest.mark.parametrize("seed", SEEDS)
def test_frontier_is_that_of_all_cuts(seed):
    joint = random_joint(seed)
    free = {"x0"} if seed % 2 else frozenset()
    best = unbeaten({(o.charged, o.flops) for o in outcomes(joint, free)})
    points = frontier(joint, free=free)

    assert [(point.bytes, point.flops) for point in points] == sorted(best, reverse=True)


def many_sizes(seed):
    """Independent intermediates of random bytes and flops: no search for them is short."""
    draw = random.Random(seed)
    sizes = [(draw.randint(1, 30), draw.randint(30, 60)) for _ in range(7)]
    g = Making()
    xs = [g.input(f"x{i}", work) for i, (_, work) in enumerate(sizes)]
    cotangent = g.cotangent("ct", 16)
    outputs, gradients = [], []
    for (size, _), x in zip(sizes, xs, strict=True):
        middle = g.call(aten.neg.default, x, size=size)
        outputs.append(g.call(aten.relu.default, middle))
        gradients.append(g.back(aten.mul.Tensor, g.back(aten.mul.Tensor, cotangent, middle), x))
    kept = itertools.product([False, True], repeat=len(sizes))
    prices = {
        (
            sum(4 * size for keep, (size, _) in zip(row, sizes, strict=True) if keep),
            sum(work for keep, (_, work) in zip(row, sizes, strict=True) if not keep),
        )
        for row in kept
    }
    return g.joint(outputs, gradients), unbeaten(prices)


@pytest.mark.parametrize("seed", range(3))
def test_unproved_points_are_left_out(seed, monkeypatch):
    joint, best = many_sizes(seed)
    monkeypatch.setattr("pullback.graph.cut.EFFORT", 1)
    points = frontier(joint, free=range(7))

    assert {(point.bytes, point.flops) for point in points} < best


@pytest.mark.parametrize("seed", range(3))
def test_every_point_is_found_among_many_sizes(seed):
    joint, best = many_sizes(seed)
    points = frontier(joint, free=range(7))

    assert {(point.bytes, point.flops) for point in points} == best


@pytest.mark.parametrize("seed", range(3))
def test_coarse_frontier_holds_no_beaten_point(seed, monkeypatch):
    monkeypatch.setattr("pullback.graph.cut.GRAIN", 3)
    joint, _ = many_sizes(seed)
    prices = {(point.bytes, point.flops) for point in frontier(joint, free=range(7))}

    assert unbeaten(prices) == prices


def fewest_like(best, joint, every):
    """How few nodes can be saved with the flops and the charged nodes of `best`."""
    alive = {base(out) for out in joint.outputs}
    charged = set(best.saved) - alive
    likes = [o for o in every if set(o.saved) - alive == charged and o.flops == best.flops]
    return min((o.alive, len(o.saved)) for o in likes)[1]


@pytest.mark.parametrize("seed", SEEDS)
def test_larger_budget_never_costs_more_flops(seed):
    joint = random_joint(seed)
    every = list(outcomes(joint))
    least, most = (pick(o.charged for o in every) for pick in (min, max))
    for budget in range(least, most + 4, 4):
        best = cut(joint, budget)
        fits = [(o.flops, o.charged) for o in every if o.charged <= budget]

        assert (best.flops, best.charged_bytes) == min(fits)
        assert len(best.saved) == fewest_like(best, joint, every)
    if least:
        with pytest.raises(PolicyError, match=f"save={least}$"):
            cut(joint, least - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_repeats_only_views(seed):
    best = cut(random_joint(seed), "everything")

    assert [node for node in best.recomputed if not is_view(node)] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_inputs_saves_nothing_that_may_run_again(seed):
    best = cut(random_joint(seed), "inputs")

    for node in best.saved:
        whole = reached([node])
        assert node.op == "placeholder" or any(is_random(n) or is_opaque(n) for n in whole)


@pytest.mark.parametrize("seed", SEEDS)
def test_fewer_gradients_never_save_more(seed):
    joint = random_joint(seed)
    for policy in ("auto", "everything"):
        whole, part = cut(joint, policy), cut(joint, policy, needed={1})

        assert part.charged_bytes <= whole.charged_bytes


def test_cut_is_the_same_every_time():
    first, second = (cut(random_joint(3), free={"x0"}) for _ in range(2))

    assert names(first.saved) == names(second.saved)
    assert names(first.recomputed) == names(second.recomputed)
