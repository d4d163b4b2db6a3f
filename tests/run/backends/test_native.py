"""The native node: what it serves, what it declines, and that it is a node like any other."""

import dataclasses
import errno
import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import pullback as pb
from pullback.capture.layouts import Layout
from pullback.errors import BackendError, CaptureError
from pullback.run.backends import native
from pullback.run.disk import building
from pullback.run.disk.private import OpenFolderError
from pullback.run.nodes.node import MISS, LayoutDemand, NodeSpec, Pull, ValueSource

pytestmark = pytest.mark.needs_compiler

GIVEN, MADE = True, False


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


class Program:
    """`x * x * sin(y)` with a hand-written backward, which counts how it was called."""

    def __init__(self, x, y, **changes):
        self.ways = []
        row = Layout.of(x), Layout.of(y)
        output = Layout.of(torch.empty(torch.broadcast_shapes(x.shape, y.shape), dtype=x.dtype))
        self.spec = NodeSpec(
            name="SquareSin",
            module=__name__,
            demand=LayoutDemand.LAYOUT,
            inputs=row,
            forward=self.forward,
            outputs=(ValueSource(MADE, 0),),
            saved=(ValueSource(GIVEN, 0), ValueSource(MADE, 1), ValueSource(GIVEN, 1)),
            read=3,
            numbers=(),
            silent=(),
            live=(0,),
            cotangents=(output,),
            backward=self.begin,
            general=self.general,
        )
        self.needs = [one.needs for one in row]
        self.spec = dataclasses.replace(self.spec, **changes)
        self.node = native.BACKEND.make_node(self.spec)

    def forward(self, row):
        x, y = row
        row.clear()
        self.ways.append("forward")
        sine = y.sin()
        return x * x * sine, sine

    def begin(self, row):
        self.ways.append("begin")
        return Pull(self.backward, self.spec.cotangents)

    def backward(self, row):
        x, sine, y, cotangent = row
        row.clear()
        self.ways.append("backward")
        gradients = cotangent * 2 * x * sine, cotangent * x * x * y.cos()
        return [g for g, need in zip(gradients, self.needs, strict=True) if need]

    def general(self, saved, numbers, cotangents):
        self.ways.append("general")
        x, _, y = saved
        (cotangent,) = cotangents
        if cotangent is None:
            return None, None
        gradients = cotangent * 2 * x * y.sin(), cotangent * x * x * y.cos()
        return [g if need else None for g, need in zip(gradients, self.needs, strict=True)]


def expected(x, y):
    return x * x * y.sin()


def gradients(function, inputs, cotangent, **options):
    return torch.autograd.grad(function(*inputs), inputs, cotangent, **options)


# ---- what it computes ----


def test_node_computes_output_and_gradients():
    x, y = leaf(3, 2), leaf(3, 2)
    cotangent = torch.randn(3, 2)
    program = Program(x, y)

    assert torch.equal(program.node(x, y), expected(x, y))
    actual = gradients(program.node, (x, y), cotangent)
    assert all(map(torch.allclose, actual, gradients(expected, (x, y), cotangent)))
    assert program.ways == ["forward", "forward", "begin", "backward"]


def test_backward_is_compiled_once():
    x, y = leaf(4), leaf(4)
    program = Program(x, y)
    for _ in range(3):
        program.node(x, y).sum().backward()

    assert program.ways.count("begin") == 1
    assert program.ways.count("backward") == 3


def test_node_has_the_name_of_its_program():
    x, y = leaf(4), leaf(4)

    assert Program(x, y).node(x, y).grad_fn.name() == "SquareSinBackward"


def test_only_wanted_gradients_are_given():
    x, y = leaf(4), torch.randn(4)
    program = Program(x, y)
    output = program.node(x, y)

    assert [edge[0] is None for edge in output.grad_fn.next_functions] == [False, True]
    (actual,) = torch.autograd.grad(output.sum(), x)
    assert torch.allclose(actual, 2 * x * y.sin())


