"""Graphs compiled by Inductor: what eager computes, for the layout that they were compiled for."""

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import fx

import benchmarks.pipelines
import pullback as pb
from benchmarks.pipelines import PIPELINES, make_inputs
from pullback.capture.joint import capture
from pullback.derive.recipe import parts_of, printed_function
from pullback.errors import CaptureError, UncompiledWarning
from pullback.run.backends import inductor
from pullback.run.disk import toolchain
from pullback.run.lowering import lower
from pullback.run.lowering.lower import device_absence
from pullback.run.lowering.retrace import retrace

pytestmark = pytest.mark.needs_compiler

SOURCE = Path(__file__).resolve().parents[3] / "src"
QUICK = ("sqsin", "layernorm_gelu")


@pytest.fixture(autouse=True, scope="module")
def one_cache(tmp_path_factory):
    """Tests that compile the same share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULLBACK_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


def graphs_of(program, examples, save="auto"):
    """The forward and the backward graph of a program, and rows of arguments for both."""
    captured = capture(program, examples)
    parts = parts_of(captured, save)
    row = captured.row([each.detach() for each in captured_tensors(examples)])
    results = eagerly(parts.forward, row)
    count = captured.joint.output_count
    cotangents = [like(node) for node in captured.joint.cotangents]
    return (parts.forward, row), (parts.backward, [*results[count:], *cotangents])


def captured_tensors(examples):
    return [each for each in examples if isinstance(each, torch.Tensor)]


def like(node):
    value = node.meta["val"]
    sizes = [getattr(getattr(size, "node", None), "hint", size) for size in value.shape]
    return torch.randn([int(size) for size in sizes], dtype=value.dtype)


def eagerly(graph, row):
    """What eager mode makes of a graph."""
    torch.manual_seed(1)
    names = {node: node.name for node in graph.nodes}
    return printed_function(graph, "forward", "program", names)(*row)


def by_inductor(graph, row, name="forward", **options):
    call = inductor.BACKEND.specialise(graph, row, name=name, **options)
    torch.manual_seed(1)
    return call(list(row))


def assert_same(got, expected, tolerance=1e-10):
    """The same kinds, strides and values."""
    assert [kind_of(value) for value in got] == [kind_of(value) for value in expected]
    for one, other in zip(got, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def kind_of(value):
    if not isinstance(value, torch.Tensor):
        return value
    strides = value.stride() if value.numel() > 1 else ()
    return value.dtype, tuple(value.shape), strides


def assert_as_eager(program, *examples, save="auto", tolerance=1e-10):
    forward, backward = graphs_of(program, examples, save)
    assert_same(by_inductor(*forward), eagerly(*forward), tolerance)
    if backward[0].output_node().args[0]:
        assert_same(by_inductor(*backward, "backward"), eagerly(*backward), tolerance)


def draw(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


# ---- programs ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in PIPELINES]
)
def test_pipelines_give_what_eager_gives(name):
    assert_as_eager(PIPELINES[name].nested, *make_inputs(name, 1000, torch.float64))


def results_of_every_kind(x, y):
    product = x * y
    return (
        *(product, product.t(), product, x, y.view(-1), product[1]),
        *(x > y, (x * 3).to(torch.int32), product.argmax(), product.sum()),
        *(x.sum(0, keepdim=True), x.float() * 2, torch.arange(5), torch.zeros(2), x[:0] * 2),
    )


def test_results_of_every_kind_are_right():
    assert_as_eager(results_of_every_kind, draw(4, 5), draw(4, 5))


def test_views_and_copies_share_memory_as_eagerly():
    (graph, row), _ = graphs_of(results_of_every_kind, (draw(4, 5), draw(4, 5)))
    got = by_inductor(graph, row)

    assert got[3] is row[0]
    assert got[4].data_ptr() == row[1].data_ptr()
    assert got[1].data_ptr() == got[0].data_ptr() == got[2].data_ptr()
    assert got[5].data_ptr() == got[0].data_ptr() + 5 * 8


def draws(x):
    return x * torch.rand_like(x), torch.nn.functional.dropout(x, 0.5), torch.randn(3)


def test_random_numbers_are_those_of_eager():
    assert_as_eager(draws, draw(8))


def test_complex_numbers_are_right_and_quiet(capfd, recwarn):
    numbers = torch.randn(6, dtype=torch.complex128).requires_grad_()
    assert_as_eager(lambda x: (x * x.conj(), x.abs()), numbers)
    said = capfd.readouterr()

    assert (said.out, said.err) == ("", "")
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.slow
def test_low_precision_is_no_worse_than_eager():
    x = torch.randn(6, 64, dtype=torch.bfloat16).requires_grad_()
    assert_as_eager(lambda x: (x.softmax(-1) * x).sum(-1), x, tolerance=2e-2)


@pytest.mark.slow
def test_products_and_constants_are_right():
    def program(x, w):
        return (x @ w).relu() + torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype), w.t() @ x.t()

    assert_as_eager(program, draw(4, 6), draw(6, 3))


@torch.library.custom_op("pullback_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    """An op that no compiler can look into."""
    return x * 3


@tripled.register_fake
def _(x):
    return torch.empty_like(x)


tripled.register_autograd(lambda ctx, cotangent: cotangent * 3)


def test_opaque_op_is_called():
    assert_as_eager(lambda x: torch.ops.pullback_tests.tripled(x), draw(7))


def test_number_of_the_program_is_taken():
    def scaled(x):
        return x * x.shape[0] + x.numel()

    assert_as_eager(scaled, draw(4, 5), save="inputs")


def test_graph_without_work_is_taken():
    assert_as_eager(lambda x: x, draw(3))


STEPS = (
    *(torch.sin, torch.tanh, torch.exp, torch.sigmoid, torch.neg, torch.abs, torch.relu),
    *(lambda a: a.softmax(-1), lambda a: a - a.mean(0), lambda a: a.cumsum(1), lambda a: a * a),
    *(lambda a: a.flip(0), lambda a: a.roll(1, 1), lambda a: a.t().contiguous().t()),
    *(lambda a: a.clamp(-1, 1), lambda a: a @ a.t() @ a, lambda a: a / (1 + a.square().sum())),
    *(lambda a: torch.where(a > 0, a, 0.5 * a), lambda a: a.view(-1).sort().values.view(a.shape)),
)


def random_program(seed):
    """Ten random steps from three values to four, each of one or two values before it."""
    choose = random.Random(seed)
    plan = [(choose.choice(STEPS), choose.random(), choose.random()) for _ in range(10)]

    def program(*inputs):
        values = list(inputs)
        for step, first, second in plan:
            one, other = (values[int(place * len(values))] for place in (first, second))
            values.append(step(one) + other)
        return tuple(values[-4:])

    return program


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_what_eager_gives(seed):
    inputs = [draw(3, 4) for _ in range(3)]
    assert_as_eager(random_program(seed), *inputs, save=["auto", "everything", "inputs"][seed % 3])


# ---- layouts ----


def layered(x, y):
    return x * y.sin() + 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", ["transposed", "expanded", "every second", "offset"])
def test_layout_of_the_row_is_served(way):
    base = torch.randn(12, 12, dtype=torch.float64)
    x = {
        "transposed": base[:4, :6].t(),
        "expanded": base[:1, :4].expand(6, 4),
        "every second": base[::2, ::3],
        "offset": base.view(-1)[3:27].view(6, 4),
    }[way]
    (graph, _), _ = graphs_of(layered, (draw(6, 4), draw(6, 4)))
    row = [x, torch.randn(6, 4, dtype=torch.float64)]

    assert_same(by_inductor(graph, row), eagerly(graph, row))


def test_negative_view_is_not_misread():
    """Its memory holds the negative of its values."""
    function = pb.combine(lambda x: x * 2 + 1, draw(4), backend="inductor")
    function.apply(draw(4))
    x = torch.randn(4, dtype=torch.complex128).conj().imag.detach().requires_grad_()
    direct = torch._neg_view(torch.ones(4, dtype=torch.float64)).requires_grad_()

    assert x.is_neg()
    assert direct.is_neg()
    assert torch.equal(function.apply(x), x * 2 + 1)
    assert torch.equal(function.apply(direct), direct * 2 + 1)


def test_arguments_stay_as_they_are():
    (graph, row), _ = graphs_of(results_of_every_kind, (draw(4, 5), draw(4, 5)))
    copies, versions = [each.clone() for each in row], [each._version for each in row]
    by_inductor(graph, row)

    assert all(torch.equal(a, b) for a, b in zip(row, copies, strict=True))
    assert [each._version for each in row] == versions


def test_one_function_serves_every_size():
    (graph, row), (backward, given) = graphs_of(layered, (draw(6, 4), draw(6, 4)))
    call = inductor.BACKEND.specialise_all_sizes(graph, row, name="forward")
    back = inductor.BACKEND.specialise_all_sizes(backward, given, name="backward")
    folders = len(list(inductor_folder().glob("??/*")))
    for rows, columns in ((6, 4), (3, 5), (40, 17)):
        row = [torch.randn(rows, columns, dtype=torch.float64) for _ in row]
        given = [torch.randn(rows, columns, dtype=torch.float64) for _ in given]

        assert_same(call(list(row)), eagerly(graph, row))
        assert_same(back(list(given)), eagerly(backward, given))

    assert len(list(inductor_folder().glob("??/*"))) == folders


def test_saved_sizes_may_change():
    def sums(x):
        return x.sum(0) * x.shape[0], x.sum()

    (graph, row), (backward, given) = graphs_of(sums, (draw(6, 4),), save="everything")
    call = inductor.BACKEND.specialise_all_sizes(backward, given, name="backward")
    for rows, columns in ((6, 4), (3, 5)):
        row = [torch.randn(rows, columns, dtype=torch.float64)]
        saved = eagerly(graph, row)[2:]
        given = [*saved, torch.randn(columns, dtype=torch.float64), torch.randn(()).double()]

        assert_same(call(list(given)), eagerly(backward, given))

    assert any(isinstance(value, int) for value in saved)


def inductor_folder():
    return Path(os.environ["PULLBACK_CACHE_DIR"]) / "compiled"


def test_size_that_code_does_not_serve_gets_its_own(monkeypatch):
    (graph, row), _ = graphs_of(layered, (draw(6, 4), draw(6, 4)))
    monkeypatch.setattr(inductor.Stage, "meets", lambda *args: False)
    call = inductor.BACKEND.specialise_all_sizes(graph, row, name="forward")

    assert_same(call(list(row)), eagerly(graph, row))


# ---- what it cannot do ----


def test_broken_graph_is_refused():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.mm.default, (x, x)),))

    with pytest.raises(CaptureError) as caught:
        inductor.BACKEND.specialise(graph, [torch.randn(2, 3)], name="forward")

    assert str(caught.value).startswith(
        "E301 capture: the forward graph must be one that Inductor compiles\n  got:      "
    )


def test_huge_graph_is_refused():
    graph = fx.Graph()
    node = graph.placeholder("x")
    for _ in range(inductor.NODES):
        node = graph.call_function(torch.ops.aten.sin.default, (node,))
    graph.output((node,))

    with pytest.raises(CaptureError) as caught:
        inductor.BACKEND.specialise(graph, [torch.randn(2)], name="backward")

    assert str(caught.value) == (
        "E301 capture: the backward graph must be small enough to compile in a minute or so\n"
        "  expected: at most 3000 ops\n"
        "  got:      3002 ops"
    )


def test_missing_compiler_is_said(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(lower.shutil, "which", lambda name: None)
    device_absence.cache_clear()
    said = device_absence()
    monkeypatch.undo()
    device_absence.cache_clear()

    assert said == "no C++ compiler is installed (g++, clang++, c++, or what CXX names)"
    assert device_absence() is None


def test_compiler_with_options_is_not_for_inductor(monkeypatch):
    monkeypatch.setenv("CXX", f"{toolchain.compiler()[0]} -m64")
    device_absence.cache_clear()
    said = device_absence()
    monkeypatch.undo()
    device_absence.cache_clear()

    assert said == "CXX must name one program, without options, for Inductor to compile with"


def test_missing_triton_is_said(monkeypatch):
    monkeypatch.setattr(lower.importlib.util, "find_spec", lambda name: name[0] == "t" or None)
    device_absence.cache_clear()
    found = device_absence("cuda")
    monkeypatch.setattr(
        lower.importlib.util, "find_spec", lambda name: None if name == "triton" else True
    )
    device_absence.cache_clear()
    said = device_absence("cuda")
    device_absence.cache_clear()

    assert (found, said) == (None, "no Triton is installed, which compiles for cuda")


# ---- loops ----


@pytest.mark.slow
def test_unrolled_loop_is_compiled():
    """Ten leapfrog steps: minutes, if each op were written into all that use it."""
    assert benchmarks.pipelines.STEPS == 10
    assert_as_eager(PIPELINES["leapfrog"].nested, *make_inputs("leapfrog", 100, torch.float64))


@pytest.mark.parametrize(("dtype", "is_mixed"), [(torch.float64, False), (torch.float32, True)])
def test_sums_of_double_precision_stay_so(dtype, is_mixed, monkeypatch, tmp_path):
    """Where one kernel sums over rows and columns, it keeps partial sums in single precision."""
    inside = lower._torch()
    seen = []

    def compiles(*args, **kwargs):
        seen.append(getattr(inside.config.triton, "mix_order_reduction", is_mixed))
        return SimpleNamespace(current_callable=None)

    monkeypatch.setattr(inside, "compile", compiles)
    row = [torch.randn(3, dtype=dtype), torch.randn(3, dtype=dtype)]
    (graph, _), _ = graphs_of(layered, row)
    lower.lower(retrace(graph, row, {}), tmp_path, is_backward=False)

    assert seen == [is_mixed]


def test_growth_of_a_loop_is_seen():
    def doubled(x):
        for _ in range(20):
            x = x.sin() + x
        return x

    (graph, _), _ = graphs_of(doubled, (draw(3),))

    assert lower._growth(graph) == 3 * 2**20 - 2
    assert lower._growth(graphs_of(layered, (draw(3), draw(3)))[0][0]) == 5


# ---- the cache ----

PROGRAM = """
import sys
import torch
from pullback.capture.joint import capture
from pullback.derive.recipe import parts_of
from pullback.run.backends import inductor

