"""A captured program computes what the program computes, in the form that passes expect."""

import functools
import gc
import itertools
import sys
import threading

import numpy
import pytest
import torch
from torch import Tensor, fx

import pullback as pb
from pullback.capture.joint import capture
from pullback.capture.marks import NodeMarks
from pullback.capture.modes import one_at_a_time
from pullback.graph.cost import is_random
from pullback.graph.parts import BACKWARD, FORWARD, calls
from tests.capture.cases import SCALE, normal, programs
from tests.capture.compare import assert_same, eager, graph
from tests.capture.functions import family
from tests.capture.pipelines import PIPELINES, Gelu, LayerNorm

F = family(pb.Function)
aten = torch.ops.aten

BASES = {"ours": pb.Function, "torch's": torch.autograd.Function}
NAMES = list(programs(pb.Function))
# On torch 2.11, PyTorch's own `apply` takes no keyword arguments.
PAIRS = [(base, name) for base in BASES for name in NAMES]
PAIRS.remove(("torch's", "keyword argument"))


@functools.cache
def table(base):
    return programs(BASES[base])


@functools.cache
def captured(base, name):
    """Each case captured once: with symbols for sizes on one base, with numbers on the other."""
    case = table(base)[name]
    return capture(case.program, case.arguments(1), dynamic=base == "ours")


def text_of(captured):
    """The calls of a graph, as one line each."""
    return [
        f"{n.name} = {n.target.overloadpacket.__name__}{n.args}"
        for n in calls(captured.joint.graph)
    ]


# ---- the hard cases ----


@pytest.mark.quick(60)
@pytest.mark.parametrize(("base", "name"), PAIRS)
def test_graph_computes_what_program_does(base, name):
    case, found = table(base)[name], captured(base, name)
    arguments = case.arguments(2)
    around = [i.tensor for i in found.inputs if i.tensor is not None]
    before = [tensor.detach().clone() for tensor in around]

    expected, cotangents = eager(case.program, arguments, found)
    for tensor, values in zip(around, before, strict=True):
        tensor.detach().copy_(values)
    actual = graph(found, arguments, cotangents)

    assert_same(actual, expected)


@pytest.mark.parametrize(("base", "name"), PAIRS)
def test_graph_has_the_agreed_form(base, name):
    joint = captured(base, name).joint
    ops = [node.op for node in joint.graph.nodes]
    count = ops.count("placeholder")
    nodes = list(calls(joint.graph))

    assert ops == ["placeholder"] * count + ["call_function"] * len(nodes) + ["output"]
    assert all("val" in n.meta for n in (*joint.placeholders, *nodes))
    assert {n.meta["phase"] for n in nodes} <= {FORWARD, BACKWARD}
    assert all({"unit", "place"} <= set(n.meta) for n in nodes)
    assert [n for n in nodes if n.target in (aten.detach.default, aten.alias.default)] == []
    assert [
        n for n in nodes if getattr(n.target, "_schema", None) and n.target._schema.is_mutable
    ] == []
    assert isinstance(joint.graph.output_node().args[0], tuple)


@pytest.mark.parametrize(("base", "name"), PAIRS)
def test_records_match_the_graph(base, name):
    found = captured(base, name)
    outputs = [o for o in found.outputs if o.index is not None]

    assert len(found.inputs) == found.joint.input_count
    assert [o.index for o in outputs] == list(range(found.joint.output_count))
    assert len(found.joint.cotangents) == sum(o.used for o in found.outputs)
    assert len(found.joint.gradients) == sum(i.needs for i in found.inputs)


# ---- which gradients ----


@pytest.mark.parametrize("used", list(itertools.product([True, False], repeat=2)))
def test_unused_outputs_give_no_cotangent(used):
    x = normal(4, 3)
    found = capture(F.Unfilled.apply, (x,), used=used)

    expected, cotangents = eager(F.Unfilled.apply, (normal(4, 3, seed=2),), found, used)
    actual = graph(found, (normal(4, 3, seed=2),), cotangents)

    assert [o.used for o in found.outputs] == list(used)
    assert_same(actual, expected)


