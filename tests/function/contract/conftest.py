"""The two classes that keep the shared part of the contract, and a quiet float64 world."""

import gc

import pytest
import torch

import pullback as pb
from tests.function.everywhere.compare import TORCH_TAKES_KEYWORDS


@pytest.fixture(params=[torch.autograd.Function, pb.Function], ids=["torch", "pullback"])
def Function(request):
    """The base class under test: a shared promise must hold for PyTorch's class too."""
    return request.param


@pytest.fixture
def takes_keywords(Function):
    """Skip where `apply` takes no keywords: ours does everywhere, PyTorch's from 2.13 on."""
    if Function is torch.autograd.Function and not TORCH_TAKES_KEYWORDS:
        pytest.skip("torch.autograd.Function takes keywords from PyTorch 2.13 on")


@pytest.fixture(autouse=True)
def float64():
    """Tensors are float64 unless a test says otherwise, so that gradients compare exactly."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def no_collector():
    """Without the cycle collector: what is freed was freed by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def fresh_dynamo():
    """Nothing compiled before is seen, nothing compiled here is left behind."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