def program(x, y):
    return x * y.sin() + 1

built = []
build = inductor._built
inductor._built = lambda *args: (built.append(1), build(*args))[1]
x, y = torch.linspace(0, 1, 10), torch.linspace(1, 2, 10)
graph = parts_of(capture(program, (x, y)), "auto").forward
(result,) = inductor.BACKEND.specialise(graph, [x, y], name="forward")([x, y])
torch.testing.assert_close(result, program(x, y))
print("built" if built else "found")
"""


def start(folder, program=PROGRAM):
    settings = {**os.environ, "PYTHONPATH": str(SOURCE), "PULLBACK_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", program],
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process):
    out, error = process.communicate()
    return out.strip() or error


def test_second_time_nothing_is_built(monkeypatch):
    (graph, row), _ = graphs_of(layered, (draw(5, 4), draw(5, 4)))
    first = by_inductor(graph, row)
    monkeypatch.setattr(inductor, "_built", None)
    second = by_inductor(graph, row)

    assert_same(second, first)


def test_number_of_threads_is_part_of_the_key():
    (graph, row), _ = graphs_of(layered, (draw(5, 4), draw(5, 4)))
    before, threads = inductor.text_of_origin(graph, row, "forward", False), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        after = inductor.text_of_origin(graph, row, "forward", False)
    finally:
        torch.set_num_threads(threads)

    assert before != after


def test_function_in_a_graph_has_the_same_key_everywhere():
    graph = fx.Graph()
    node = graph.call_function(torch.sym_max, (graph.placeholder("x"), 2))
    graph.output((node,))

    assert "torch.sym_max" in inductor.text_of_origin(graph, [3], "forward", False)
    assert " at 0x" not in inductor.text_of_origin(graph, [3], "forward", False)


@pytest.mark.slow
def test_other_processes_find_what_one_built(tmp_path):
    together = [start(tmp_path) for _ in range(2)]
    said = sorted(outcome(each) for each in together)

    assert said == ["built", "found"]


@pytest.mark.slow
def test_damaged_cache_is_built_anew(tmp_path):
    first = outcome(start(tmp_path))
    files = [path for path in (tmp_path / "compiled").rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"garbage")
    second, third = outcome(start(tmp_path)), outcome(start(tmp_path))

    assert len(files) > 3
    assert [first, second, third] == ["built", "built", "found"]


@pytest.mark.slow
def test_any_damaged_file_is_no_harm(tmp_path):
    outcome(start(tmp_path))
    for path in sorted((tmp_path / "compiled").rglob("*.*")):
        if path.is_file() and path.stat().st_size:
            path.write_bytes(b"")

            assert (path.name, outcome(start(tmp_path))) == (path.name, "built")


def test_folder_of_inductor_itself_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (graph, row), _ = graphs_of(lambda x: x.cos() * 2, (draw(3),))
    by_inductor(graph, row)

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_precompiled_headers_are_kept_in_the_cache(monkeypatch, tmp_path):
    """Not in the temp folder, where whoever makes them first writes part of our code."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    asked, codecache = [], lower._torch().codecache
    before = str(codecache._HEADER_DIR)
    monkeypatch.setattr(
        codecache, "_precompile_header", lambda *_, **__: asked.append(codecache._HEADER_DIR) or ""
    )
    (graph, row), _ = graphs_of(lambda x: x.tan() * 3 + x, (draw(3),))
    by_inductor(graph, row)

    assert set(asked) == {str(tmp_path / "compiled" / "headers")}
    assert (tmp_path / "compiled" / "headers").stat().st_mode & 0o077 == 0
    assert before == codecache._HEADER_DIR


