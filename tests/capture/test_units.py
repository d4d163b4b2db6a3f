"""A recorded program: its units, what flows between them, and that they repeat the program."""

import threading

import pytest
import torch
from torch import Tensor

import pullback as pb
from pullback.capture.joint import capture
from pullback.capture.trees import flatten
from pullback.capture.units import Ref, part_of, record, refs_in, with_values
from tests.capture.cases import normal, programs
from tests.capture.functions import cosine, family

OURS, TORCHS = family(pb.Function), family(torch.autograd.Function)
SCALE = normal(3, seed=5)

# Recording refuses hooks and transforms between units; on 2.11, PyTorch's own `apply` takes no
# keyword arguments, and from 2.15 on an alias of it cannot be seen.
REFUSED = {"hook on a middle", "transform inside"}
ONLY_OURS = {"keyword argument", "aliases of apply", "checkpoint"}
BASES = {"ours": pb.Function, "torch's": torch.autograd.Function}
PAIRS = [
    (base, name)
    for base in BASES
    for name in programs(pb.Function)
    if name not in REFUSED and not (base == "torch's" and name in ONLY_OURS)
]


def flow(program):
    """Each unit as its name, what goes in and what comes out."""
    return [(unit.name, unit.inputs, unit.outputs) for unit in program.units]


# ---- units ----


@pytest.mark.parametrize("f", [OURS, TORCHS], ids=["ours", "torch's"])
def test_calls_are_units_with_flow(f):
    def program(x, y):
        h = f.SavedInput.apply(x) + 1.0
        value, index = f.Largest.apply(h)
        return cosine(value), y * 2, index

    found = record(program, normal(4, 3), normal(3))

    line = program.__code__.co_firstlineno
    assert flow(found) == [
        ("SavedInput", (0,), (2,)),
        ("add", (2,), (3,)),
        ("Largest", (3,), (4, 5)),
        ("pullback_capture::cosine", (4,), (6,)),
        ("mul", (1,), (7,)),
    ]
    assert [unit.kind for unit in found.units] == ["function", "op", "function", "custom", "op"]
    assert [unit.number for unit in found.units] == [0, 1, 2, 3, 4]
    assert [unit.place for unit in found.units] == [
        f"test_units.py:{line + k}" for k in (1, 1, 2, 3, 3)
    ]
    assert found.inputs == ((0, "x"), (1, "y"))
    assert found.outputs == (Ref(6), Ref(7), Ref(5))


@pytest.mark.parametrize("f", [OURS, TORCHS], ids=["ours", "torch's"])
def test_function_inside_function_is_hidden(f):
    found = record(lambda x: f.Nested.apply(x), normal(4, 3))

    assert flow(found) == [("Nested", (0,), (1,))]


@pytest.mark.parametrize("f", [OURS, TORCHS], ids=["ours", "torch's"])
def test_function_itself_is_a_program(f):
    assert flow(record(f.SavedInput.apply, normal(3))) == [("SavedInput", (0,), (1,))]


def test_both_kinds_of_functions_are_mixed():
    found = record(lambda x: OURS.SavedInput.apply(TORCHS.SavedInput.apply(x)), normal(3))

    assert flow(found) == [("SavedInput", (0,), (1,)), ("SavedInput", (1,), (2,))]
    assert [unit.target for unit in found.units] == [TORCHS.SavedInput, OURS.SavedInput]


def test_alias_of_apply_is_seen():
    alias = OURS.SavedInput.apply

    assert flow(record(lambda x: alias(x), normal(3))) == [("SavedInput", (0,), (1,))]


def test_lists_of_tensors_are_inputs():
    class Total(pb.Function):
        traverse_lists = True

        @staticmethod
        def forward(ctx, xs):
            return xs[0] + xs[1]

        @staticmethod
        def backward(ctx, g):
            return [g, g]

    found = record(lambda x, y: torch.cat([Total.apply([x, y]), y]), normal(3), normal(3))

    assert flow(found) == [("Total", (0, 1), (2,)), ("cat", (2, 1), (3,))]


def test_reads_of_shapes_are_no_units():
    found = record(lambda x: x.reshape(x.shape[0] * x.size(1), x.dim() - 1), normal(4, 3))

    assert flow(found) == [("reshape", (0,), (1,))]


