"""The printed module: pinned, made of torch alone, right in a process without pullback."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from pullback.derive.backward import derive_function
from tests.derive.functions import (
    CASES,
    EVERY,
    GAIN,
    OFFSET,
    derived,
    differences,
    pulled,
    tensors_of,
)
from tests.function.everywhere.compare import TORCH

PINNED = [
    # activations
    "relu",
    "swish",
    "gelu_tanh",
    "softplus",
    "hard_swish",
    "snake",
    "glu",
    "swiglu",
    # norms
    "layer_norm",
    "layer_norm_op",
    "rms_norm",
    "group_norm",
    "batch_norm_eval",
    "unit_rows",
    # softmax and losses
    "softmax",
    "softmax_op",
    "log_softmax",
    "cross_entropy",
    "mse",
    "huber",
    "kl_divergence",
    # attention
    "attention",
    "masked_attention",
    "self_attention",
    "rope",
    # convolution
    "conv1d",
    "conv2d",
    "max_pool",
    # scans and steps
    "cumulative_mean",
    "linear_scan",
    "leapfrog",
    "runge_kutta",
    "polynomial",
    # segments
    "segment_sum",
    "embedding",
    "message_passing",
    # complex
    "complex_multiply",
    "complex_power",
    # the rest
    "mlp",
    "bilinear",
    "gaussian_kernel",
    "moments",
    "best",
    "calibrated",
    "with_saved",
    "quantized",
]

SOME = ("swish", "leapfrog", "cross_entropy", "masked_attention", "rope", "conv2d")
SOME_THEN_PINNED = [
    pytest.param(name, marks=() if name in SOME else pytest.mark.slow) for name in PINNED
]

SURROGATES = ("quantized", "domain_adversary")
"""Their backward is not the derivative of their forward, and gradcheck says so."""

CHECK = """
import importlib.util, sys
import torch

sys.modules["pullback"] = None  # an import of it raises

