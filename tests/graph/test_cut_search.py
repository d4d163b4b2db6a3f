"""Budgets, the frontier, and the cut of random graphs against every cut there is."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch
from torch import fx

from pullback.errors import PolicyError
from pullback.graph import cut as cut_module
from pullback.graph import cut_search
from pullback.graph.cost import bytes_of, flops_of, is_matmul_like, is_opaque, is_random, is_view
from pullback.graph.cut import TradePoint, cut, frontier
from pullback.graph.cut_network import Choice
from pullback.graph.parts import BACKWARD, FORWARD, phase_of
from tests.graph.making import SECRET, Making, aten, names, sine, square_sine

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

    assert points == tuple(TradePoint(cut, number) for number, cut in enumerate(measured, start=1))
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
    monkeypatch.setattr("pullback.graph.cut_search.EFFORT", 1)
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


def counting(monkeypatch, name):
    """The calls of one function of the search, as a list that grows."""
    called, real = [], getattr(cut_search, name)

    def counted(*args, **kwargs):
        called.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(cut_search, name, counted)
    return called


def test_equal_gains_are_proved_without_branching(monkeypatch):
    searches, parts = (counting(monkeypatch, name) for name in ("search", "_bracket"))
    points = frontier(equal_gains(), free=range(9))
    smallest = [4 * sum(range(3, 3 + count)) for count in range(10)]

    assert [point.bytes for point in points] == smallest[::-1]
    assert [point.flops for point in points] == [16 * count for count in range(10)]
    assert len(searches) == len(parts) > 0


def test_budget_keeps_no_more_alive_than_it_must():
    g = Making()
    x, z = g.input("x", 1000), g.input("z", 8)
    z.meta["val"] = torch.empty(8, dtype=torch.float64, device="meta")
    cotangents = g.cotangent("ct", 1000), g.cotangent("ct2", 8)
    steps = [g.call(aten.neg.default, x)]
    steps += [g.call(aten.neg.default, steps[0]), g.call(aten.neg.default, steps[0])]
    copied = g.call(aten._to_copy.default, z, size=8)
    gradient = cotangents[0]
    for step in steps:
        gradient = g.back(aten.mul.Tensor, gradient, step)
    other = g.back(aten.mul.Tensor, cotangents[1], copied)
    outputs = [g.call(aten.relu.default, step) for step in steps]
    best = cut(g.joint([*outputs, copied], [gradient, other]), 8000, free={"x", "z"})

    assert (best.charged_bytes, best.flops) == (8000, 1000)
    assert (best.input_bytes, best.output_bytes) == (0, 32)


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
    sizes = [(draw.randint(1, 30), draw.randint(30, 60)) for _ in range(6)]
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


def test_unproved_points_are_left_out(monkeypatch):
    real = cut_search.search
    monkeypatch.setattr(cut_search, "search", lambda *args: (real(*args)[0], False))
    points = frontier(knapsack(), free=LEAVES)

    assert [(point.bytes, point.flops) for point in points] == [(64, 0), (32, 8), (0, 88)]


@pytest.mark.parametrize("seed", range(3))
def test_every_point_is_found_among_many_sizes(seed):
    joint, best = many_sizes(seed)
    points = frontier(joint, free=range(6))

    assert {(point.bytes, point.flops) for point in points} == best


def test_beaten_points_are_left_out(monkeypatch):
    real, joint = cut_search.pareto, chain(3)
    last = next(node for node in joint.graph.nodes if node.name == "neg_2")
    worse = Choice(frozenset({joint.inputs[0], last}), 0, 0)
    monkeypatch.setattr(cut_module, "pareto", lambda problem: [*real(problem), worse])
    points = frontier(joint)

    assert [point.bytes for point in points] == [12000, 8000, 4000]
    assert [point.flops for point in points] == [0, 1000, 2000]


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
