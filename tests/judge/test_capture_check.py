"""A graph that does not do what its program does is found out, with where and by how much."""

import random
from dataclasses import replace
from textwrap import dedent

import pytest
import torch

import pullback as pb
from pullback.capture.fake import is_fake
from pullback.capture.joint import capture
from pullback.errors import DifferingCaptureError
from pullback.judge.capture_check import run_joint, verify
from tests.capture.cases import normal, programs
from tests.capture.functions import family
from tests.capture.pipelines import PIPELINES

F = family(pb.Function)

FIX = (
    "look for what `program` uses besides its tensors: (1) a global or attribute that changes; "
    "(2) a random state of its own (`manual_seed`); (3) a value read outside PyTorch"
)
SOUND = [
    *("saved intermediate", "nested containers", "outputs in dict", "size as output"),
    *("unfilled, both", "changed input with history", "changed buffer", "many draws"),
    *("closure in apply", "complex input", "autocast", "integer input", "empty input"),
]


def message(text):
    return dedent(text).strip()


def fault(program, *examples, **options):
    """What `verify` says of a fresh capture."""
    with pytest.raises(DifferingCaptureError) as caught:
        verify(capture(program, examples, **options), program, examples)
    return str(caught.value)


# ---- sound captures ----


@pytest.mark.parametrize("name", SOUND)
def test_sound_capture_passes(name):
    case = programs(pb.Function)[name]
    examples = case.arguments(1)

    verify(capture(case.program, examples), case.program, examples)


@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_pass_on_other_sizes(name):
    program, arguments = PIPELINES[name]
    shapes = []

    def spied(*args):
        shapes.append(str(list(args[0].shape)))
        return program(*args)

    verify(capture(program, arguments(6, 4)), spied, arguments(6, 4))

    assert len({shape for shape in shapes if "s" not in shape}) == 3


def test_double_precision_is_tried_where_rounding_may_hide_something():
    dtypes = []

    def program(x, weight=1.0):
        dtypes.append(x.dtype)
        return x.sin() * weight

    captured = capture(program, (normal(3),))
    verify(captured, lambda x: program(x, 1 + 2e-7), (normal(3),))
    assert dtypes.count(torch.float64) == 2  # captured, then compared

    dtypes.clear()
    verify(captured, program, (normal(3),))
    assert dtypes.count(torch.float64) == 0  # equal to the last bit


def test_large_example_is_compared_once():
    sizes = []

    def program(x, y):
        sizes.append(x.numel())
        return x.sin() * y

    x = torch.ones(300, 400, requires_grad=True)
    captured = capture(program, (x, x.detach()))
    sizes.clear()
    verify(captured, program, (x, x.detach()))

    assert len(sizes) == 4  # as it is, drawn, and of two other sizes
    assert sizes.count(x.numel()) == 1
    assert sorted(sizes)[2] < x.numel() / 10


def test_single_precision_only_is_fine():
    weight = normal(3, 3, seed=1)

    def program(x):
        return x @ weight

    verify(capture(program, (normal(3, 3),)), program, (normal(3, 3),))


def test_program_that_refuses_draws_passes():
    def program(x):
        if type(x) is torch.Tensor:
            torch.linalg.cholesky(x)
        return x * 2

    x = torch.eye(3) * 4
    verify(capture(program, (x,)), program, (x,))


def test_rounding_of_a_coarser_dtype_in_between_is_no_difference():
    """Dropout on a CPU: another op than the one of the graph, its scale rounded to `bfloat16`."""

    def program(x, w):
        return torch.nn.functional.dropout(x @ w, 0.3).mean(0)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        examples = normal(4, 6), normal(6, 8)
        verify(capture(program, examples), program, examples)