@pytest.mark.parametrize("needs", list(itertools.product([True, False], repeat=3)))
def test_only_needed_gradients_are_computed(needs):
    shapes = ((4, 3), (5, 3), (5,))
    plain = [normal(*shape, grad=False, seed=k) for k, shape in enumerate(shapes)]
    found = capture(F.Linear.apply, plain, needs=needs)
    arguments = [x.requires_grad_(need) for x, need in zip(plain, needs, strict=True)]

    expected, cotangents = eager(F.Linear.apply, arguments, found)
    actual = graph(found, arguments, cotangents)

    assert [i.needs for i in found.inputs] == list(needs)
    assert_same(actual, expected)


def test_needs_reach_needs_input_grad():
    a, b = normal(4, 3), normal(4, 3)

    found = capture(F.Needed.apply, (a, b), needs=(False, True))

    backward = [n for n in calls(found.joint.graph) if n.meta["phase"] == BACKWARD]
    assert [n.target for n in backward] == [aten.mul.Tensor] * 2
    assert found.joint.inputs[1] not in backward[0].all_input_nodes


def test_written_backward_is_taken_over():
    found = capture(F.SavedMiddle.apply, (normal(4, 3),))

    assert text_of(found) == [
        "exp = exp(x,)",
        "pow_1 = pow(exp, 2)",
        "mul = mul(cotangent, exp)",
        "mul_1 = mul(mul, 5)",
    ]


def test_nothing_is_left_of_double_backward():
    """`SavedMiddle` does not save its input: for second derivatives it is tied to the context."""
    found = capture(lambda x: F.SavedMiddle.apply(x * 2), (normal(4, 3),))

    assert text_of(found)[:4] == [
        "mul = mul(x, 2)",
        "exp = exp(mul,)",
        "pow_1 = pow(exp, 2)",
        "mul_1 = mul(cotangent, exp)",
    ]
    assert len(text_of(found)) == 6


# ---- sizes ----


@pytest.mark.parametrize("name", PIPELINES)
def test_one_capture_serves_many_shapes(name):
    program, arguments = PIPELINES[name]
    found = capture(program, arguments(6, 4))

    for n, d in ((6, 4), (9, 4), (5, 8), (12, 10)):
        fresh = arguments(n, d)
        tensors = [x for x in fresh if isinstance(x, Tensor)]
        expected, cotangents = eager(program, fresh, found)

        assert found.serves(tensors)
        assert_same(graph(found, fresh, cotangents), expected)


def test_equal_sizes_are_not_unified():
    found = capture(lambda x, y: (x.sum(0), y.sum(0)), (normal(4, 4), normal(4, 4)))

    sizes = [str(s) for node in found.joint.inputs for s in node.meta["val"].shape]
    assert len(set(sizes)) == 4
    assert found.serves((normal(5, 6), normal(7, 8)))


def test_sizes_zero_and_one_are_numbers():
    found = capture(lambda x: x * 2, (normal(1, 5),))

    assert found.joint.inputs[0].meta["val"].shape[0] == 1
    assert found.serves((normal(1, 7),))
    assert not found.serves((normal(2, 7),))


def test_static_capture_serves_one_shape():
    found = capture(lambda x: x * 2, (normal(4, 3),), dynamic=False)

    assert found.serves((normal(4, 3),))
    assert not found.serves((normal(5, 3),))


def by_numpy(x):
    return x * torch.from_numpy(numpy.arange(x.shape[-1]) * 1.0)


def by_grid(x):
    flat = torch.eye(2, 3, dtype=x.dtype).expand(x.shape[0], 2, 3)
    grid = torch.nn.functional.affine_grid(flat, x.shape, align_corners=False)
    return torch.nn.functional.grid_sample(x, grid, align_corners=False)


@pytest.mark.parametrize(("program", "shape"), [(by_numpy, (4, 3)), (by_grid, (2, 3, 4, 5))])
def test_call_that_takes_numbers_alone_is_captured_at_one_size(program, shape):
    x = normal(*shape, dtype=torch.float64)

    found = capture(program, (x,))

    assert found.serves((x,))
    assert not found.serves((x[1:],))
    expected, cotangents = eager(program, (x,), found)
    assert_same(graph(found, (x,), cotangents), expected)


