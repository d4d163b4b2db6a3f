"""`hybrid`: groups as nodes, calls of other kinds, changes in place, random numbers, errors."""

import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import GroupingError
from tests.compose.as_written import assert_same, derivatives_of
from tests.compose.pipelines import Exp, Mul, Sin, Square, Tanh, chain


def pair(*shape):
    x = torch.randn(shape or (4,), dtype=torch.float64, requires_grad=True)
    return x, torch.randn_like(x).requires_grad_()


def gradients(run, *args):
    return torch.autograd.grad(run(*args).sum(), args)


def names_behind(out):
    """The nodes behind `out` along its first inputs."""
    names, node = [], out.grad_fn
    while node is not None and "Accumulate" not in node.name():
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return names


def test_groups_say_what_of_them_is_not_compiled(monkeypatch):
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(2, 3), (0, 1)])
    why = "`tanh` must be known to the compiler"
    for node in made.flow.nodes.values():  # other compositions of the same groups share them
        monkeypatch.setattr(node.nodes, "reasons", [why])

    assert made.eager_reasons() == (why,)
    assert f"    eager: {why}" in made.explain().splitlines()


def test_groups_are_nodes():
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(2, 3), (0, 1)])

    assert issubclass(made, pb.Function)
    assert names_behind(made.apply(x, y)) == ["TanhMulBackward", "SinExpBackward"]
    assert made.groups == ((0, 1), (2, 3))
    assert made.explain() == (
        'hybrid: 2 nodes and 0 units as written, backend "eager"\n'
        "  one node: 0 Sin, 1 Exp\n"
        "  one node: 2 Tanh, 3 Mul"
    )


def test_no_group_is_as_written():
    x, y = pair()
    made = pb.hybrid(chain, x, y)

    names = ["MulBackward", "TanhBackward", "ExpBackward", "SinBackward"]
    assert names_behind(made.apply(x, y)) == names == names_behind(chain(x, y))


def test_groups_written_alike_share_a_node():
    x, y = pair()

    def program(x, y):
        for _ in range(3):
            x = Mul.apply(Sin.apply(x), y)
        return x

    made = pb.hybrid(program, x, y, groups=[(0, 1), (2, 3), (4, 5)])
    first, second = made.apply(x, y).grad_fn, made.apply(x, y).grad_fn.next_functions[0][0]

    assert type(first) is type(second)
    assert_same(derivatives_of(made.apply, (x, y)), derivatives_of(program, (x, y)))


def test_checkpoint_and_hooks_are_as_written():
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(1, 2)])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(force=True), torch.tensor):
        hooked = made.apply(x, y)
    got = torch.autograd.grad(hooked.sum(), (x, y))

    torch.testing.assert_close(got, gradients(chain, x, y))
    for row in ((x, y), pair(6)):  # the second is recorded inside the checkpoint
        got = gradients(lambda *a: checkpoint(made.apply, *a, use_reentrant=False), *row)

        torch.testing.assert_close(got, gradients(chain, *row))


def test_threads_agree_with_one():
    made = pb.hybrid(chain, *pair(), groups=[(0, 1), (2, 3)])
    rows, results = [pair(n) for n in (2, 3, 4, 5)], {}

    def work(place):
        results[place] = [gradients(made.apply, *rows[place]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for place, row in enumerate(rows):
        for got in results[place]:
            torch.testing.assert_close(got, gradients(chain, *row))


@pytest.mark.parametrize("inner", ["combine", "nest", "hybrid"])
@pytest.mark.parametrize("outer", ["combine", "hybrid"])
def test_compositions_are_nestable(outer, inner):
    x, y = pair()
    inside = {
        "combine": lambda: pb.combine(chain, x, y),
        "nest": lambda: pb.nest(chain),
        "hybrid": lambda: pb.hybrid(chain, x, y, groups=[(1, 2)]),
    }[inner]()

    def program(x, y):
        return Square.apply(inside.apply(Exp.apply(x), y))

    def plain(x, y):
        return Square.apply(chain(Exp.apply(x), y))

    if outer == "combine":
        made = pb.combine(program, x, y)
    else:
        made = pb.hybrid(program, x, y, groups=[(0, 1)])

    assert made.composed == ("combined" if outer == "combine" else "hybrid")
    assert "one node" in made.explain()
    assert_same(derivatives_of(made.apply, (x, y)), derivatives_of(plain, (x, y)))


def test_hybrid_is_derivable_again():
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(0, 1)])
    again = pb.derive(made, x, y)

    assert_same(derivatives_of(again.apply, (x, y)), derivatives_of(chain, (x, y)))