def test_state_around_is_kept():
    norm = torch.nn.BatchNorm1d(3)
    before = torch.get_rng_state()

    verify(capture(norm, (normal(4, 3),)), norm, (normal(4, 3),))

    assert norm.running_mean.tolist() == [0.0] * 3
    assert int(norm.num_batches_tracked) == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_program_that_never_runs_is_named():
    def program(x):
        if type(x) is torch.Tensor:
            raise ValueError("never on real tensors")
        return x * 2

    found = capture(program, (normal(3),))

    with pytest.raises(ValueError, match="never on real tensors"):
        verify(found, program, (normal(3),))


# ---- planted differences ----


def test_changing_global_is_found():
    state = {"calls": 0}

    def program(x):
        state["calls"] += 1
        return x * state["calls"]

    assert fault(program, torch.full((2,), 0.5), dynamic=False).startswith(
        message(
            """
            E304 differing-capture: the graph of `program` must compute what `program` computes
              at:       output 0, index [0], for inputs of shape [2]
            """
        )
    )


def test_message_says_where_and_how_much():
    state = {"factor": 1.0}

    def program(x):
        return x * torch.tensor([1.0, state["factor"]])

    found = capture(program, (torch.full((2,), 0.5),), dynamic=False)
    state["factor"] = 3.0

    with pytest.raises(DifferingCaptureError) as caught:
        verify(found, program, (torch.full((2,), 0.5),))

    facts = caught.value.facts
    expected = float(facts["expected"].split(",")[0])
    got = float(facts["got"].split(";")[0])
    assert expected == pytest.approx(3 * got, rel=1e-5)
    assert str(caught.value) == message(
        f"""
        E304 differing-capture: the graph of `program` must compute what `program` computes
          at:       output 0, index [1], for inputs of shape [2]
          expected: {expected:.6g}, from `program`
          got:      {got:.6g}; 1 of 2 elements differ, from its graph
          fix:      {FIX}
        """
    )


def test_decision_on_real_values_is_found():
    """Values near the examples decide alike; values drawn from among them do not."""

    def program(x):
        return x * 2 if type(x) is torch.Tensor and x[0] > 0 else x * 3

    assert "output 0" in fault(program, torch.arange(-1.0, 30.0), dynamic=False)


def test_random_numbers_of_python_are_found():
    generator = random.Random(0)

    assert "output 0" in fault(lambda x: x * generator.random(), normal(3))


def test_own_random_state_is_found():
    def program(x):
        torch.manual_seed(0)
        return x + torch.rand(3)

    assert "output 0" in fault(program, normal(3))


def test_wrong_gradient_is_found():
    state = {"factor": 1}

    class Drifting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            state["factor"] += 1
            return g * state["factor"]

    assert "at:       gradient of `x`, index" in fault(Drifting.apply, normal(3))


