"""Backend "triton": its absence, what it prepares, and its kernels in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import pullback as pb
from pullback.derive.recipes import Recipes
from pullback.errors import BackendError, CaptureError
from pullback.run.backends import triton as backend
from tests.triton_codegen.graphs import draw


def recipe_of(program, *given):
    return Recipes(program, "auto").general(given)


def test_absence_is_one_line(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)

    assert backend.BACKEND.absence() == "Triton is not installed"


def test_gpu_is_refused_with_what_to_use_there(monkeypatch):
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    with pytest.raises(BackendError) as caught:
        pb.combine(torch.sin, draw(4, 4), backend="triton")

    assert "interpreter only" in str(caught.value)
    assert "not yet measured on a GPU" in str(caught.value)
    assert 'pb.emit(f, "triton")' in str(caught.value)


def test_tensors_of_another_device_are_refused():
    recipe = recipe_of(torch.sin, draw(4, 4))

    with pytest.raises(CaptureError, match="on the CPU"):
        backend.BACKEND.specialise(
            recipe.parts.forward, [torch.empty(4, 4, device="meta")], name="forward"
        )


def test_prepared_recipe_saves_one_number_per_row_and_is_right():
    x, t = draw(4, 9), torch.arange(4)
    recipe = recipe_of(F.cross_entropy, x, t)

    prepared = backend.BACKEND.prepared(recipe)
    outputs, saved, numbers = prepared.run([x.detach(), t])
    (got, _) = prepared.pull(saved, numbers, [torch.tensor(1.0)])

    assert prepared is backend.BACKEND.prepared(recipe)
    assert max(y.numel() for y in saved if y.data_ptr() != x.data_ptr()) == 4
    (expected,) = torch.autograd.grad(F.cross_entropy(x, t), x)
    torch.testing.assert_close(outputs[0], F.cross_entropy(x, t).detach())
    torch.testing.assert_close(got, expected)


def test_what_is_no_kernel_is_refused_with_its_line():
    recipe = recipe_of(lambda x, w: torch.relu(x @ w), draw(4, 4), draw(4, 4))

    with pytest.raises(CaptureError, match="mm"):
        backend.BACKEND.prepared(recipe)


def test_empty_arguments_are_refused():
    recipe = recipe_of(torch.sin, draw(4, 4))

    with pytest.raises(CaptureError, match="elements"):
        backend.BACKEND.specialise(recipe.parts.forward, [torch.empty(0, 4)], name="forward")


INTERPRETED = """
import torch, torch.nn.functional as F
import pullback as pb

def norm(x, w):
    return F.layer_norm(x, (x.shape[-1],), w) + torch.relu(x)

def loss(x, t):
    return F.cross_entropy(x, t)

def product(x, w):
    return torch.relu(x @ w)

torch.manual_seed(0)
rows = [
    (norm, (torch.randn(5, 12, requires_grad=True), torch.randn(12, requires_grad=True))),
    (norm, (torch.randn(12, 5).t().requires_grad_(), torch.randn(12, requires_grad=True))),
    (loss, (torch.randn(5, 12, requires_grad=True), torch.tensor([1, 2, -100, 11, 0]))),
]
for program, given in rows:
    node = pb.combine(program, *given, backend="triton")
    wanted = [x for x in given if x.requires_grad]
    for _ in range(2):
        y, z = node(*given), program(*given)
        g = torch.randn_like(z)
        torch.testing.assert_close(y, z)
        pairs = zip(torch.autograd.grad(y, wanted, g), torch.autograd.grad(z, wanted, g))
        for a, b in pairs:
            torch.testing.assert_close(a, b)
    assert 'calls run by backend "triton"' in str(node.explain()), node.explain()
given = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
node = pb.combine(product, *given, backend="triton")
torch.testing.assert_close(node(*given), product(*given))
assert "mm" in str(node.explain()), node.explain()
print("right")
"""


@pytest.mark.needs_triton
def test_nodes_are_right_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.stdout.strip().endswith("right"), done.stderr[-2000:]
