"""A repro is a program that runs without this library and fails, and passes once mended."""

import json
import sys
import textwrap

import pytest
import torch

from pullback.check.runner import check
from tests.check.subjects import normal

HEAD = """
import torch


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return {forward}

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        {backward}
"""
RIGHT = "return g * w.conj(), (g * x.conj()).sum_to_size(w.shape)"


def op(backward, forward="x * w"):
    return HEAD.format(forward=forward, backward=backward)


X, W = normal(3, 4), normal(3, 4, seed=1)
SINGLE = tuple(t.detach().float().requires_grad_() for t in (X, W))

# What is wrong, the inputs to check with, the rules to try, and a line that the repro must have.
PLANTED = {
    "factor": (op("return 2 * g * w, g * x"), (X, W), "gradient", "slope ="),
    "cut": (op("return g * w, None"), (X, W), "gradient", "w.grad"),
    "swapped": (op("return g * x, g * w"), (X, W), "gradient", "slope ="),
    "large": (
        op("return 2 * g * w, g * x"),
        (normal(9, 17), normal(9, 17, seed=1)),
        "gradient",
        "manual_seed",
    ),
    "single precision only": (
        op("return 2 * g * w, g * x", "(x * w).to(torch.float32)"),
        SINGLE,
        "gradient",
        "assert",
    ),
    "complex": (
        op("return g * w, (g * x.conj()).sum_to_size(w.shape)"),
        tuple(torch.view_as_complex(normal(3, 2, seed=seed).detach()) for seed in (1, 2)),
        "gradient",
        "torch.autograd.grad(out, [x, w], g",
    ),
    "same tensor twice": (
        op(f"if x.data_ptr() == w.data_ptr(): raise RuntimeError('no')\n        {RIGHT}"),
        (X, W),
        "same-tensor-twice",
        "Op.apply(x, x)",
    ),
    "raises": (op("raise RuntimeError('no')"), (X, W), "contract", "# RuntimeError: no"),
    "subset": (
        op("return (g * w if ctx.needs_input_grad[1] else g), g * x"),
        (X, W),
        "wrong-for-subset",
        "x =",
    ),
    "rank": (
        op("return g * (w if x.dim() < 3 else w + 1), (g * x).sum_to_size(w.shape)"),
        (X, W),
        "shape",
        "x =",
    ),
    "batch": (
        op("return g * w * (1 if x.shape[0] < 5 else 2), (g * x).sum_to_size(w.shape)"),
        (X, W),
        "shape",
        "x =",
    ),
    "zero": (
        op("return torch.where(x == 0, 0 * g, g * w), (g * x).sum_to_size(w.shape)"),
        (X, W),
        "domain",
        "x =",
    ),
    "cotangent layout": (
        op("return torch.as_strided(g, x.shape, torch.empty_like(x).stride(), 0) * w, g * x"),
        (X, W),
        "cotangent-layout",
        "as_strided",
    ),
    "input layout": (
        op("return g * w, g * torch.as_strided(x, x.shape, (4, 1), 0)"),
        (X, W),
        "input-layout",
        "torch.contiguous_format",
    ),
    "bfloat16": (
        op("return g * (w if g.dtype != torch.bfloat16 else x), g * x"),
        (X, W),
        "wrong-dtype-branch",
        "gradients(x.double()",
    ),
    "clamped": (op("return (g * w).clamp(-2, 2), g * x"), (X, W), "nonlinear-backward", "2 * of_g"),
    "small cotangents": (
        op("return torch.where(g.abs() < 1e-3, 0 * g, g) * w, g * x"),
        (X, W),
        "scaled-cotangent",
        "pull(1e-08 * g)",
    ),
    "constant": (op("return g * w + 1, g * x"), (X, W), "zero-cotangent", "pull(0 * g)"),
    "detached": (
        op("return g * w.detach(), g * x"),
        (X, W),
        "detached-double-backward",
        "create_graph=True",
    ),
    "cotangent written": (
        op("of_w = g * x; return g.mul_(w), of_w"),
        (X, W),
        "mutated-cotangent",
        "torch.equal(g, before)",
    ),
    "input written": (
        op(RIGHT, "(x * w, x.data.mul_(2))[0]"),
        (X, W),
        "mutated-input",
        "torch.equal(given, before)",
    ),
    "noise": (
        op("return g * w + 1e-2 * torch.rand_like(g), g * x"),
        (X, W),
        "random-in-backward",
        "torch.manual_seed(2)",
    ),
    "own gradient field": (
        op("x.grad = g * w; return g * w, g * x"),
        (X, W),
        "touched-grad",
        "x.grad = None",
    ),
    "state of the class": (
        op("x = Op.last; return g * w, g * x", "(x * w, setattr(Op, 'last', x))[0]"),
        (X, W),
        "two-live-calls",
        "other = Op.apply(other_x, other_w)",
    ),
    "on ctx": (
        op("return g * w, g * ctx.x", "(x * w, setattr(ctx, 'x', x))[0]"),
        (X, W),
        "tensor-on-ctx",
        'kept = getattr(node, "x", None)',
    ),
    "unnoticed change": (
        op("return g * ctx.out / x, g * x", "(out := x * w, setattr(ctx, 'out', out))[0]"),
        (X, W),
        "stale-after-edit",
        "out.mul_(0.5).add_(0.25)",
    ),
    "cleared": (
        op("w = ctx.kept.pop(); return g * w, g * x", "(x * w, setattr(ctx, 'kept', [w]))[0]"),
        (X, W),
        "backward-twice",
        "retain_graph=True",
    ),
    "cycle": (
        op("return g * w, g * x", "(out := x * w, setattr(ctx, 'out', out))[0]"),
        (X, W),
        "leaked-graph",
        "gc.disable()",
    ),
    "fresh memory": (
        op("of_x = torch.empty_like(g); of_x[1:] = (g * w)[1:]; return of_x, g * x"),
        (X, W),
        "uninitialised-memory",
        "torch.use_deterministic_algorithms",
    ),
    "without grad": (
        op(RIGHT, "x * w if x.requires_grad else 2 * x * w"),
        (X, W),
        "wrong-under-no-grad",
        "x = x.detach()",
    ),
    "borrowed memory": (
        op("return x.copy_(g * w) if 0 else x, g * x"),
        (X, W),
        "gradient-aliases-input",
        "untyped_storage().data_ptr()",
    ),
    "Python's random numbers": (
        op(RIGHT, "x * w * 2.0 ** __import__('random').uniform(0, 100)"),
        (X, W),
        "checkpoint-differs",
        "set_checkpoint_early_stop(False)",
    ),
    "forward refuses a layout": (
        op(RIGHT, "(x.view(-1) * w.reshape(-1)).reshape(x.shape)"),
        (X, W),
        "input-layout",
        "# RuntimeError: view size",
    ),
    "compiled": (
        op(RIGHT, "2 * x * w if torch.compiler.is_compiling() else x * w"),
        (X, W),
        "compiled-differs",
        "torch.compile(call",
    ),
}