def test_gradient_of_one_input_alone():
    x, y = leaf(4), leaf(4)
    program = Program(x, y)
    (actual,) = torch.autograd.grad(program.node(x, y).sum(), y)

    assert torch.allclose(actual, x * x * y.cos())
    assert x.grad is None


def test_several_outputs_come_as_a_tuple():
    x, y = leaf(4), leaf(4)
    both = {"outputs": (ValueSource(MADE, 0), ValueSource(MADE, 1)), "silent": (1,)}
    first, second = Program(x, y, **both).node(x, y)

    assert torch.equal(second, y.sin())
    assert first.requires_grad
    assert not second.requires_grad


def test_numbers_reach_backward():
    x = leaf(4)
    seen = []

    def backward(row):
        seen.append(row[:2])
        return [row[2] * row[0] * row[1]]

    spec = dataclasses.replace(
        Program(x, x).spec,
        inputs=(Layout.of(x),),
        forward=lambda row: (row[0] * 6, 3),
        saved=(ValueSource(GIVEN, 0),),
        read=0,
        numbers=(2.0, ValueSource(MADE, 1)),
        backward=lambda row: Pull(backward, (Layout.of(x, needs=False),)),
        general=lambda saved, numbers, cotangents: seen.append(numbers) or [cotangents[0] * 6],
    )
    node = native.BACKEND.make_node(spec)
    node(x).sum().backward()
    torch.autograd.grad(node(x).sum(), x, create_graph=True)

    assert torch.equal(x.grad, torch.full((4,), 6.0))
    assert seen == [[2.0, 3], (2.0, 3)]


def test_program_that_returns_numbers_is_refused():
    x, y = leaf(4), leaf(4)
    with pytest.raises(CaptureError) as raised:
        Program(x, y, outputs=(ValueSource(MADE, 0), ValueSource(MADE, 2)))

    assert "`SquareSin` must return only tensors" in str(raised.value)


# ---- what it declines ----

X, Y = torch.randn(4, 3), torch.randn(4, 3)


def grad(tensor):
    return tensor.detach().requires_grad_()


MISFITS = {
    "fewer": lambda: (grad(X),),
    "more": lambda: (grad(X), grad(Y), grad(Y)),
    "no tensor": lambda: (grad(X), 1.0),
    "other dtype": lambda: (grad(X.double()), grad(Y)),
    "other sizes": lambda: (grad(X[:2]), grad(Y)),
    "other rank": lambda: (grad(X.flatten()), grad(Y)),
    "strided": lambda: (grad(torch.randn(8, 3)[::2]), grad(Y)),
    "transposed": lambda: (grad(torch.randn(3, 4).t()), grad(Y)),
    "expanded": lambda: (grad(X), torch.randn(3).expand(4, 3).detach().requires_grad_()),
    "no gradient": lambda: (X, grad(Y)),
    "subclass": lambda: (grad(X).as_subclass(type("Mine", (torch.Tensor,), {})), grad(Y)),
    "meta": lambda: (grad(X.to("meta")), grad(Y)),
    "sparse": lambda: (grad(X.to_sparse()), grad(Y)),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_call_that_does_not_fit_is_declined(misfit):
    program = Program(grad(X), grad(Y))

    assert program.node(*MISFITS[misfit]()) is MISS
    assert program.ways == []


def test_gradient_where_none_was_is_declined():
    program = Program(grad(X), Y)

    assert program.node(grad(X), grad(Y)) is MISS


def test_inference_tensor_is_declined():
    with torch.inference_mode():
        x = torch.randn(4, 3)

    assert Program(grad(X), Y).node(grad(X), x) is MISS
    assert Program(grad(X), Y).node(grad(X), Y) is not MISS


def test_lazy_conjugate_is_declined():
    x = torch.randn(4, dtype=torch.complex64)
    program = Program(grad(x), x)

    assert program.node(grad(x), x.conj()) is MISS
    assert program.node(grad(x), x) is not MISS


MOMENTS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "function mode": lambda: torch.device("cpu"),
    "below autograd": torch._C._AutoDispatchBelowAutograd,
    "dispatch mode": lambda: FlopCounterMode(display=False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_moment_that_is_not_plain_is_declined(moment):
    x, y = grad(X), grad(Y)
    program = Program(x, y)
    with MOMENTS[moment]():
        assert program.node(x, y) is MISS
    assert program.node(x, y) is not MISS


def test_transforms_are_declined():
    x, y = grad(X), grad(Y)
    program, seen = Program(x, y), []
    torch.func.vmap(lambda z: seen.append(program.node(x, y)) or z)(X)
    torch.func.grad(lambda z: seen.append(program.node(x, y)) or z.sum())(X)

    assert all(value is MISS for value in seen)
    assert len(seen) == 2


def test_tangent_is_declined():
    x, y = grad(X), grad(Y)
    program = Program(x, y)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))

        assert program.node(dual, y) is MISS
        assert program.node(x, y) is not MISS