def test_headers_are_not_precompiled_where_their_folder_is_unknown(monkeypatch):
    monkeypatch.delattr(lower._torch().codecache, "_HEADER_DIR")

    with lower._settings():
        assert not lower._torch().config.cpp_cache_precompile_headers


@pytest.mark.parametrize("given", [None, "open", "own"])
def test_compiler_of_checks_loads_from_private_folders(given, monkeypatch, tmp_path):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    codecache = lower._torch().codecache
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):
        monkeypatch.setattr(codecache, name, "/elsewhere")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "given") if given else "")
    (tmp_path / "given").mkdir(mode=0o700)
    if given == "open":
        (tmp_path / "given").chmod(0o777)
    lower.compile_privately()

    ours = tmp_path / "cache" / "compiled" / "torch.compile"
    kept = tmp_path / "given" if given == "own" else ours
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(kept)
    assert os.environ["TRITON_CACHE_DIR"] == str(ours / "triton")
    assert str(ours / "headers") == codecache._HEADER_DIR


@pytest.mark.parametrize("trouble", ["locks", "open"])
def test_cache_that_cannot_be_used_is_no_harm(trouble, monkeypatch, tmp_path):
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "compiled"
    folder.mkdir()
    if trouble == "locks":
        (folder / "locks").write_text("no folder")
    else:
        folder.chmod(0o777)
    x = torch.randn(3, requires_grad=True)

    cosine = pb.combine(torch.cos, x, backend="inductor")
    with pytest.warns(UncompiledWarning, match="must be a folder"):
        out = cosine(x)

    assert torch.equal(out, x.cos())
    said = {"locks": "FileExistsError", "open": f"everybody may write to `{folder}`"}[trouble]
    assert said in cosine.explain()