@pytest.mark.slow
def test_hybrid_is_sound():
    made = pb.hybrid(chain, *pair(), groups=[(0, 1)])

    assert pb.check(made, pair()).findings == ()


def test_without_recording_nothing_is_kept():
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(0, 1)])
    with torch.no_grad():
        out = made.apply(x, y)

    assert out.grad_fn is None
    assert torch.equal(out, chain(x, y))


def test_compiler_traces_the_program():
    x, y = pair()
    made = pb.hybrid(chain, x, y, groups=[(0, 1)])
    compiled = torch.compile(made.apply, backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(gradients(compiled, x, y), gradients(chain, x, y))


# ---- calls of other kinds ----


def shaped(x, y):
    return x.reshape(2, -1).sin().reshape(x.shape[0]) * y / len(x)


def test_other_sizes_are_recorded_anew():
    made = pb.hybrid(shaped, *pair(), groups=[(0, 1), (2, 3, 4)])
    for row in (pair(6), pair(8), pair(6)):
        assert_same(derivatives_of(made.apply, row), derivatives_of(shaped, row))
        assert "ReshapeMulDivBackward" in names_behind(made.apply(*row))
    assert "nested" not in made.explain()


def test_other_calls_run_as_written():
    def program(x, y):
        return Sin.apply(x) * y if len(x) < 5 else x * Sin.apply(y)

    made = pb.hybrid(program, *pair(), groups=[(0, 1)])
    row = pair(6)

    assert_same(derivatives_of(made.apply, row), derivatives_of(program, row))
    assert made.explain().splitlines()[-1] == (
        "nested for (float64[6], float64[6]): it makes other calls than the examples do"
    )


def test_closure_counts_as_it_is_now():
    x, _ = pair()
    around = {"w": torch.randn(4, dtype=torch.float64, requires_grad=True)}

    def program(x):
        return Mul.apply(Sin.apply(x), around["w"])

    made = pb.hybrid(program, x, groups=[(0, 1)])
    for change in (lambda w: w, lambda w: w.detach().mul(3).requires_grad_(), torch.detach):
        around["w"] = change(around["w"])
        wanted = [t for t in (x, around["w"]) if t.requires_grad]
        got, expected = (torch.autograd.grad(run(x).sum(), wanted) for run in (made.apply, program))

        torch.testing.assert_close(got, expected)
        assert names_behind(made.apply(x)) == ["SinMulBackward"]


# ---- what runs as written ----


class Numpy(pb.Function):
    """A sine by NumPy."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() * 2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_group_with_a_function_that_cannot_be_traced_is_a_node():
    x, y = pair()

    def program(x, y):
        return Mul.apply(Numpy.apply(Square.apply(x)), Sin.apply(Exp.apply(y)))

    made = pb.hybrid(program, x, y, groups=[(0, 1), (2, 3)])

    got = torch.autograd.grad(made.apply(x, y).sum(), (x, y))
    torch.testing.assert_close(got, torch.autograd.grad(program(x, y).sum(), (x, y)))
    lines = made.explain().splitlines()
    assert lines[0].startswith("hybrid: 2 nodes and 1 unit as written")


def test_program_that_reads_values_runs_as_written():
    x, y = pair()

    def program(x, y):
        return Sin.apply(x) * float(y.detach().sum())

    made = pb.hybrid(program, x, y, groups=[(0, 1)])

    assert made.composed == "nested"
    assert "must do the same work whatever the values" in made.explain()
    assert torch.equal(made.apply(x, y), program(x, y))


def changes(x, y):
    z = Square.apply(x)
    w = z * 1
    w.mul_(y)
    return Sin.apply(w) + z


def test_change_inside_a_group_is_combined():
    x, y = pair()
    made = pb.hybrid(changes, x, y, groups=[(1, 2, 3)])

    assert made.explain().count("one node") == 1
    assert_same(derivatives_of(made.apply, (x, y)), derivatives_of(changes, (x, y)))


def test_change_across_groups_runs_as_written():
    x, y = pair()
    made = pb.hybrid(changes, x, y, groups=[(0, 1), (2, 3)])

    assert made.explain().count("one node") == 0
    assert "`mul_` changes what is made outside its group" in made.explain()
    assert_same(derivatives_of(made.apply, (x, y)), derivatives_of(changes, (x, y)))


def test_change_seen_through_a_view_is_kept():
    x, y = pair()

    def program(x, y):
        z = x * 2
        view = z[:2]
        z.add_(y)
        return view * 3 + Tanh.apply(view)

    for groups in ([(0, 1)], [(3, 4)], [(2, 3)], [(0, 1, 2), (3, 4, 5)], [(0, 1, 2, 3, 4, 5)]):
        made = pb.hybrid(program, x, y, groups=groups)

        assert_same(derivatives_of(made.apply, (x, y)), derivatives_of(program, (x, y)))


def test_changed_buffer_runs_as_written():
    norm = torch.nn.BatchNorm1d(4).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def program(x):
        return Sin.apply(norm(x))

    made = pb.hybrid(program, x, groups=[(0, 1)])
    before = norm.num_batches_tracked.item()
    made.apply(x)

    assert made.composed == "nested"
    assert (before, norm.num_batches_tracked.item()) == (0, 1)


# ---- random numbers ----


def noisy(x, y):
    a = torch.rand_like(x)
    s = Sin.apply(x)
    b = torch.rand_like(y)
    return a * s + b * y


@pytest.mark.parametrize("groups", [[(0, 1)], [(0, 1, 2)], [(2, 4), (1, 3)], [(1, 2), (0,)]])
def test_random_numbers_are_as_written(groups):
    x, y = pair()
    made = pb.hybrid(noisy, x, y, groups=groups)
    torch.manual_seed(3)
    got = made.apply(x, y)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    expected = noisy(x, y)

    assert torch.equal(got, expected)
    assert torch.equal(after, torch.get_rng_state())


def test_order_of_random_numbers_is_kept():
    x, y = pair()
    with pytest.raises(GroupingError):
        pb.hybrid(noisy, x, y, groups=[(0, 3), (1, 2)])


def test_making_draws_nothing():
    x, y = pair()
    before = torch.get_rng_state()
    pb.hybrid(noisy, x, y, groups=[(0, 1)])

    assert torch.equal(before, torch.get_rng_state())


# ---- errors ----

CIRCLE = (
    "E501 grouping: groups of `chain` must not wait for each other\n"
    "  got:      [0, 2] and [1]\n"
    "  fix:      put them into one group, or take apart the one that surrounds the other"
)
TWICE = "E501 grouping: each unit of `chain` must be in one group\n  got:      1 (Exp) twice"
UNKNOWN = (
    "E501 grouping: a group must name units of `chain`\n"
    "  expected: numbers from 0 to 3: 0 Sin, 1 Exp, 2 Tanh, 3 Mul\n"
    "  got:      9"
)


@pytest.mark.parametrize(
    ("groups", "text"),
    [([(0, 2)], CIRCLE), ([(0, 1), (1, 2)], TWICE), ([(0, 9)], UNKNOWN)],
    ids=["circle", "twice", "unknown"],
)
def test_impossible_groups_are_refused(groups, text):
    with pytest.raises(GroupingError) as caught:
        pb.hybrid(chain, *pair(), groups=groups)

    assert str(caught.value) == text


def test_error_of_the_program_is_raised():
    with pytest.raises(RuntimeError, match="must match the size") as caught:
        pb.hybrid(chain, pair(2)[0], pair(3)[0])

    assert not isinstance(caught.value, pb.PullbackError)