def test_parameters_are_served():
    x, y = torch.nn.Parameter(X.clone()), torch.nn.Parameter(Y.clone())
    output = Program(x, y).node(x, y)

    assert torch.equal(output, expected(x, y))


def test_strides_of_size_one_do_not_matter():
    x = torch.randn(1, 4).as_strided((1, 4), (9, 1)).requires_grad_()
    y = leaf(1, 4)

    assert torch.equal(Program(leaf(1, 4), y).node(x, y), expected(x, y))


# ---- cotangents ----


@pytest.mark.parametrize(
    "cotangent",
    [torch.ones(()).expand(4, 3), torch.randn(3, 4).t(), torch.randn(8, 3)[::2]],
    ids=["expanded", "transposed", "strided"],
)
def test_cotangent_of_any_layout_is_right(cotangent):
    x, y = grad(X), grad(Y)
    program = Program(x, y)
    actual = gradients(program.node, (x, y), cotangent)

    assert all(map(torch.allclose, actual, gradients(expected, (x, y), cotangent)))
    assert program.ways[-1] == "backward"


def test_absent_cotangent_goes_the_general_way():
    x, y = grad(X), grad(Y)
    both = {"outputs": (ValueSource(MADE, 0), ValueSource(MADE, 1)), "live": (0, 1)}
    layout = Layout.of(torch.empty(4, 3))
    seen = []
    program = Program(
        x, y, **both, cotangents=(layout, layout), general=lambda *row: seen.append(row)
    )
    program.spec = dataclasses.replace(
        program.spec, general=lambda kept, numbers, given: seen.append(given) or (X, Y)
    )
    first, _ = native.BACKEND.make_node(program.spec)(x, y)
    first.sum().backward()

    assert [cotangent is None for cotangent in seen[0]] == [False, True]
    assert torch.equal(x.grad, X)


def test_double_backward_goes_the_general_way():
    x, y = leaf(4, dtype=torch.float64), leaf(4, dtype=torch.float64)
    program = Program(x, y)

    assert torch.autograd.gradcheck(program.node, (x, y))
    assert torch.autograd.gradgradcheck(program.node, (x, y))
    assert "general" in program.ways


def test_batched_backward_goes_the_general_way():
    x, y = leaf(4), leaf(4)
    program = Program(x, y)
    cotangents = torch.eye(4)
    (actual, _) = gradients(program.node, (x, y), cotangents, is_grads_batched=True)

    assert torch.allclose(actual, torch.diag(2 * x * y.sin()))
    assert "backward" not in program.ways


# ---- a node like any other ----