def test_absent_gradient_is_found():
    state = {"calls": 0}

    class Forgetful(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            state["calls"] += 1
            return g * 2 if state["calls"] == 1 else None

    found = fault(Forgetful.apply, normal(3))

    assert "expected: None, from `Forgetful.apply`" in found
    assert "got:      torch.float32 of shape [3], from its graph" in found


def test_lost_requires_grad_is_found():
    state = {"calls": 0}

    def program(x):
        state["calls"] += 1
        return x * 2 if state["calls"] == 1 else x.detach() * 2

    found = fault(program, normal(3))

    assert "expected: requires_grad is False, from `program`" in found


def test_other_structure_is_found():
    state = {"calls": 0}

    def program(x):
        state["calls"] += 1
        return (x, x) if state["calls"] == 1 else [x, x]

    assert "at:       what is returned, for inputs of shape [3]" in fault(program, normal(3))


def test_other_constant_is_found():
    state = {"calls": 0}

    def program(x):
        state["calls"] += 1
        return x * 2, state["calls"]

    found = fault(program, normal(3))

    assert "at:       output 1, for inputs of shape [3]" in found
    assert "got:      1, from its graph" in found


def test_unseen_change_of_input_is_found():
    state = {"calls": 0}

    def program(x):
        state["calls"] += 1
        if state["calls"] > 1:
            x.data.add_(1)
            return x - 1
        return x * 1

    found = fault(program, normal(3))

    assert "at:       `x`, for inputs of shape [3]" in found
    assert "expected: changed in place, from `program`" in found


def test_planted_wrong_graph_is_found():
    found = capture(F.SavedInput.apply, (normal(4, 3),))
    node = next(n for n in found.joint.graph.nodes if n.target is torch.ops.aten.cos.default)
    node.target = torch.ops.aten.sin.default

    with pytest.raises(DifferingCaptureError, match="gradient of `x`"):
        verify(found, F.SavedInput.apply, (normal(4, 3),))


def test_planted_baked_size_is_found():
    found = capture(lambda x: x.sum(0) / x.shape[0], (normal(4, 3),))
    divide = next(n for n in found.joint.graph.nodes if n.target is torch.ops.aten.div.Tensor)
    divide.args = (divide.args[0], 4)

    with pytest.raises(DifferingCaptureError, match=r"inputs of shape \[5, 4\]"):
        verify(found, lambda x: x.sum(0) / x.shape[0], (normal(4, 3),))


def test_wrong_mutation_is_found():
    found = capture(lambda x: x.mul_(2).sum(), (normal(4, grad=False),))
    broken = replace(found, outputs=(found.outputs[0], replace(found.outputs[1], index=0)))

    with pytest.raises(DifferingCaptureError, match="`x`, which is changed"):
        verify(broken, lambda x: x.mul_(2).sum(), (normal(4, grad=False),))


# ---- running the graph ----


def test_cotangent_is_laid_out():
    x = normal(4, 3)
    found = capture(lambda x: x.reshape(-1, 2).sin(), (x,))
    cotangent = normal(2, 6, grad=False).t()

    run = run_joint(found, (x,), [cotangent])

    torch.testing.assert_close(run.gradients[0], x.detach().cos() * cotangent.reshape(4, 3))


# ---- integers ----


def seen_by(program, *examples):
    """The integers and the shapes that a check calls `program` with."""
    rows = []

    def seen(*args):
        if not any(map(is_fake, args)):
            rows.append([a.detach().clone() for a in args])
        return program(*args)

    captured = capture(program, examples)
    verify(captured, seen, examples)
    return rows


def segments(data, lengths):
    return torch._segment_reduce(data, "sum", lengths=lengths, unsafe=True)


@pytest.mark.parametrize("columns", [2, 40_000])
def test_integers_are_never_invented(columns):
    data, lengths = torch.randn(6, columns, requires_grad=True), torch.tensor([1, 0, 3, 2])
    rows = seen_by(segments, data, lengths)

    assert len(rows) > 1
    for given, integers in rows:
        assert torch.equal(integers, lengths)
        assert len(given) >= len(data)


def test_what_integers_point_into_gets_larger_only():
    table, index = torch.randn(7, 3, requires_grad=True), torch.tensor([6, 0, 2, 6])
    rows = seen_by(lambda table, index: table[index].sin(), table, index)

    assert {tuple(given.shape) for given, _ in rows} >= {(7, 3), (8, 4)}


def test_masks_are_repeated():
    x, mask = torch.randn(4, 3, requires_grad=True), torch.arange(4)[:, None] < torch.arange(3)
    rows = seen_by(lambda x, mask: x.masked_fill(mask, 0.0), x, mask)
    shapes = {tuple(given.shape) for _, given in rows}

    assert {(4, 3), (5, 4)} <= shapes
    for _, given in rows:
        assert torch.equal(given[:4, :3], mask)


def test_example_that_is_not_finite_is_named_as_the_reason():
    x = torch.tensor([1.0, float("inf"), 2.0], requires_grad=True)
    with pytest.raises(DifferingCaptureError, match="give an example of finite numbers"):
        pb.derive(lambda x: x.prod(), x)