@pytest.mark.parametrize(
    "other",
    [
        normal(4, 3, dtype=torch.float64),
        normal(4, 3, 2),
        normal(3, 4).t(),
        normal(4, 6)[:, ::2],
    ],
    ids=["dtype", "dimensions", "transposed", "strided"],
)
def test_other_kinds_are_not_served(other):
    found = capture(lambda x: x * 2, (normal(4, 3),))

    assert found.serves((normal(5, 7),))
    assert not found.serves((other,))


def test_decisions_on_sizes_are_kept():
    found = capture(lambda x: x * 2 if x.shape[0] > 3 else x * 3, (normal(5),))

    assert found.serves((normal(4),))
    assert not found.serves((normal(3),))


def test_number_of_tensors_must_fit():
    found = capture(lambda x: x * 2, (normal(5),))

    assert not found.serves((normal(5), normal(5)))


@pytest.mark.parametrize(
    "x",
    [
        normal(3, 4).t(),
        normal(1, 4).expand(3, 4),
        normal(6, 8)[::2, ::2],
        normal(5, 4)[2:],
        normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
        normal(3, dtype=torch.complex64).conj(),
    ],
    ids=["transposed", "expanded", "strided", "offset", "channels last", "conjugate"],
)
def test_memory_order_of_inputs_is_kept(x):
    def program(x):
        return F.SavedMiddle.apply(x.reshape(-1)) * 2

    found = capture(program, (x,))

    with torch.no_grad():
        cotangent = torch.ones(x.numel(), dtype=x.dtype)
        outputs = fx.GraphModule({}, found.joint.graph)(x.detach(), cotangent)
    torch.testing.assert_close(outputs[0], program(x.detach()))
    assert found.serves((x.detach(),))


# ---- marks ----


def forward_of(program, *examples):
    return [n for n in calls(capture(program, examples).joint.graph) if n.meta["phase"] == FORWARD]


def test_nodes_carry_their_unit_and_phase():
    def program(x, w, b):
        h = LayerNorm.apply(x, w, b, 1e-5)
        return Gelu.apply(h) * 2

    found = capture(program, (normal(4, 3), normal(3), normal(3)))
    marks = [(n.meta["phase"], n.meta["unit"]) for n in calls(found.joint.graph)]

    assert found.units == ("LayerNorm", "Gelu", "mul")
    assert [unit for unit, _ in itertools.groupby(marks)] == [
        (FORWARD, 0),
        (FORWARD, 1),
        (FORWARD, 2),
        (BACKWARD, 2),
        (BACKWARD, 1),
        (BACKWARD, 0),
    ]


def test_places_are_lines_of_the_user():
    def program(x):
        y = x.sin()
        return F.SavedInput.apply(y)

    found = capture(program, (normal(4, 3),))

    line = program.__code__.co_firstlineno
    inside = F.SavedInput.forward.__code__.co_firstlineno
    behind = F.SavedInput.backward.__code__.co_firstlineno
    places = {n.name: n.meta["place"] for n in calls(found.joint.graph)}
    assert places["sin"] == f"test_joint.py:{line + 1}"
    assert places["sin_1"] == f"functions.py:{inside + 3}"
    assert places["mul"] == f"functions.py:{behind + 3}"
    assert places["mul_2"] == f"test_joint.py:{line + 1}"


def test_composite_op_marks_its_backward():
    def program(x, w, b):
        return torch.nn.functional.linear(x.sin(), w, b).relu()

    found = capture(program, (normal(4, 3), normal(5, 3), normal(5)))
    backward = [n for n in calls(found.joint.graph) if n.meta["phase"] == BACKWARD]

    assert found.units == ("sin", "linear", "relu")
    assert {n.meta["unit"] for n in backward if n.target is aten.mm.default} == {1}
    assert {n.meta["unit"] for n in backward if n.target is aten.cos.default} == {0}