def test_second_backward_needs_a_retained_graph():
    x, y = leaf(4), leaf(4)
    output = Program(x, y).node(x, y).sum()
    output.backward(retain_graph=True)
    once = x.grad.clone()
    output.backward()

    assert torch.allclose(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        output.backward()


def test_changed_input_is_noticed():
    x, y = leaf(4), leaf(4)
    output = Program(x, y).node(x, y)
    with torch.no_grad():
        x.mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_changed_output_is_noticed_where_saved():
    x, y = leaf(4), leaf(4)
    saved = (ValueSource(GIVEN, 0), ValueSource(MADE, 0), ValueSource(GIVEN, 1))
    output = Program(x, y, saved=saved).node(x, y)
    with torch.no_grad():
        output.mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_saved_tensor_hooks_are_called():
    x, y = leaf(4), leaf(4)
    program, packed = Program(x, y), []
    with saved_tensors_hooks(lambda t: packed.append(t) or t.numpy(force=True), torch.from_numpy):
        output = program.node(x, y)
    output.sum().backward()

    assert len(packed) == 3
    assert torch.allclose(x.grad, 2 * x * y.sin())
    assert program.ways[-1] == "backward"


def test_hook_that_changes_layout_is_harmless():
    x, y = grad(X), grad(Y)
    program = Program(x, y)
    program.node(x, y).sum().backward()
    x.grad = None
    with saved_tensors_hooks(lambda t: t.detach().t().contiguous().t(), lambda t: t):
        output = program.node(x, y)
    output.sum().backward()

    assert torch.allclose(x.grad, 2 * x * y.sin())


def test_hook_that_changes_dtype_goes_the_general_way():
    x, y = grad(X), grad(Y)
    program = Program(x, y)
    program.node(x, y).sum().backward()
    x.grad = None
    with saved_tensors_hooks(lambda t: t.detach().double(), lambda t: t):
        output = program.node(x, y)
    output.sum().backward()

    assert torch.allclose(x.grad, 2 * x * y.sin())
    assert program.ways[-1] == "general"


def test_hooks_on_tensors_and_nodes_run():
    x, y = leaf(4), leaf(4)
    seen = []
    output = Program(x, y).node(x, y)
    output.register_hook(lambda g: seen.append("output") or 2 * g)
    output.grad_fn.register_hook(lambda *_: seen.append("node"))
    x.register_hook(lambda g: seen.append("input"))
    output.sum().backward()

    assert seen == ["output", "node", "input"]
    assert torch.allclose(x.grad, 4 * x * y.sin())


def test_checkpoint_runs_the_node_again():
    x, y = leaf(4), leaf(4)
    program = Program(x, y)
    checkpoint(program.node, x, y, use_reentrant=False).sum().backward()

    assert torch.allclose(x.grad, 2 * x * y.sin())
    assert program.ways.count("forward") == 2


def test_threads_agree_with_one():
    inputs = [(leaf(64), leaf(64)) for _ in range(8)]
    program = Program(*inputs[0])
    results = [None] * 8

    def work(i):
        for _ in range(50):
            results[i] = gradients(program.node, inputs[i], torch.ones(64))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    for row, actual in zip(inputs, results, strict=True):
        alone = gradients(expected, row, torch.ones(64))
        assert all(map(torch.allclose, actual, alone))


# ---- compiled graphs ----


def layer(x, weight, bias):
    hidden = torch.addmm(bias, x, weight).tanh()
    return hidden * x.sum(1, keepdim=True), hidden.exp()


@pytest.fixture(scope="module")
def compiled():
    """A program compiled for the native node, the spec of that, and what it was compiled for."""
    specs, make = [], native.BACKEND.make_node
    row = leaf(4, 3), leaf(3, 5), leaf(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native.BACKEND, "make_node", lambda spec: specs.append(spec) or make(spec))
        function = pb.combine(layer, *row, backend="native")
        function.apply(*row)
    (spec,) = specs
    return function.apply, spec, row


def test_compiled_program_agrees_with_eager(compiled):
    apply, _, row = compiled
    cotangents = torch.randn(4, 5), torch.randn(4, 5)
    for actual, alike in zip(apply(*row), layer(*row), strict=True):
        assert torch.allclose(actual, alike, atol=1e-6)
        assert actual.stride() == alike.stride()
    pairs = zip(gradients(apply, row, cotangents), gradients(layer, row, cotangents), strict=True)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in pairs)