def test_units_agree_with_capture():
    case = programs(pb.Function)["functions and ops"]

    recorded = record(case.program, *case.arguments(1))
    captured = capture(case.program, case.arguments(1))

    assert captured.units == tuple(unit.name for unit in recorded.units)


# ---- closures ----


def test_tensors_around_are_closures():
    weights = [normal(3, seed=1), normal(3, seed=2)]

    found = record(lambda x: OURS.Needed.apply(x, weights[1]) * SCALE + SCALE, normal(3))

    assert [(c.number, c.name) for c in found.closures] == [(1, "weights[1]"), (3, "SCALE")]
    assert found.closures[0].tensor is weights[1]
    assert flow(found) == [("Needed", (0, 1), (2,)), ("mul", (2, 3), (4,)), ("add", (4, 3), (5,))]


def test_closure_may_be_returned():
    found = record(lambda x: (x, SCALE, 7), normal(3))

    assert found.outputs == (Ref(0), Ref(1), 7)
    assert [c.name for c in found.closures] == ["SCALE"]


# ---- changes in place ----


def test_changed_tensor_gets_new_number():
    def program(x):
        y = x * 1
        y.mul_(2)
        return y

    found = record(program, normal(3))

    assert flow(found) == [("mul", (0,), (1,)), ("mul_", (1,), (2,))]
    assert found.units[1].changed == ((1, 2),)
    assert found.outputs == (Ref(2),)


def test_change_through_view_reaches_base():
    def program(x):
        y = x * 1
        part = y[0]
        part.zero_()
        return y + 1

    found = record(program, normal(3, 2))

    assert found.units[2].changed == ((1, 3), (2, 4))
    assert flow(found)[3] == ("add", (3,), (5,))


def test_assignment_to_items_is_a_unit():
    def program(x):
        y = x * 1
        y[0] = 5.0
        return y

    found = record(program, normal(3))

    assert flow(found)[1] == ("setitem", (1,), (2,))


def test_marked_dirty_is_a_change():
    found = record(lambda x: OURS.Changing.apply(x * 1), normal(3))

    assert flow(found) == [("mul", (0,), (1,)), ("Changing", (1,), (2,))]


# ---- repeating ----


@pytest.mark.quick(50)
@pytest.mark.parametrize(("base", "name"), PAIRS)
def test_units_repeat_the_program(base, name):
    case = programs(BASES[base])[name]
    found = record(case.program, *case.arguments(1))

    outcomes = []
    for program in (case.program, found.run):
        arguments = case.arguments(2)
        buffers = [c.tensor for c in found.closures if not c.tensor.requires_grad]
        before = [buffer.clone() for buffer in buffers]
        torch.manual_seed(3)
        outputs = [y for y in flatten(program(*arguments))[0] if isinstance(y, Tensor)]
        live = [y for y in outputs if y.requires_grad]
        leaves = [x for x in flatten(arguments)[0] if isinstance(x, Tensor) and x.requires_grad]
        wanted = leaves + [c.tensor for c in found.closures if c.tensor.requires_grad]
        gradients = ()
        if live and wanted:
            ones = [torch.ones_like(y) for y in live]
            gradients = torch.autograd.grad(live, wanted, ones, allow_unused=True)
        outcomes.append(([y.detach().clone() for y in outputs], gradients))
        for buffer, values in zip(buffers, before, strict=True):
            buffer.copy_(values)

    torch.testing.assert_close(outcomes[1], outcomes[0], equal_nan=True)


def test_modes_of_the_program_are_kept():
    def program(x, w):
        with torch.no_grad():
            factor = x.sin()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x * factor, x @ w

    found = record(program, normal(3, 3), normal(3, 3))
    product, matrix = found.run(normal(3, 3), normal(3, 3))

    assert [unit.modes is None for unit in found.units] == [False, False, False]
    assert product.grad_fn.next_functions[1][0] is None
    assert matrix.dtype == torch.bfloat16


def test_modes_around_are_the_callers():
    found = record(lambda x: x * 2, normal(3))

    with torch.no_grad():
        y = found.run(normal(3))

    assert found.units[0].modes is None
    assert not y.requires_grad


# ---- parts ----