OLD = """#!/bin/sh
for word in "$@"; do
    case "$word" in -mavx512*|-mamx*) echo "error: unrecognized $word" >&2; exit 1;; esac
done
exec {compiler} "$@"
"""


@pytest.mark.slow
def test_compiler_older_than_the_processor_will_do(tmp_path, monkeypatch):
    compiler = lower.shutil.which(os.environ.get("CXX", "g++"))
    old = tmp_path / "g++"
    old.write_text(OLD.format(compiler=compiler))
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))

    assert [outcome(start(tmp_path / "cache")) for _ in range(2)] == ["built", "found"]


FAILED_ONCE = """
from torch._inductor import cpu_vec_isa

asks = cpu_vec_isa.VecISA.check_build
cpu_vec_isa.VecISA.check_build = lambda self, code: False
assert not cpu_vec_isa.valid_vec_isa_list()
cpu_vec_isa.VecISA.check_build = asks
"""
"""A compiler fails when Inductor asks it what the processor can do, and then works again."""


def test_code_is_not_compiled_for_other_instructions_than_it_was_written_for(tmp_path):
    folder = tmp_path / "cache"
    before = outcome(start(folder)), {path.name for path in folder.rglob("*.so")}
    after = outcome(start(folder, FAILED_ONCE + PROGRAM)), {p.name for p in folder.rglob("*.so")}

    assert before[0] == "built"
    assert after == ("found", before[1])


