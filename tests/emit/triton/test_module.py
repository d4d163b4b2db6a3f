"""A file of kernels: pinned, made of torch and triton alone, right, and refused by name."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pullback as pb
from pullback.errors import DifferingTextError, KernelError
from tests.emit.triton.cases import cases, draw

GOLD = Path(__file__).parent / "gold"
NAMES = [*cases()]

ALONE = """
import json, runpy, sys
sys.modules["pullback"] = None  # an import of it raises
results = {}
for path in sys.argv[1:]:
    try:
        runpy.run_path(path, run_name="__main__")
        results[path] = ""
    except BaseException as error:
        results[path] = f"{type(error).__name__}: {error}"
print(json.dumps(results))
"""


def text_of(name):
    program, given = cases()[name]
    return pb.emit(program, "triton", examples=given, verify=False)


def alone(*paths):
    """What each file says at its end in a process without pullback: nothing if all is well."""
    command = [sys.executable, "-W", "ignore", "-c", ALONE, *map(str, paths)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", NAMES)
def test_file_is_pinned(name, gold):
    gold(f"{name}.py", text_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_file_imports_torch_and_triton_alone(name):
    tree = ast.parse((GOLD / f"{name}.py").read_text(encoding="utf-8"))
    imported = [
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    ]

    assert {one.split(".")[0] for one in imported} == {"functools", "sys", "torch", "triton"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


@pytest.mark.needs_triton
def test_every_pinned_file_passes_its_own_test():
    results = alone(*(GOLD / f"{name}.py" for name in NAMES))

    assert {path: said for path, said in results.items() if said} == {}


@pytest.mark.needs_triton
def test_tampered_file_fails_its_own_test(tmp_path):
    text = (GOLD / "swiglu.py").read_text(encoding="utf-8")
    wrong = text.replace("tl.sigmoid(gate)", "tl.sigmoid(-gate)")
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")

    (said,) = alone(tmp_path / "wrong.py").values()

    assert wrong != text
    assert "is not as recorded" in said


@pytest.mark.needs_triton
def test_wrong_kernels_are_not_handed_out(monkeypatch):
    from pullback.graph.values import aten
    from pullback.triton_codegen import expressions

    monkeypatch.setitem(expressions.TABLE, aten.exp.default, expressions.call_source("tl.exp2"))
    with pytest.raises(DifferingTextError, match="must compute what `softmax_like` computes"):
        pb.emit(softmax_like, "triton", examples=(draw(3, 8),))


@pytest.mark.needs_triton
def test_kernels_are_compared_at_other_sizes():
    text = pb.emit(softmax_like, "triton", examples=(draw(3, 8),))

    assert "It has not been run" not in text


def softmax_like(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)


def test_file_says_that_it_was_not_run():
    assert "It has not been run where it was written" in text_of("softcap")


# ---- what is refused ----


def product(x, w):
    return torch.relu(x @ w)


def scanned(x):
    return x.cumsum(-1)


def ordered(x):
    return x.sort(-1).values


def convolved(x, w):
    return torch.nn.functional.conv1d(x, w)


@pytest.mark.parametrize(
    ("program", "given", "op"),
    [
        (product, (draw(4, 4), draw(4, 4)), "mm"),
        (scanned, (draw(4, 4),), "cumsum"),
        (convolved, (draw(1, 2, 8), draw(2, 2, 3)), "convolution"),
    ],
)
def test_what_is_no_kernel_is_named(program, given, op):
    with pytest.raises(KernelError) as caught:
        pb.emit(program, "triton", examples=given, verify=False)

    assert op in caught.value.rule
    assert "test_module.py" in caught.value.facts["at"]


def test_refusal_is_pinned():
    with pytest.raises(KernelError) as caught:
        pb.emit(scanned, "triton", examples=(draw(4, 4),), verify=False)

    first, _, *rest = str(caught.value).splitlines()
    assert first == (
        "E307 kernel: `cumsum` must be computed element by element, or along rows, to be in a "
        "Triton kernel"
    )
    assert rest == [
        "  got:      an op that goes over its input in another way",
        '  fix:      take it out of the function, or use backend="inductor"',
    ]


def test_dropout_is_refused_with_the_way_out():
    def dropped(x):
        return torch.nn.functional.dropout(x, 0.5) * 2

    with pytest.raises(KernelError) as caught:
        pb.emit(dropped, "triton", examples=(draw(4, 4),), verify=False)

    assert caught.value.facts["got"] == "random numbers, which the kernels do not draw"
    assert "pass it: `x * mask / (1 - p)`" in caught.value.facts["fix"]


def test_sort_is_refused():
    with pytest.raises(KernelError, match="sort"):
        pb.emit(ordered, "triton", examples=(draw(4, 4),), verify=False)


def test_sums_along_two_dimensions_are_refused():
    def centred_twice(x):
        y = x - x.mean(0, keepdim=True)
        return y - y.mean(1, keepdim=True)

    with pytest.raises(KernelError, match="rows"):
        pb.emit(centred_twice, "triton", examples=(draw(4, 4),), verify=False)


def test_tensors_from_outside_are_refused():
    outside = draw(4, grad=False)

    def shifted(x):
        return x + outside

    with pytest.raises(KernelError, match="must take its tensors as arguments"):
        pb.emit(shifted, "triton", examples=(draw(4, 4),), verify=False)


def test_fixed_sizes_are_asked_for():
    def chosen(x, t):
        return (x * torch.nn.functional.one_hot(t, x.shape[-1])).sum(-1)

    given = draw(6, 37), torch.arange(6)
    text = pb.emit(chosen, "triton", examples=given, verify=False)

    assert 'require(x, "x", torch.float32, (x.shape[0], 37))' in text


def test_sizes_that_others_determine_are_asked_for_with_the_shape():
    def turned(x, inv):
        half = x.shape[-1] // 2
        return torch.cat((x[:, :half] * inv, x[:, half:] * inv), -1)

    text = pb.emit(turned, "triton", examples=(draw(3, 16), draw(8)), verify=False)

    assert 'require(inv, "inv", torch.float32, (x.shape[1] // 2,))' in text
    assert "if not (x.shape[1] % 2 == 0):" in text


def test_sizes_that_always_fit_are_not_asked_for():
    def halves(x):
        half = x.shape[-1] // 2
        return x[:, :half] * x[:, half : 2 * half]

    text = pb.emit(halves, "triton", examples=(draw(3, 16),), verify=False)

    assert "must hold" not in text
    assert "must be at least" not in text


def test_gradients_nobody_asked_for_are_not_computed():
    program, given = cases()["rope"]
    text = pb.emit(program, "triton", examples=given, verify=False)

    assert "grad_q" in text
    assert "grad_cos" not in text