def test_nested_function_is_one_unit():
    found = capture(lambda x: F.Nested.apply(x), (normal(4, 3),))

    assert found.units == ("Nested",)
    assert {n.meta["unit"] for n in calls(found.joint.graph)} == {0}


def test_random_nodes_stay_in_order():
    found = captured("ours", "many draws")
    drawing = [n.target for n in calls(found.joint.graph) if is_random(n)]

    assert drawing == [
        aten.bernoulli.p,
        aten.uniform.default,
        aten.randperm.default,
        aten.native_dropout.default,
        aten.randn.default,
    ]


def test_unused_draw_stays():
    found = captured("ours", "unused draw")

    assert [n.target for n in calls(found.joint.graph)] == [aten.rand.default] * 2 + [
        aten.add.Tensor
    ]


def test_returned_size_belongs_to_forward():
    (size,) = forward_of(lambda x: (x, x.shape[0]), normal(4, 3))

    assert size.target is aten.sym_size.int


# ---- names ----


def helper(v):
    root = v.exp().sqrt()
    return root + 1


def test_local_names_come_from_frames():
    def program(x, w):
        h = x @ w
        a, b = h.chunk(2, -1)
        a = helper(a)
        for _ in range(2):
            b = b * a
        pair = [a.sin(), b]
        out = pair[0] + pair[1]
        return out

    found = capture(program, (normal(4, 3), normal(3, 6)))
    names = found.local_names
    graph = found.joint.graph
    forward = {n.target: names.get(n.name) for n in calls(graph) if n.meta["phase"] == FORWARD}
    products = [n for n in calls(graph) if n.target is aten.mul.Tensor]

    assert forward[aten.mm.default] == "h"
    assert forward[aten.sqrt.default] == "root"
    assert forward[aten.sin.default] == "pair_0"
    assert names[found.joint.outputs[0].name] == "out"
    assert [names.get(n.name) for n in products][:2] == ["b", "b"]
    assert names["mm_1"] == "grad_w"
    assert names["mm_2"] == "grad_x"
    assert "grad_h" in names.values()


def test_last_variable_names_its_gradient():
    def inner(x):
        root = x.exp()
        return root

    found = capture(lambda x: inner(x).sin(), (normal(4, 3),))

    assert "grad_root" in found.local_names.values()


def test_inner_variable_takes_no_input_name():
    found = capture(lambda x: F.SavedInput.apply(x * 2), (normal(4, 3),))

    assert [name for name in found.local_names.values() if name == "x"] == []
    assert found.local_names["mul_3"] == "grad_x"


def test_names_need_no_profiler():
    events = []
    sys.setprofile(lambda frame, event, arg: events.append(event) if len(events) < 10 else None)
    try:
        found = capture(lambda x: helper(x), (normal(4, 3),))
        kept = sys.getprofile()
    finally:
        sys.setprofile(None)

    assert kept is not None
    assert "root" in found.local_names.values()


def test_inputs_have_the_names_of_the_user():
    params = {"w": normal(3, seed=3)}
    xs = [normal(4, 3), normal(4, 3)]

    def program(xs, scale, *rest):
        return xs[0] * params["w"] + xs[1] * scale * rest[0] * torch.tensor([1.0, 2.0, 3.0])

    found = capture(program, (xs, normal(3), normal(3)))

    assert [(i.name, i.kind, i.position) for i in found.inputs] == [
        ("xs[0]", "argument", 0),
        ("xs[1]", "argument", 1),
        ("scale", "argument", 2),
        ("rest[0]", "argument", 3),
        ("params['w']", "closure", None),
        ("constant", "constant", None),
    ]
    assert [n.name for n in found.joint.inputs] == [
        "xs_0",
        "xs_1",
        "scale",
        "rest_0",
        "params_w",
        "constant",
    ]
    assert found.inputs[4].tensor is params["w"]


def test_leaves_are_free_to_save():
    found = capture(lambda x, y: x * y * SCALE, (normal(4, 3), normal(4, 3) * 2))

    assert [(i.name, i.free) for i in found.inputs] == [("x", True), ("y", False), ("SCALE", True)]