def pipeline(x, y):
    a = OURS.SavedInput.apply(x)
    b = OURS.SavedMiddle.apply(a) * SCALE
    c = OURS.Needed.apply(b, y) + a
    return c, b


def test_part_needs_what_comes_before():
    found = record(pipeline, normal(4, 3), normal(4, 3))

    part = part_of(found, (1, 2))

    assert [unit.name for unit in part.units] == ["SavedMiddle", "mul"]
    assert part.inputs == (2, 4)
    assert part.outputs == (5,)


def test_part_may_leave_out_units_between():
    found = record(pipeline, normal(4, 3), normal(4, 3))

    part = part_of(found, (0, 4))

    assert [unit.name for unit in part.units] == ["SavedInput", "add"]
    assert (part.inputs, part.outputs) == ((0, 6), (2, 7))


@pytest.mark.parametrize("cut", range(6))
def test_parts_in_order_are_the_program(cut):
    found = record(pipeline, normal(4, 3), normal(4, 3))
    x, y = normal(4, 3, seed=8), normal(4, 3, seed=9)
    values = {0: x, 1: y} | {c.number: c.tensor for c in found.closures}

    for first, last in ((0, cut), (cut, len(found.units))):
        part = part_of(found, range(first, last))
        made = part.call(*(values[number] for number in part.inputs))
        values.update(zip(part.outputs, made, strict=True))

    actual = [values[ref.number] for ref in found.outputs]
    torch.testing.assert_close(actual, list(pipeline(x, y)))


def test_part_can_be_captured():
    found = record(pipeline, normal(4, 3), normal(4, 3))
    part = part_of(found, (1, 2, 3))
    values = found.values(normal(4, 3), normal(4, 3))

    captured = capture(part.call, [values[number] for number in part.inputs])

    assert captured.units == ("SavedMiddle", "mul", "Needed")


def test_changed_values_cross_parts():
    def program(x):
        y = x * 1
        part = y[0]
        part.zero_()
        return y + 1

    found = record(program, normal(3, 2))
    first, second = part_of(found, (0, 1)), part_of(found, (2, 3))

    assert first.outputs == (1, 2)
    assert second.inputs == (2, 1)
    torch.testing.assert_close(
        second.call(*reversed(first.call(torch.ones(3, 2)))), (program(torch.ones(3, 2)),)
    )


# ---- threads, and leaving ----


def test_other_threads_are_left_alone():
    x = normal(3)
    seen = []

    def work():
        y = x.detach().clone().requires_grad_()
        z = OURS.SavedInput.apply(y) + TORCHS.SavedMiddle.apply(y)
        seen.append(torch.autograd.grad(z.sum(), y)[0])

    def program(x):
        other = threading.Thread(target=work)
        other.start()
        other.join()
        return OURS.SavedOutput.apply(x)

    work()
    recorded = record(program, x)
    captured = capture(program, (x,))

    assert [unit.name for unit in recorded.units] == ["SavedOutput"]
    assert captured.units == ("SavedOutput",)
    assert all(torch.equal(gradient, seen[0]) for gradient in seen)
    assert len(seen) == 3


def test_two_threads_record_at_once():
    both = threading.Barrier(2, timeout=30)
    found = {}

    def work(name, f):
        def program(x):
            both.wait()
            y = getattr(f, name).apply(x)
            both.wait()
            return y * 2

        found[name] = [unit.name for unit in record(program, normal(3)).units]

    pairs = [("SavedInput", OURS), ("SavedMiddle", TORCHS)]
    threads = [threading.Thread(target=work, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {"SavedInput": ["SavedInput", "mul"], "SavedMiddle": ["SavedMiddle", "mul"]}


def test_examples_may_be_nested():
    found = record(lambda p: p["a"] * p["b"][0], {"a": normal(3), "b": (normal(3), None)})

    assert found.inputs == ((0, "p['a']"), (1, "p['b'][0]"))


def test_arguments_are_filled_by_number():
    tree = (Ref(3), {"x": [Ref(1), 2.0]}, None, Ref(3))

    assert refs_in(tree) == [3, 1, 3]
    assert with_values(tree, {1: "a", 3: "b"}) == ("b", {"x": ["a", 2.0]}, None, "b")
