"""Emitted C++ against the functions it came from: one library with all of them, built once."""

import re
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pullback as pb
from examples import my_relu, roi_align
from pullback.emit.compiled import build_file
from pullback.emit.cpp.op import emit_cpp
from pullback.emit.python.module import snake
from tests.emit.cpp.cases import (
    CASES,
    class_name,
    cotangents_for,
    differences,
    library_source,
    pulled,
    pulled_twice,
    tensors_of,
)

pytestmark = pytest.mark.needs_compiler

TWICE = [name for name, case in CASES.items() if not case.is_once]
ONCE = [name for name, case in CASES.items() if case.is_once]
CHANGING = [name for name, case in CASES.items() if case.changes and name != "my_function"]
PLAIN = [name for name, case in CASES.items() if not case.changes]
FEW = ("my_relu", "my_elementwise", "roi_align", "sorted_with_indices", "layer_norm")
FEW_THEN_ALL = [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in PLAIN]


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """Every case as an op, by its name."""
    folder = tmp_path_factory.mktemp("cases")
    file = folder / "cases.cpp"
    file.write_text(library_source(), encoding="utf-8")
    build_file(file, cache=folder / "cache", flags=["-O0"])  # compiling takes most of the time
    return {name: getattr(torch.ops.emitted, snake(class_name(name))) for name in CASES}


# ---- the op and the original agree ----


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_original_ones(name, ops):
    case = CASES[name]
    call, tensors = case.emitted(ops[name]), case.tensors(seed=3)

    assert differences(tensors_of(call(*tensors)), tensors_of(case.original(*tensors))) == []
    assert differences(pulled(call, tensors), pulled(case.original, tensors)) == []


@pytest.mark.parametrize("name", CASES)
def test_other_sizes_and_ranks_are_served(name, ops):
    case = CASES[name]
    call, rows = case.emitted(ops[name]), [case.tensors(shapes) for shapes in case.others]
    found = [pulled(call, row) for row in rows]
    expected = [pulled(case.original, row) for row in rows]

    assert rows
    assert [differences(a, b) for a, b in zip(found, expected, strict=True)] == [[] for _ in rows]


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_the_original_ones(name, ops):
    case = CASES[name]
    tensors = case.tensors(seed=3)
    expected = pulled_twice(case.original, tensors)

    assert differences(pulled_twice(case.emitted(ops[name]), tensors), expected) == []


@pytest.mark.parametrize("name", ONCE)
def test_wrong_second_derivative_is_refused(name, ops):
    case = CASES[name]

    with pytest.raises(RuntimeError, match="there is no second derivative"):
        pulled_twice(case.emitted(ops[name]), case.tensors())


# As Python `my_function` is refused: it cannot do without `ctx.saved_data`, which is of ours.
@pytest.mark.parametrize("name", [*FEW_THEN_ALL, *CHANGING])
def test_emitted_python_agrees_with_emitted_cpp(name, ops):
    case = CASES[name]
    tensors = case.tensors(seed=3)
    given = [tensors[0].clone(), *tensors[1:]] if case.changes else tensors
    text = pb.emit(case.thing, "python", examples=(*given, *case.plain))
    space = {"__name__": "emitted"}
    exec(compile(text, f"<{name}>", "exec"), space)
    called = eval(re.search(r"outputs = called\((.+?), given\)", text)[1], space)
    python = case.emitted(called, ())
    cpp = case.emitted(ops[name])

    assert differences(tensors_of(cpp(*tensors)), tensors_of(python(*tensors))) == []
    assert differences(pulled(cpp, tensors), pulled(python, tensors)) == []


@pytest.mark.parametrize("name", [n for n in CASES if len(CASES[n].shapes) > 1])
def test_each_gradient_alone_is_right(name, ops):
    case = CASES[name]
    found, expected = [], []
    for alone in range(len(case.shapes)):
        tensors = case.tensors()
        if not tensors[alone].requires_grad:
            continue
        tensors = [t.detach().requires_grad_(i == alone) for i, t in enumerate(tensors)]
        if any(y.requires_grad for y in tensors_of(case.original(*tensors))):
            found += pulled(case.emitted(ops[name]), tensors)
            expected += pulled(case.original, tensors)

    assert found
    assert differences(found, expected) == []