# What is raised where it is no assertion.
RAISED = {
    "raises": ("RuntimeError: no",),
    "same tensor twice": ("RuntimeError: no",),
    "cleared": ("IndexError: pop from empty list",),
    "forward refuses a layout": ("RuntimeError: view size",),
}


# In a fresh process: each repro as it is, then with the module mended; what became of both.
DRIVER = """
import json, os, runpy, sys
from pathlib import Path

def outcome():
    try:
        runpy.run_path("repro.py")
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        sys.modules.pop("ops_of_repro", None)
        sys.path_importer_cache.clear()
    return "passed"

found = {}
for folder in sorted(Path.cwd().iterdir()):
    if folder.is_dir():
        os.chdir(folder)
        wrong = outcome()
        Path("ops_of_repro.py").write_text(Path("../mended.py").read_text())
        del sys.path[0]
        found[folder.name] = [wrong, outcome()]
        del sys.path[0]
found["pullback"] = "pullback" in sys.modules
print(json.dumps(found))
"""


def repros(target, inputs, select):
    report = check(target, inputs, select=[select], isolate=False)
    assert report.findings, report
    return [finding.repro for finding in report.findings]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder with a repro of each planted fault, and their texts."""
    home = tmp_path_factory.mktemp("repros")
    texts = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(sys, "dont_write_bytecode", True)
        for fault, (text, inputs, select, _) in PLANTED.items():
            folder = home / fault
            folder.mkdir()
            patch.chdir(folder)
            (folder / "ops_of_repro.py").write_text(text, encoding="utf-8")
            texts[fault] = repros("ops_of_repro.py:Op", inputs, select)[0]
            (folder / "repro.py").write_text(texts[fault], encoding="utf-8")
            sys.modules.pop("ops_of_repro")
    (home / "mended.py").write_text(op(RIGHT), encoding="utf-8")
    return home, texts


@pytest.fixture(scope="module")
def outcomes(written, run_python):
    """What became of each repro in a fresh process."""
    home, _ = written
    (home / "driver.py").write_text(DRIVER, encoding="utf-8")
    run = run_python("-B", "driver.py", folder=home)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("fault", PLANTED)
def test_repro_shows_what_it_must(fault, written):
    assert PLANTED[fault][3] in written[1][fault]


@pytest.mark.parametrize("fault", PLANTED)
def test_repro_fails_in_fresh_process(fault, outcomes):
    assert outcomes[fault][0].startswith(("AssertionError: ", *RAISED.get(fault, ())))


@pytest.mark.parametrize("fault", PLANTED)
def test_repro_passes_once_it_is_mended(fault, outcomes):
    assert outcomes[fault][1] == "passed"


def test_repros_do_without_this_library(outcomes, written):
    assert outcomes["pullback"] is False
    assert not any("pullback" in text for text in written[1].values())


def test_local_class_is_named_in_words():
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return g

    (repro,) = repros(Local, (normal(2),), "gradient")

    assert "`Local` (" in repro
    assert "is no name of a module: put it here" in repro


def test_value_without_spelling_gives_no_repro():
    class Keyed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, key):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return g, None

    assert repros(Keyed, (normal(2), object()), "gradient") == [""]


def test_random_forward_is_seeded():
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            mask = torch.rand_like(x)
            ctx.save_for_backward(mask)
            return x * mask

        @staticmethod
        def backward(ctx, g):
            (mask,) = ctx.saved_tensors
            return 3 * g * mask

    (repro,) = repros(Noisy, (normal(3),), "gradient")

    assert "torch.manual_seed(0)" in textwrap.dedent(repro)