def load(path):
    spec = importlib.util.spec_from_file_location("printed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

def close(got, expected):
    if got is None or expected is None:
        return got is expected
    same = got.shape == expected.shape and got.dtype == expected.dtype
    return same and torch.allclose(got, expected, rtol=1e-9, atol=1e-10)

def check(work):
    function = getattr(load(work["path"]), work["name"]).apply
    inputs = [x.clone().requires_grad_(need) for x, need in zip(work["inputs"], work["needs"])]
    outputs = function(*inputs)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    if not all(map(close, outputs, work["outputs"])):
        return "other outputs"
    live = [y for y in outputs if y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(live, wanted, work["cotangents"], allow_unused=True)
    if not all(map(close, gradients, work["gradients"])):
        return "other gradients"
    if work["true"] and not torch.autograd.gradcheck(function, inputs, raise_exception=False):
        return "gradcheck"
    return ""

for work in torch.load(sys.argv[1]):
    try:
        fault = check(work)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        print(work["name"], fault.splitlines()[0])
print("imported" if sys.modules["pullback"] else "alone")
"""


GOLD = Path(__file__).parent / "gold"


def pinned(name):
    """The pinned text, which `test_source_is_pinned` holds to be the source."""
    return (GOLD / f"{name}.py").read_text(encoding="utf-8")


def source_of(name):
    """The text of a function: the pinned one, if there is one."""
    return pinned(name) if name in PINNED else derived(name).source()


def class_in(source):
    """The name of the class in a printed module."""
    return next(node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef))


def closures_of(name):
    """The tensors from around a function, which are inputs of the printed one."""
    return [GAIN, OFFSET] if name == "calibrated" else []


def work_of(name, folder):
    """A printed module, with inputs and what it must give for them."""
    case, source = CASES[name], source_of(name)
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    arguments = case.arguments(seed=5)
    inputs = [*tensors_of(arguments), *closures_of(name)]
    outputs = tensors_of(case.program(*arguments))
    live = [y for y in outputs if y.requires_grad]
    cotangents = [torch.randn_like(y) for y in live]
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(live, wanted, cotangents, allow_unused=True)
    return {
        "name": class_in(source),
        "path": str(path),
        "inputs": [x.detach() for x in inputs],
        "needs": [x.requires_grad for x in inputs],
        "outputs": [y.detach() for y in outputs],
        "cotangents": cotangents,
        "gradients": list(gradients),
        "true": name not in SURROGATES,
    }


def checked(works, folder):
    """What a fresh process that cannot import pullback says of printed modules."""
    torch.save(works, folder / "work.pt")
    (folder / "check.py").write_text(CHECK, encoding="utf-8")
    command = [sys.executable, "-I", str(folder / "check.py"), str(folder / "work.pt")]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


# ---- the text ----


@pytest.mark.quick(20)
@pytest.mark.parametrize("name", PINNED)
def test_source_is_pinned(name, gold):
    if name == "self_attention" and TORCH < (2, 13):
        pytest.skip("PyTorch before 2.13 captures its products in another order")
    gold(f"{name}.py", derived(name).source())


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SOME_THEN_PINNED)
def test_source_is_the_same_every_time(name):
    case = CASES[name]
    again = derive_function(case.program, *case.arguments(seed=9))

    assert again.source() == derived(name).source()
    assert again.source() == again.source()


def imported(source):
    """The modules that a text imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", PINNED)
def test_source_imports_only_torch(name):
    assert imported(pinned(name)) <= {"torch", "torch.autograd.function"}


def unread(source):
    """Names that a method of the text binds and never reads."""
    found = []
    for method in ast.walk(ast.parse(source)):
        if isinstance(method, ast.FunctionDef):
            names = [n for n in ast.walk(method) if isinstance(n, ast.Name)]
            bound = [n.id for n in names if isinstance(n.ctx, ast.Store) and n.id != "_"]
            read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
            found += [f"{method.name}: {name}" for name in bound if name not in read]
    return found


@pytest.mark.parametrize("name", PINNED)
def test_source_binds_nothing_in_vain(name):
    assert unread(pinned(name)) == []


@pytest.mark.parametrize("name", PINNED)
def test_source_keeps_within_the_line(name):
    longest = max(map(len, pinned(name).splitlines()))

    assert longest <= 100


NOISE = [" ** 1)", "** 1 ", ".conj().clone()", " + 0 *", "0 + ", "alias(", "torch.ops.aten.split"]


@pytest.mark.parametrize("name", PINNED)
def test_source_has_no_leftover_noise(name):
    source = pinned(name)

    assert [noise for noise in NOISE if noise in source] == []


def bound_in(source, method):
    """The text of each value that a method binds, by name."""
    tree = ast.parse(source)
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == method)
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in found.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


@pytest.mark.parametrize("name", PINNED)
def test_value_has_one_name_in_both_methods(name):
    source = pinned(name)
    forward, backward = bound_in(source, "forward"), bound_in(source, "backward")
    names = {text: name for name, text in forward.items()}
    renamed = {
        f"{names[text]} is {name}"
        for name, text in backward.items()
        if text in names and names[text] != name
    }

    assert renamed == set()


def test_gradients_are_named_by_their_variable():
    backward = bound_in(pinned("polynomial"), "backward")

    assert backward["grad_total_3"] == "grad_total_4 * x"
    assert backward["grad_total_2"] == "grad_total_3 * x"
    assert backward["grad_c_3"] == "grad_total_4.sum()"


def test_gradient_of_reassigned_variable_keeps_its_number():
    backward = bound_in(pinned("masked_attention"), "backward")

    assert "masked_fill" in backward["grad_scores"]
    assert "probs * (grad_probs" in backward["grad_scores_1"]


def test_gradient_of_output_is_told_from_its_cotangent():
    backward = bound_in(pinned("leapfrog"), "backward")

    assert backward["grad_q_3_total"].startswith("grad_q_3 - ")
    assert backward["grad_p_2"] == "grad_p_3 + 0.1 * grad_q_2"


def test_numbers_of_made_up_names_have_no_gaps():
    names = [*bound_in(pinned("runge_kutta"), "backward")]

    assert [name for name in names if name.startswith("diff")] == [
        "diff",
        "diff_1",
        "diff_2",
        "diff_3",
    ]


def test_backward_reads_sizes_from_tensors():
    assert "ctx.size" not in pinned("cumulative_mean")
    assert "grad_out / prediction.numel()" in pinned("mse")
    assert "ctx.size = x.shape[1]" in pinned("best")


def test_source_tells_plain_arguments():
    assert "Written for slope=0.1." in derived("leaky_relu").source()
    assert "Written for count=4." in pinned("segment_sum")


DOCS = Path(__file__).parents[2] / "docs" / "derive.md"


@pytest.mark.parametrize("name", ["leapfrog", "attention"])
def test_docs_show_the_source_as_it_is(name):
    page = DOCS.read_text(encoding="utf-8")
    _, _, rest = page.partition(f"<!-- source: {name} -->\n```text\n")
    shown, _, _ = rest.partition("\n```")
    methods = pinned(name)[pinned(name).index("    @staticmethod") :]

    assert shown == textwrap.dedent(methods).rstrip()


# ---- the module ----


def test_printed_modules_run_without_pullback(tmp_path):
    assert checked([work_of(name, tmp_path) for name in PINNED], tmp_path) == ["alone"]


@pytest.mark.slow
def test_every_printed_module_runs_without_pullback(tmp_path):
    assert checked([work_of(name, tmp_path) for name in EVERY], tmp_path) == ["alone"]


def test_wrong_modules_are_caught_elsewhere(tmp_path):
    """One computes something else, and one needs pullback."""
    works = [work_of("swish", tmp_path), work_of("mse", tmp_path)]
    wrong = pinned("swish").replace("(1 - gate)", "(1 + gate)")
    (tmp_path / "swish.py").write_text(wrong, encoding="utf-8")
    (tmp_path / "mse.py").write_text(f"import pullback\n{pinned('mse')}", encoding="utf-8")
    (first, second, last) = checked(works, tmp_path)

    assert wrong != pinned("swish")
    assert first == "Swish other gradients"
    assert second.startswith("Mse ModuleNotFoundError")
    assert last == "alone"


@pytest.mark.parametrize("save", ["auto", "inputs", "everything"])
def test_source_follows_the_policy(save):
    source = derived("mlp", save).source()
    space = {}
    exec(source, space)
    arguments = CASES["mlp"].arguments()
    got = pulled(space["Mlp"].apply, arguments)

    assert f"(save={save!r})" in source
    assert ("hidden  computed in forward" in source) == (save != "inputs")
    assert differences(got, pulled(CASES["mlp"].program, arguments)) == []


def test_saved_intermediate_allows_second_derivative():
    space = {}
    exec(derived("mlp").source(), space)

    assert torch.autograd.gradgradcheck(space["Mlp"].apply, CASES["mlp"].arguments())


def test_saved_inputs_allow_second_derivative():
    space = {}
    exec(derived("mlp", "inputs").source(), space)

    assert torch.autograd.gradgradcheck(space["Mlp"].apply, CASES["mlp"].arguments())


# ---- which outputs require grad ----


def two_apart(x, y):
    return x * 2, y * 3, (x.detach() * y).sum()


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_output_of_inputs_without_grad_requires_none(needs):
    space: dict = {}
    exec(derive_function(two_apart, torch.ones(3), torch.ones(3)).source(), space)
    row = [torch.ones(3).requires_grad_(need) for need in needs]

    got = space["TwoApart"].apply(*row)

    assert [y.requires_grad for y in got] == [y.requires_grad for y in two_apart(*row)]
    assert [y.requires_grad for y in got] == [needs[0], needs[1], needs[1]]