# ---- changes ----


def test_changed_inputs_are_reported():
    found = captured("ours", "changed input, not returned")
    ((place, index),) = found.mutated

    assert (place, index) == (0, 1)
    assert found.joint.outputs[index].target is aten.mul.Tensor
    assert [(o.changes, o.returned) for o in found.outputs] == [(None, True), (0, False)]


def test_change_behind_autograd_is_reported():
    def program(x):
        x.data.add_(1)
        return x * 2

    found = capture(program, (normal(4, 3, grad=False),))

    assert found.mutated == ((0, 1),)
    assert not found.outputs[1].differentiable


def test_returned_change_is_one_output():
    found = capture(F.Changing.apply, (normal(4, 3, grad=False),))

    assert found.mutated == ((0, 0),)
    assert len(found.outputs) == 1


# ---- what a capture leaves behind ----


def test_program_runs_once():
    runs = []

    def program(x):
        runs.append(type(x))
        return F.SavedInput.apply(x) * SCALE

    capture(program, (normal(4, 3),))

    assert len(runs) == 1


def test_tensors_around_are_left_alone():
    weight = normal(3, seed=4)
    buffer = torch.zeros(3)
    version = buffer._version

    def program(x):
        buffer.add_(x.detach().sum(0))
        return F.SavedInput.apply(x) * weight

    capture(program, (normal(4, 3),))

    assert weight.grad is None
    assert not weight._backward_hooks
    assert buffer._version == version
    assert buffer.tolist() == [0.0, 0.0, 0.0]


def test_history_around_keeps_no_hooks():
    linear = family(torch.autograd.Function).Linear
    hidden = super(torch.autograd.Function, linear).apply
    weight, bias = normal(5, 3) * 2, normal(5)

    capture(lambda x: hidden(x, weight, bias), (normal(4, 3),))

    gc.collect()
    assert [thing for thing in gc.get_objects() if type(thing) is NodeMarks] == []


def test_random_state_is_left_alone():
    before = torch.get_rng_state()

    capture(lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand(3), (normal(4, 3),))

    assert torch.equal(torch.get_rng_state(), before)


def test_two_captures_are_the_same():
    case = table("ours")["functions and ops"]

    one, two = (capture(case.program, case.arguments(1)) for _ in range(2))

    assert str(one.joint.graph) == str(two.joint.graph)
    assert one.local_names == two.local_names


# ---- the surroundings of a capture ----