class Counting(TorchDispatchMode):
    """Counts the ops that are run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def ops_of_backward(op, needs):
    x, weight, bias = (t.detach() for t in CASES["layer_norm"].tensors())
    given = [t.requires_grad_(need) for t, need in zip((x, weight, bias), needs, strict=True)]
    out = op(*given)
    with Counting() as counting:
        torch.autograd.grad(out, [t for t in given if t.requires_grad], torch.ones_like(out))
    return [name for name in counting.names if "ones_like" not in name]


def test_work_for_unwanted_gradients_is_left_out(ops):
    op = ops["layer_norm"]

    assert ops_of_backward(op, (False, False, True)) == ["aten.sum.dim_IntList"]
    assert ops_of_backward(op, (False, True, False)) == ["aten.mul.Tensor", "aten.sum.dim_IntList"]
    assert len(ops_of_backward(op, (True, True, True))) > 8


@pytest.mark.parametrize("absent", [(1,), (2,), (1, 2)])
def test_optional_tensors_may_be_absent(absent, ops):
    tensors = CASES["scaled"].tensors(seed=4)
    given = [t for place, t in enumerate(tensors) if place not in absent]

    def put(call):
        def run(*ts):
            rest = iter(ts)
            return call(*(None if place in absent else next(rest) for place in range(3)))

        return run

    op, original = put(ops["scaled"]), put(CASES["scaled"].original)

    assert differences(tensors_of(op(*given)), tensors_of(original(*given))) == []
    assert differences(pulled(op, given), pulled(original, given)) == []
    assert differences(pulled_twice(op, given), pulled_twice(original, given)) == []


def test_optional_tensors_are_so_in_the_schema(ops):
    schema = str(ops["scaled"].default._schema)

    assert (
        schema == "emitted::case_scaled(Tensor x, Tensor? scale=None, Tensor? shift=None) -> Tensor"
    )
    assert ops["scaled"](torch.ones(2)).tolist() == [1, 1]


# ---- plain arguments ----


@pytest.mark.parametrize("given", [(0.5, -2), (0.0, 1), (0.125,)])
def test_free_arguments_may_be_others(given, ops):
    (x,) = CASES["leaky"].tensors(seed=4)

    def op(x):
        return ops["leaky"](x, *given)

    def original(x):
        return CASES["leaky"].thing.apply(x, *given)

    assert differences([op(x)], [original(x)]) == []
    assert differences(pulled(op, [x]), pulled(original, [x])) == []


def test_eps_of_layer_norm_is_free(ops):
    tensors = CASES["layer_norm"].tensors(seed=4)

    def op(*ts):
        return ops["layer_norm"](*ts, eps=0.5)

    def original(*ts):
        return CASES["layer_norm"].thing.apply(*ts, 0.5)

    assert differences(pulled(op, tensors), pulled(original, tensors)) == []


def test_plain_arguments_are_so_in_the_schema(ops):
    assert str(ops["leaky"].default._schema) == (
        "emitted::case_leaky(Tensor x, float slope=0.10000000000000001, int times=3, "
        'str mode="product", int[] dims=[0], bool keep=False) -> Tensor'
    )


OTHER_PLAIN = {
    "way": ((-0.5,), "emitted for arguments with slope >= 0"),
    "word": ((0.25, 3, "sum"), "emitted for mode = 'product' alone, got sum"),
    "list": ((0.25, 3, "product", [1]), "emitted for dims = (0,) alone, got [1]"),
    "truth": ((0.25, 3, "product", [0], True), "emitted for keep = False alone, got 1"),
}


@pytest.mark.parametrize("kind", OTHER_PLAIN)
def test_fixed_argument_is_refused_in_words(kind, ops):
    given, said = OTHER_PLAIN[kind]

    with pytest.raises(RuntimeError, match=re.escape(said)):
        ops["leaky"](*CASES["leaky"].tensors(), *given)


# ---- against what people write by hand ----


def test_relu_agrees_with_handwritten_cpp(ops):
    x = torch.tensor([-1.0, 0.0, 2.0, -0.0, 3.0], dtype=torch.float64, requires_grad=True)
    written = torch.ops.handwritten.my_relu

    assert differences([ops["my_relu"](x)], [written(x)], 0) == []
    assert differences(pulled(ops["my_relu"], [x]), pulled(written, [x]), 0) == []
    assert differences(pulled_twice(ops["my_relu"], [x]), pulled_twice(written, [x]), 0) == []


def test_roi_align_agrees_with_handwritten_cpp(ops):
    tensors = CASES["roi_align"].tensors(seed=5)
    rows, columns = roi_align.BINS

    def written(features, rois):
        return torch.ops.handwritten.roi_align(features, rois, rows, columns, roi_align.SAMPLES)

    assert differences([ops["roi_align"](*tensors)], [written(*tensors)]) == []
    assert differences(pulled(ops["roi_align"], tensors), pulled(written, tensors)) == []


# ---- wherever torch runs it ----


@pytest.mark.parametrize("name", FEW_THEN_ALL)
def test_op_passes_checks_of_torch(name, ops):
    given = (*CASES[name].tensors(), *CASES[name].plain)
    results = torch.library.opcheck(ops[name].default, given)

    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", FEW_THEN_ALL)
def test_op_is_traced_in_one_graph(name, ops):
    case = CASES[name]
    tensors = case.tensors()
    call = case.emitted(ops[name])
    compiled = torch.compile(lambda *ts: call(*ts), backend="aot_eager", fullgraph=True)

    assert differences(pulled(compiled, tensors), pulled(case.original, tensors)) == []


@pytest.mark.slow
def test_inductor_sees_through_op(ops):
    case = CASES["my_activation"]
    compiled = torch.compile(lambda x: ops["my_activation"](x) * 2, fullgraph=True)
    tensors = case.tensors(((64,),))

    expected = pulled(lambda x: case.original(x) * 2, tensors)
    assert differences(pulled(compiled, tensors), expected) == []


def test_changes_are_seen_by_compiled_code(ops):
    x = torch.arange(4.0, dtype=torch.float64)
    compiled = torch.compile(
        lambda x: ops["my_function"](x.clone()) + 1, backend="aot_eager", fullgraph=True
    )

    assert compiled(x).tolist() == [1, 4, 7, 10]


def test_changed_input_is_the_output(ops):
    x = torch.ones(3, dtype=torch.float64)
    version = x._version
    out = ops["my_function"](x)

    assert out is x or out.data_ptr() == x.data_ptr()
    assert x.tolist() == [3, 3, 3]
    assert x._version > version


def test_changed_leaf_is_refused(ops):
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        ops["my_function"](torch.ones(3, dtype=torch.float64, requires_grad=True))


@pytest.mark.parametrize("name", ["my_activation", "layer_norm"])
def test_checkpoint_gives_the_same_gradients(name, ops):
    case = CASES[name]
    tensors = case.tensors()

    def recomputed(*given):
        return checkpoint(ops[name], *given, use_reentrant=False)

    assert differences(pulled(recomputed, tensors), pulled(case.original, tensors)) == []


def test_threads_give_the_same_gradients(ops):
    case = CASES["layer_norm"]
    tensors = [
        [t.detach().clone().requires_grad_() for t in case.tensors(seed=s)] for s in range(4)
    ]
    found = [None] * 4

    def work(place):
        for _ in range(20):
            found[place] = pulled(ops["layer_norm"], tensors[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [pulled(case.original, row) for row in tensors]

    assert [differences(a, b) for a, b in zip(found, expected, strict=True)] == [[]] * 4


@pytest.mark.parametrize("name", PLAIN)
def test_op_runs_without_gradient_recording(name, ops):
    tensors = CASES[name].tensors()
    with torch.no_grad():
        quiet = tensors_of(CASES[name].emitted(ops[name])(*tensors))
    with torch.inference_mode():
        inferred = tensors_of(CASES[name].emitted(ops[name])(*tensors))

    assert not any(y.requires_grad for y in quiet)
    assert all(y.is_inference() for y in inferred)
    assert differences(inferred, quiet, 0) == []


@pytest.mark.parametrize("name", [n for n in PLAIN if n != "roi_align"])
def test_op_has_shapes_without_values(name, ops):
    tensors = CASES[name].tensors()
    empty = [torch.empty_like(t, device="meta") for t in tensors]
    found = [(y.shape, y.dtype) for y in tensors_of(ops[name](*empty))]

    assert found == [(y.shape, y.dtype) for y in tensors_of(CASES[name].original(*tensors))]


@pytest.mark.parametrize("name", ["layer_norm", "attention", "convolved", "halves", "roi_align"])
def test_strides_make_no_difference(name, ops):
    case = CASES[name]
    tensors = [
        t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_(t.requires_grad)
        for t in case.tensors()
    ]
    outputs = [y for y in tensors_of(ops[name](*tensors)) if y.requires_grad]
    wanted = [t for t in tensors if t.requires_grad]
    turned = [
        c.transpose(0, -1).contiguous().transpose(0, -1) if c.dim() else c
        for c in cotangents_for(outputs)
    ]
    found = torch.autograd.grad(outputs, wanted, turned, allow_unused=True)

    assert differences(list(found), pulled(case.original, case.tensors())) == []


@pytest.mark.parametrize("name", ["two_outputs", "halves"])
@pytest.mark.parametrize("used", [0, 1])
def test_unused_output_counts_as_zeros(name, used, ops):
    case = CASES[name]
    (x,) = case.tensors()
    found = torch.autograd.grad(ops[name](x)[used].sum(), x)
    expected = torch.autograd.grad(case.original(x)[used].sum(), x)

    assert differences(list(found), list(expected)) == []


def test_silent_output_has_no_gradient(ops):
    values, indices = ops["sorted_with_indices"](*CASES["sorted_with_indices"].tensors())

    assert (values.requires_grad, indices.requires_grad) == (True, False)


def test_outputs_share_no_memory(ops):
    (x,) = CASES["halves"].tensors()
    product, second = ops["halves"](x)
    memory = {t.untyped_storage().data_ptr() for t in (x, product, second)}

    assert len(memory) == 3


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
def test_checker_accepts_the_op(ops, dtype):
    report = pb.check(ops["my_activation"], (torch.randn(4, dtype=dtype).requires_grad_(),))

    assert report.ok, str(report)


# ---- what it was not written for ----

REFUSED = {
    "rank": ("layer_norm", [(2, 3, 4), (4,), (4,)], "x must have 2 dimensions, got 3"),
    "size": ("layer_norm", [(3, 4), (5,), (4,)], "size 0 of weight must be that of size 1 of x"),
    "shape": ("combined", [(3,), (1,)], "y must have the shape of x"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_misfit_is_refused_in_words(kind, ops):
    name, shapes, said = REFUSED[kind]

    with pytest.raises(RuntimeError, match=re.escape(said)):
        ops[name](*(torch.randn(shape, dtype=torch.float64) for shape in shapes))


def test_other_dtypes_are_as_in_the_original(ops):
    x = torch.randn(5, dtype=torch.float32, requires_grad=True)
    with pytest.raises(RuntimeError, match="x must be of a floating-point dtype, got Int"):
        ops["my_activation"](torch.arange(3, dtype=torch.int32))

    assert ops["my_activation"](x).dtype == torch.float32
    assert (
        differences(
            pulled(ops["my_activation"], [x]), pulled(CASES["my_activation"].original, [x]), 1e-5
        )
        == []
    )


# ---- the text ----


@pytest.mark.parametrize("name", ["my_relu", "layer_norm", "my_function", "halves"])
def test_text_is_pinned(name, gold):
    files = emit_cpp(CASES[name].subject())

    gold(f"cpp/{name}.cpp", next(iter(files.values())))


def test_project_around_it_is_pinned(gold):
    files = emit_cpp(CASES["my_relu"].subject())

    assert list(files) == ["my_relu.cpp", "CMakeLists.txt", "main.cpp"]
    gold("cpp/main.cpp", files["main.cpp"])
    gold(
        "cpp/CMakeLists.txt",
        re.sub(r"CXX_STANDARD \d+", "CXX_STANDARD 17", files["CMakeLists.txt"]),
    )


def test_text_is_the_same_every_time():
    case = CASES["attention"]

    assert emit_cpp(case.subject()) == emit_cpp(case.subject())


def test_public_emit_gives_the_text():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    text = pb.emit(my_relu.MyReLU, "cpp", examples=(x,), verify=False)

    assert "struct MyReLU : public torch::autograd::Function<MyReLU> {" in text