def test_compiled_program_needs_no_python(compiled):
    _, spec, row = compiled
    node = native.BACKEND.make_node(spec)
    kinds = []
    begin = spec.backward

    def noted(arguments):
        kinds.append(type(begin(arguments).run).__name__)
        return begin(arguments)

    node = native.BACKEND.make_node(dataclasses.replace(spec, backward=noted))
    torch.autograd.grad(node(*row)[0].sum(), row[0], retain_graph=True)

    assert type(spec.forward).__name__ == "Library"
    assert kinds == []  # the other output had no cotangent: the general way
    sum(output.sum() for output in node(*row)).backward()
    assert kinds == ["Library"]


def test_compiled_program_runs_in_threads(compiled):
    apply, _, row = compiled
    alone = gradients(layer, row, (torch.ones(4, 5), torch.ones(4, 5)))
    wrong = []

    def work():
        for _ in range(200):
            actual = gradients(apply, row, (torch.ones(4, 5), torch.ones(4, 5)))
            if not all(torch.allclose(a, b, atol=1e-5) for a, b in zip(actual, alone, strict=True)):
                wrong.append(actual)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

    assert wrong == []


def test_second_derivative_of_compiled_program(compiled):
    apply, _, row = compiled

    def second(function):
        first = gradients(function, row, (torch.ones(4, 5), torch.ones(4, 5)), create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), row)

    pairs = zip(second(apply), second(layer), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)


def test_gradients_of_one_cotangent_stay_apart():
    x, y = leaf(4), leaf(4)
    function = pb.combine(lambda x, y: (x + y) * 1.0, x, y, backend="native")
    function.apply(x, y).backward(torch.ones(4))
    with torch.no_grad():
        x.grad.add_(1)

    assert torch.equal(y.grad, torch.ones(4))


# ---- errors and memory ----


class Refusal(Exception):
    pass


def refuse(*_):
    raise Refusal("no")


@pytest.mark.parametrize("part", ["forward", "backward", "general"])
def test_error_of_a_graph_keeps_its_type(part):
    x, y = leaf(4), leaf(4)
    node = Program(x, y, **{part: refuse}).node
    with pytest.raises(Refusal, match="no"):
        torch.autograd.grad(node(x, y).sum(), x, create_graph=part == "general")


def test_graph_that_returns_nonsense_is_an_error():
    x, y = leaf(4), leaf(4)

    with pytest.raises(TypeError, match="must return tensors, and returned str"):
        Program(x, y, forward=lambda row: ("word", "word")).node(x, y)
    with pytest.raises(RuntimeError, match="must make a tensor as value 1"):
        Program(x, y, forward=lambda row: (row[0],)).node(x, y)
    with pytest.raises(RuntimeError, match="must give one gradient per input"):
        nothing = Pull(lambda row: (), (Layout.of(x, needs=False),))
        Program(x, y, backward=lambda row: nothing).node(x, y).sum().backward()


def test_what_a_node_holds_is_freed():
    x, y = leaf(4), leaf(4)
    program = Program(x, y)
    output = program.node(x, y)
    forward, cycle = weakref.ref(program.forward.__self__), [program]
    cycle.append(cycle)
    del program, cycle
    gc.collect()
    assert forward() is not None

    output.sum().backward()
    del output
    gc.collect()

    assert forward() is None