FULL = """#!/bin/sh
case "$1" in -*version) exec {compiler} "$@";; esac
echo "error: no space left on device" >&2
exit 1
"""


def test_a_compiler_that_fails_is_asked_again(monkeypatch, tmp_path):
    (graph, row), _ = graphs_of(lambda x: (x.exp() * 3).sin(), (draw(7, 5),))
    known = bool(lower._torch().instructions.valid_vec_isa_list())
    full = tmp_path / "g++"
    full.write_text(FULL.format(compiler=lower.shutil.which(os.environ.get("CXX", "g++"))))
    full.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(full))
        with pytest.raises(CaptureError):
            by_inductor(graph, row)

    assert bool(lower._torch().instructions.valid_vec_isa_list()) == known


# ---- GPU ----


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines_are_right_on_gpu(name):
    examples = [
        each.detach().cuda().requires_grad_(each.requires_grad)
        for each in make_inputs(name, 1000, torch.float64)
    ]
    (graph, row), (backward, given) = graphs_of(PIPELINES[name].nested, examples)
    given = [v.cuda() if isinstance(v, torch.Tensor) else v for v in given]

    assert_same(by_inductor(graph, row), eagerly(graph, row))
    assert_same(by_inductor(backward, given, "backward"), eagerly(backward, given))


@pytest.mark.needs_cuda
def test_misaligned_arguments_are_right_on_gpu():
    (graph, _), _ = graphs_of(layered, (draw(64).cuda(), draw(64).cuda()))
    memory = torch.randn(65, dtype=torch.float64, device="cuda")
    call = inductor.BACKEND.specialise(graph, [memory[:64], memory[:64]], name="forward")
    row = [memory[1:], memory[:64]]

    assert_same(call(list(row)), eagerly(graph, row))


@pytest.mark.needs_cuda
def test_stream_of_the_caller_is_used():
    (graph, _), _ = graphs_of(layered, (draw(64).cuda(), draw(64).cuda()))
    row = [torch.randn(64, dtype=torch.float64, device="cuda") for _ in range(2)]
    call = inductor.BACKEND.specialise(graph, row, name="forward")
    call(list(row))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        row[0].fill_(2.0)
        results = call(list(row))
    stream.synchronize()

    assert_same(results, eagerly(graph, row))