def test_capture_inside_capture_works():
    inner = []

    class Lazy(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            inner.append(capture(torch.sin, (x,), needs=[True]))
            return fx.GraphModule({}, inner[0].joint.graph)(x, g)[1] * 3

    found = capture(lambda x: Lazy.apply(x * 2), (normal(4, 3),))

    targets = [n.target for n in calls(found.joint.graph) if n.meta["phase"] == BACKWARD]
    assert found.units == ("mul", "Lazy")
    assert targets == [aten.cos.default, *[aten.mul.Tensor] * 3]
    assert len(inner[0].joint.placeholders) == 2


def test_unseen_apply_is_captured_rightly():
    """An alias of PyTorch's C `apply` is seen by nobody; graph and gradients are right."""
    linear = family(torch.autograd.Function).Linear
    hidden = super(torch.autograd.Function, linear).apply
    weight, bias = normal(5, 3, seed=1), normal(5, seed=2)

    def program(x):
        return hidden(x, weight, bias) * weight.sum()

    found = capture(program, (normal(4, 3),))
    expected, cotangents = eager(program, (normal(4, 3, seed=3),), found)
    actual = graph(found, (normal(4, 3, seed=3),), cotangents)

    backward = [n for n in calls(found.joint.graph) if n.meta["place"].startswith("functions.py")]
    assert [i.name for i in found.inputs] == ["x", "weight", "bias"]
    assert {n.meta["unit"] for n in backward if n.meta["phase"] == BACKWARD} == {None}
    assert_same(actual, expected)


def test_compiled_code_is_captured_rightly():
    weight = normal(3, seed=1)

    def program(x):
        with torch._C.DisableTorchFunction():
            return x.sin() * weight

    found = capture(program, (normal(4, 3),))
    expected, cotangents = eager(program, (normal(4, 3, seed=3),), found)
    actual = graph(found, (normal(4, 3, seed=3),), cotangents)

    assert [(i.name, i.needs) for i in found.inputs] == [("x", True), ("weight", True)]
    assert_same(actual, expected)


def test_capture_works_without_grad_mode():
    with torch.no_grad():
        found = capture(F.SavedInput.apply, (normal(4, 3),))

    assert found.outputs[0].differentiable
    assert len(found.joint.cotangents) == 1


def test_capture_works_in_inference_mode():
    with torch.inference_mode():
        x = torch.ones(4, 3)
        found = capture(F.SavedInput.apply, (x,), needs=[True])

    assert found.outputs[0].differentiable


def test_argument_and_closure_are_two_inputs():
    """The same tensor at the time of the capture, but not at later calls."""
    x = normal(3)

    def program(y):
        with torch._C.DisableTorchFunction():
            return y * 2 + x * 3

    found = capture(program, (x,))
    expected, cotangents = eager(program, (normal(3, seed=4),), found)

    assert [(i.name, i.kind) for i in found.inputs] == [("y", "argument"), ("x", "closure")]
    assert_same(graph(found, (normal(3, seed=4),), cotangents), expected)


def test_backward_is_outside_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = capture(lambda x, w: F.Linear.apply(x, w, SCALE), (normal(4, 3), normal(3, 3)))

    dtypes = {
        n.meta["phase"]: n.args[0].meta["val"].dtype
        for n in calls(found.joint.graph)
        if n.target is aten.mm.default
    }
    assert dtypes == {FORWARD: torch.bfloat16, BACKWARD: torch.float32}


@pytest.mark.parametrize("base", BASES)
def test_function_itself_is_a_program(base):
    f = family(BASES[base])

    found = capture(f.Plain.apply, (normal(4, 3), 2.0, "mul"))

    assert found.name == "Plain.apply"
    assert [i.name for i in found.inputs] == ["x"]
    assert found.units == ("Plain",)


def test_arguments_and_results_are_rebuilt():
    x = normal(4, 3)
    found = capture(lambda pair, k: {"y": pair[0] * k, "k": k}, ((x, None), 3))

    assert found.fill([x]) == ((x, None), 3)
    assert found.give([x]) == {"y": x, "k": 3}


# ---- who wrote the backward ----


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


def hooked(x):
    y = x.sin()
    y.register_hook(lambda cotangent: 2 * cotangent)
    return y


def beside(x):
    Doubled.apply(x)
    return x.sin()


@pytest.mark.parametrize(
    ("program", "is_handwritten"),
    [(torch.sin, False), (Doubled.apply, True), (hooked, True), (beside, False)],
    ids=["op", "Function", "hook", "unused Function"],
)
def test_hand_written_backward_is_told(program, is_handwritten):
    captured = capture(program, (torch.ones(3, requires_grad=True),))

    assert captured.is_handwritten == is_handwritten


def test_functions_among_units_are_told():
    captured = capture(lambda x: Doubled.apply(x).sin(), (torch.ones(3, requires_grad=True),))

    assert captured.functions == (Doubled,)
    assert captured.units == ("Doubled", "sin")


def test_threads_capture_one_after_the_other():
    start = threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(5):
            capture(lambda x: x.sin().exp() * x, (torch.ones(3, requires_grad=True),))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    compiled = torch.compile(lambda x: x + 1, backend="eager")

    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_backward_under_the_lock_runs_on_the_thread_that_holds_it():
    modes = []

    def note():
        modes.append(torch._C._is_multithreading_enabled())

    note()
    with one_at_a_time():
        note()
        with one_at_a_time():
            note()
        note()
        other = threading.Thread(target=note)
        other.start()
        other.join()
    note()

    assert modes == [True, False, False, False, True, True]