def test_calls_and_errors_leak_nothing():
    x, y = leaf(2048), leaf(2048)
    program = Program(x, y)
    wrong = Program(x, y, backward=refuse)

    def work(count):
        for _ in range(count):
            program.node(x, y).backward(torch.ones(2048))
            program.node(y, x[:2])
            program.ways.clear()
        for _ in range(count // 10):
            with pytest.raises(Refusal):
                wrong.node(x, y).backward(torch.ones(2048))

    work(500)
    gc.collect()
    before = resident()
    work(5000)
    gc.collect()

    assert resident() - before < 4 << 20  # one tensor a call would be forty megabytes


def resident():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * 4096


# ---- absence ----


def test_absence_of_a_compiler_is_one_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")

    said = "no C++ compiler is installed as `no-such-compiler`, which CXX names"
    assert native.BACKEND.absence() == said


def test_failed_build_is_remembered_in_one_line(monkeypatch, tmp_path):
    source = tmp_path / "node.cpp"
    source.write_text("this is no C++\nnor this\n")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(native, "_SOURCE", source)
    monkeypatch.setattr(native, "_failure", [])
    builds = []
    monkeypatch.setattr(native, "_loaded", native._loaded.__wrapped__)
    monkeypatch.setattr(building, "extension", lambda *row: builds.append(1) or _extension(*row))
    x, y = leaf(4), leaf(4)
    for _ in range(2):
        with pytest.raises(BackendError) as raised:
            Program(x, y)

    lines = str(raised.value).splitlines()
    assert lines[0] == 'E502 backend: backend "native" must be able to build its node here'
    assert native.BACKEND.absence() in lines[1]
    assert native.BACKEND.absence().startswith("its node could not be built: ")
    assert len(builds) == 1


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), building.SPACE),
        (OpenFolderError("everybody may write to `/cache`"), "do what it says"),
    ],
)
def test_fix_is_one_for_the_reason(error, fix, monkeypatch):
    def fails():
        raise error

    monkeypatch.setattr(native, "_failure", [])
    monkeypatch.setattr(native, "_loaded", fails)
    with pytest.raises(BackendError) as raised:
        native.native_extension()

    assert str(error) in raised.value.facts["got"]
    assert fix in raised.value.facts["fix"]


_extension = building.extension


# ---- in the background ----


def test_another_backend_serves_while_the_node_is_built(monkeypatch, caplog):
    begun, may_end = threading.Event(), threading.Event()
    real = building.build_library

    def slowly(library, load):
        if threading.current_thread().name != "pullback-build":
            return real(library, load)
        begun.set()
        assert may_end.wait(60)
        return real(library, load)

    native.native_extension()  # so that nothing has to be built in truth
    monkeypatch.setattr(native, "_state", native._State())
    monkeypatch.setattr(native, "PATIENCE", 0.1)
    monkeypatch.setattr(building, "is_built", lambda library: False)
    monkeypatch.setattr(building, "build_library", slowly)
    monkeypatch.setenv("PULLBACK_BACKENDS", "inductor,native")
    x = leaf(4, 5)
    combined = pb.combine(lambda x: x.sin() * 2, x)
    combined.apply(x).sum().backward()
    assert begun.wait(60)
    assert "building the native node in the background" in caplog.text
    assert 'backend "auto" (inductor)' in combined.explain()
    may_end.set()
    native._state.thread.join(60)
    y = combined.apply(x)

    assert y.grad_fn.name() != ""
    assert 'backend "auto" (native)' in combined.explain()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 2 * x.cos())


@pytest.mark.slow
def test_build_ends_with_the_process(tmp_path):
    script = tmp_path / "begin.py"
    script.write_text(
        "from pullback.run.backends import native\n"
        "native.PATIENCE = 0.1\n"
        "class Told:\n"
        "    def tell(self): pass\n"
        "told = Told()\n"
        "assert not native.BACKEND.is_ready(told.tell)\n"
        "import time\n"
        "from pullback.run.disk import building\n"
        "while not building._running: time.sleep(0.01)\n"
        "print(next(iter(building._running)).pid)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PULLBACK_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    pid = int(done.stdout.split()[-1])
    for _ in range(100):
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the compiler is still running")
