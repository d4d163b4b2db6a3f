"""An emitted module: pinned, made of torch alone, right, and failing when it is tampered with."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

import pullback as pb
from pullback.derive import recipe
from pullback.emit.python.module import snake
from pullback.errors import CaptureError, DifferingTextError
from pullback.graph.patterns import call, tensors
from pullback.graph.rewrite import RewriteRule
from pullback.graph.values import aten
from tests.emit.python import cases as python_cases
from tests.emit.python.cases import Round, Wrong, cases, centred, row, square_sin, swish

GOLD = Path(__file__).parent / "gold" / "python"
NAMES = [*cases()]
REFUSED = ("noisy",)
"""Their second derivatives are refused: what was drawn cannot be drawn again."""

ALONE = """
import json, runpy, sys
sys.modules["pullback"] = None  # an import of it raises
results = {}
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
        results[path] = ""
    except SystemExit as end:
        results[path] = str(end.code)
print(json.dumps(results))
"""


def text_of(name):
    case = cases()[name]
    return pb.emit(case.thing, examples=case.examples)


def pinned(name):
    """The pinned text, which `test_module_is_pinned` holds to be what is emitted."""
    return (GOLD / f"{name}.py").read_text(encoding="utf-8")


def loaded(text):
    space = {"__name__": "emitted"}
    exec(compile(text, "<emitted>", "exec"), space)
    return space


def alone(*paths):
    """What each module says at its end in a process without pullback: nothing if all is well."""
    command = [sys.executable, "-I", "-c", ALONE, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


# ---- the text ----


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", NAMES)
def test_module_is_pinned(gold, name):
    gold(f"python/{name}.py", text_of(name))


def test_text_is_the_same_twice():
    assert text_of("nested") == text_of("nested")


@pytest.mark.parametrize("name", NAMES)
def test_module_imports_only_torch(name):
    tree = ast.parse(pinned(name))
    imported = [n.names[0].name for n in ast.walk(tree) if isinstance(n, ast.Import)]
    imported += [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    foreign = {each.split(".")[0] for each in imported} - {"torch"}

    assert foreign <= ({"math"} if name == "leaning" else set())


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_explained(name):
    assert "Saved for backward:" in pinned(name)


def test_own_class_stays_as_written():
    text = pinned("leaning")

    assert "    return quarter(x) * ROOT + NODES[0] * x * x\n" in text
    assert "# The root of a half, as a table would have it.\nROOT = math.sqrt(0.5)\n" in text
    assert "class Leaning(torch.autograd.Function):" in text


def test_class_that_needs_us_is_printed():
    text = pinned("cube")

    assert "grad_x = grad_out * (2 * x * x + square)" in text
    assert "            square = x * x\n" in text  # again, where it needs a history


def test_hybrid_has_every_node():
    tree = ast.parse(pinned("steps"))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]

    assert classes == ["Scale", "DivVarMeanSquareAnd2", "Cube"]


def test_name_of_file_is_snake():
    assert [snake(name) for name in ("MyReLU", "Same", "ROIAlign")] == [
        "my_relu",
        "same_",
        "roi_align",
    ]


# ---- it runs alone ----


def test_modules_pass_their_own_tests():
    paths = [GOLD / f"{name}.py" for name in NAMES]

    assert alone(*paths) == {str(path): "" for path in paths}


def test_tampered_modules_fail_their_tests(tmp_path):
    for name in NAMES:
        old, new = cases()[name].tampered
        text = pinned(name)
        assert old in text
        (tmp_path / f"{name}.py").write_text(text.replace(old, new), encoding="utf-8")

    said = alone(*(tmp_path / f"{name}.py" for name in NAMES))

    passed = [path for path, text in said.items() if "FAILED its self-test" not in text]
    assert passed == []
    assert all("gradient" in text or "Jacobian" in text for text in said.values())


def test_failing_module_exits_with_one(tmp_path):
    path = tmp_path / "square.py"
    path.write_text(pinned("square").replace("2 * x * g", "3 * x * g"), encoding="utf-8")
    run = subprocess.run([sys.executable, "-I", path], capture_output=True, text=True, check=False)

    assert run.returncode == 1
    assert run.stderr.startswith(
        "Square FAILED its self-test\nthe gradient of `x` is not as recorded: "
    )


# ---- it does what the original does ----


def results(call, tensors):
    """Outputs, gradients and second derivatives; "refused" in the place of what is."""
    inputs = [x.double().requires_grad_() if x.is_floating_point() else x for x in tensors]
    wanted = [x for x in inputs if x.requires_grad]
    torch.manual_seed(3)
    outputs = call(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    found = [y.detach().clone() for y in outputs]
    for order in range(2):
        live = [y for y in outputs if y.requires_grad]
        if not live:  # `once_differentiable` gives gradients without history
            return [*found, "refused"]
        torch.manual_seed(order)
        cotangents = [torch.randn_like(y) for y in live]
        try:
            outputs = torch.autograd.grad(
                live, wanted, cotangents, create_graph=True, materialize_grads=True
            )
        except RuntimeError:
            return [*found, "refused"]
        found += [y.detach().clone() for y in outputs]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_module_agrees_with_the_original(name):
    case, space = cases()[name], loaded(pinned(name))
    classes = [v for v in space.values() if isinstance(v, type)]
    call = space.get("tested") or space.get(snake(type_name(case.thing))) or classes[-1].apply

    expected, got = results(case.original, case.tensors), results(call, case.tensors)

    is_refused = isinstance(got[-1], str) and not isinstance(expected[-1], str)
    assert is_refused == (name in REFUSED)
    for a, b in zip(got, expected, strict=not is_refused):
        if not isinstance(a, str):
            torch.testing.assert_close(a, b)


def type_name(thing):
    return getattr(thing, "__name__", "") if getattr(thing, "composed", "") else ""


# ---- what is tested, and with which inputs ----


def test_wrong_backward_fails_its_test():
    space = loaded(pb.emit(Wrong, examples=(row(),)))

    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0"):
        space["self_test"]()


def test_declared_surrogate_is_not_compared():
    text = pb.emit(Round, examples=(row(),))

    assert "because they are declared to be surrogates: the gradients of `x`." in text.replace(
        "\n", " "
    )
    loaded(text)["self_test"]()


def test_undeclared_surrogate_fails_its_test(monkeypatch):
    monkeypatch.delattr(Round, "declares")
    space = loaded(pb.emit(Round, examples=(row(),)))

    with pytest.raises((AssertionError, RuntimeError)):
        space["self_test"]()


def test_gradient_cut_off_is_not_compared():
    text = pb.emit(centred, examples=(row(),))

    assert "by `no_grad` or `detach`: the gradients of `x`." in text.replace("\n", " ")
    loaded(text)["self_test"]()


def test_inputs_stay_in_the_range():
    x, index = loaded(pinned("logs"))["inputs"]()

    assert x.min() >= 0.3
    assert x.max() <= 2.0
    assert index.tolist() == [0, 2, 4]


def gaps(x):
    """The logarithms of distances, for numbers in order."""
    return x.diff().log()


def test_values_of_examples_serve_as_inputs():
    text = pb.emit(gaps, examples=(torch.tensor([0.5, 1.0, 2.5, 4.0]),))

    assert "torch.tensor([0.5, 1.0, 2.5, 4.0], dtype=torch.float64)" in text
    loaded(text)["self_test"]()


def turned(x):
    """Sines, by numbers in single precision that stand in the text."""
    return x.sin() @ torch.tensor([[1.0, 2.0], [3.0, 5.0]])


def test_single_precision_is_tested_as_such():
    text = pb.emit(turned, examples=(row(count=2),))

    assert ".to(dtype=torch.float32)" in text
    with pytest.warns(UserWarning, match="not a double precision"):
        loaded(text)["self_test"]()


def test_cast_that_single_precision_hides_is_tested_in_it():
    """`x.float()` is an op for the double precision of a self-test alone."""

    def scaled(x):
        return (3 * x.float()).exp().type_as(x)

    text = pb.emit(scaled, examples=(torch.linspace(-2, 1.5, 60, dtype=torch.float32),))

    loaded(text)["self_test"]()


def test_many_elements_are_tested_fast():
    assert "fast_mode=True" in pb.emit(swish, examples=(row(count=60),))
    assert "fast_mode=True" not in pinned("swish")


def times_table(x):
    return x * python_cases.NODES


def test_tensor_from_around_is_an_argument():
    text = pb.emit(times_table, examples=(row(count=2),))

    assert "def forward(ctx, x, closure_1):" in text
    assert "closure_1 = torch.tensor([0.25, 0.75], dtype=torch.float64)\n" in text
    loaded(text)["self_test"]()


MANY_NODES = torch.linspace(0.5, 1.5, 80)


def times_many(x):
    return (x * MANY_NODES).sin()


def test_large_tensor_from_around_is_drawn():
    """It is no part of the file; what is expected comes from the graph of the program."""
    text = pb.emit(times_many, examples=(torch.linspace(-1, 1, 80),))

    assert "MANY_NODES = spread(1, 0.5, 1.5, 80)" in text
    loaded(text)["self_test"]()


def complex_square(z):
    return z * z.conj() + z


def test_complex_inputs_are_drawn():
    text = pb.emit(complex_square, examples=(torch.randn(3, dtype=torch.complex64),))

    assert "torch.view_as_complex(spread(" in text
    loaded(text)["self_test"]()


def test_random_state_stays_as_it_was():
    before = torch.get_rng_state()
    text_of("noisy")

    assert torch.equal(torch.get_rng_state(), before)


def test_no_grad_around_changes_nothing():
    with torch.no_grad():
        assert text_of("swish") == pinned("swish")


def nested_result(x):
    return {"sine": x.sin(), "rest": [x.cos(), 2 * x]}


def test_nested_result_is_a_flat_tuple():
    text = pb.emit(nested_result, examples=(row(),))
    space, x = loaded(text), row()

    assert "Returns a flat tuple: ['sine'], ['rest'][0], ['rest'][1]." in text
    space["self_test"]()
    for got, expected in zip(
        space["NestedResult"].apply(x), (x.sin(), x.cos(), 2 * x), strict=True
    ):
        torch.testing.assert_close(got, expected)


# ---- what cannot be emitted ----


def test_in_place_class_must_stand_alone():
    amount = 2

    class Adding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(amount)
            ctx.mark_dirty(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(CaptureError, match="`Adding` must stand alone to be emitted"):
        pb.emit(Adding, examples=(row(),))


def test_change_in_place_makes_one_node():
    def program(x, y):
        z = x.sin()
        z.mul_(y)
        return square_sin(z, y)

    text = pb.emit(pb.nest(program), examples=(row(), row()))

    assert "class Program(torch.autograd.Function):" in text
    loaded(text)["self_test"]()


# ---- it is compared with the program ----


def two_tables(x):
    """Two constants, one of which nobody needs."""
    a, b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    _ = x * b
    return x.sin() * a


def test_constants_are_those_of_the_program():
    x = torch.tensor([0.3, -0.2, 0.9])
    text = pb.emit(two_tables, examples=(x,))
    space = loaded(text)
    wrong = text.replace("[1.0, 2.0, 3.0]", "[1.0, 2.0, 3.5]")

    space["self_test"]()
    torch.testing.assert_close(space["TwoTables"].apply(x), two_tables(x))
    with pytest.raises(AssertionError, match="output 0 is not as recorded"):
        loaded(wrong)["self_test"]()


def two_nodes(x):
    y = (x * torch.tensor([1.0, 2.0])).sin()
    z = y.exp()
    return (z * torch.tensor([3.0, 4.0])).cos()


def test_constants_of_several_nodes_stay_apart():
    x = torch.tensor([0.3, -0.2])
    hybrid = pb.hybrid(two_nodes, x.requires_grad_(), groups=[(0, 1), (3, 4)])
    space = loaded(pb.emit(hybrid))

    space["self_test"]()
    torch.testing.assert_close(space["two_nodes"](x), two_nodes(x))


def with_dead_end(x, y):
    a = x.sin()
    b = y.cos()
    c = b * 2  # noqa: F841
    return a * 2


@pytest.mark.parametrize("groups", [[], [(1, 2)], [(0, 3)], [(0, 1, 2, 3)]], ids=str)
def test_units_that_nobody_uses_are_left_out(groups):
    x, y = torch.tensor([0.3, -0.2]).requires_grad_(), torch.ones(2).requires_grad_()
    hybrid = pb.hybrid(with_dead_end, x, y, groups=groups, backend="eager")
    space = loaded(pb.emit(hybrid, examples=(x, y)))

    space["self_test"]()
    torch.testing.assert_close(space["with_dead_end"](x, y), with_dead_end(x, y))


def named(x):
    return x.sin().max(0)


def test_named_results_are_a_plain_tuple():
    text = pb.emit(named, examples=(torch.linspace(-1, 1, 12).reshape(4, 3),))

    assert "Returns a plain tuple: values, indices." in text
    loaded(text)["self_test"]()


def with_detached(x):
    y = x.sin()
    return y, y.detach()


def test_detached_output_takes_no_gradient_away():
    space = loaded(pb.emit(with_detached, examples=(row(),)))
    first, second = space["WithDetached"].apply(row().requires_grad_())

    space["self_test"]()
    assert (first.requires_grad, second.requires_grad) == (True, False)


def test_many_numbers_are_recorded_as_sums():
    text = pb.emit(swish, examples=(row(count=60),))
    (entry,) = (line for line in text.splitlines() if "the gradient of `x`" in line)
    wrong = text.replace("grad_out * gate + ", "grad_out * gate + 1e-4 * ")

    assert len(text.splitlines()) < 120
    assert entry.endswith("[")
    with pytest.raises(AssertionError, match="the gradient of `x` is not as recorded"):
        loaded(wrong)["self_test"]()


(a,) = tensors("a")
SPOILED = RewriteRule.of(
    "spoiled", call(aten.cos.default, a), lambda a: a * a, why="wrong, on purpose"
)


def test_wrong_readable_rule_is_left_out(monkeypatch):
    monkeypatch.setattr(recipe, "READABLE", (SPOILED, *recipe.READABLE))
    space = loaded(pb.emit(square_sin, examples=(row(), row())))

    space["self_test"]()


def test_wrong_rule_in_every_text_is_refused(monkeypatch):
    derived = pb.derive(square_sin, row(), row())
    monkeypatch.setattr(recipe, "READABLE", (SPOILED, *recipe.READABLE))
    monkeypatch.setattr(recipe, "EXACT", (SPOILED, *recipe.EXACT))

    with pytest.raises(DifferingTextError, match="the gradient of `y` by all outputs"):
        pb.emit(derived)


def rounded_product(x):
    return x.to(torch.bfloat16).to(x.dtype) * x


def largest_and_places(x):
    (values, places), (ordered, order) = x.max(0), x.sort()
    return values, places, ordered, order


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (rounded_product, "Not compared with differences"),  # they are not autograd's gradients
        (largest_and_places, "gradients against differences"),  # gradcheck mixed outputs up
    ],
)
def test_module_of_pytorch_ops_passes_its_own_test(program, said):
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    text = pb.emit(program, examples=(x.requires_grad_(),))
    space = loaded(text)

    space["self_test"]()

    assert said in text


def test_recorded_gradients_fail_a_wrong_backward_without_differences():
    x = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    text = pb.emit(rounded_product, examples=(x.requires_grad_(),))
    spoilt = text.replace("return grad_x", "return 2 * grad_x")
    assert spoilt != text

    with pytest.raises(AssertionError, match="gradient of `x`"):
        loaded(spoilt)["self_test"]()
