"""A native backward writes over saved tensors that nobody else sees, and over no others."""

from functools import partial
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import pullback as pb
from pullback.plan.measure import peak_bytes
from pullback.run.backends import native

pytestmark = pytest.mark.needs_compiler


def program(x, w, b):
    """The gradient of `b` is the saved product times the cotangent: it fits into its memory."""
    return b * torch.mm(x, w)


def leaves():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(32, 32, generator=draw).requires_grad_() for _ in range(3)]


WAYS = {"without Python": 32 * 32 * 4, "by Python": 0}
"""How a graph is run, and the bytes that its backward need not allocate."""


@pytest.fixture(params=WAYS)
def way(request):
    return request.param


@pytest.fixture
def combined(way, monkeypatch):
    if way == "by Python":
        monkeypatch.setattr(native, "reading_of", lambda call, row: None)
    return pb.combine(program, *leaves(), backend="native")


def loss(out):
    return out.square().sum()


def expected(given):
    return torch.autograd.grad(loss(program(*given)), given)


class Kept:
    """Hooks that keep what is saved, and give back what `again` makes of it."""

    def __init__(self, again):
        self.again, self.kept = again, []

    def pack(self, tensor):
        self.kept.append(tensor)
        return len(self.kept) - 1

    def unpack(self, number):
        return self.again(self.kept[number])

    def __enter__(self):
        self.hooks = saved_tensors_hooks(self.pack, self.unpack)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)


def test_gradient_takes_memory_of_saved_tensor(combined, way):
    given = leaves()
    torch.autograd.grad(loss(combined.apply(*given)), given)  # the first backward compiles
    out = loss(combined.apply(*given))

    def peak(*, retain):
        pull = partial(torch.autograd.grad, out, given, retain_graph=retain)
        return peak_bytes(pull, out.device)

    assert peak(retain=True) - peak(retain=False) == WAYS[way]


def test_kept_graph_is_pulled_twice(combined):
    given = leaves()
    out = loss(combined.apply(*given))
    grads = [torch.autograd.grad(out, given, retain_graph=again) for again in (True, True, False)]

    for one in grads:
        torch.testing.assert_close(one, expected(given))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, given)


def in_numpy(tensor):
    return torch.from_numpy(tensor.detach().numpy())


def shared(tensor):
    return torch.frombuffer(memoryview(tensor.detach().numpy()), dtype=tensor.dtype).view(32, 32)


@pytest.mark.parametrize("again", [lambda tensor: tensor, torch.Tensor.detach, in_numpy, shared])
def test_what_hooks_keep_is_left_alone(combined, again):
    given = leaves()
    with Kept(again) as hooks:
        out = combined.apply(*given)
    before = [tensor.clone() for tensor in hooks.kept]
    grads = torch.autograd.grad(loss(out), given)

    assert all(map(torch.equal, hooks.kept, before))
    torch.testing.assert_close(grads, expected(given))


def test_lazy_copy_is_left_alone(combined):
    given = leaves()
    with Kept(torch._lazy_clone) as hooks:
        out = combined.apply(*given)
    before = [tensor.clone() for tensor in hooks.kept]
    torch.autograd.grad(loss(out), given)

    assert all(map(torch.equal, hooks.kept, before))


def returns_saved(x, w):
    """Backward returns what forward saved, transposed."""
    return (torch.mm(x, w).tanh() * x.sin().t()).sum(0)


def doubled(x, w):
    product = torch.mm(x, w)
    return product.tanh(), product * 2 + w


@pytest.mark.parametrize("body", [returns_saved, pytest.param(doubled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("save", [pytest.param("auto", marks=pytest.mark.slow), "everything"])
def test_other_programs_agree_with_theirs(body, save):
    given = leaves()[:2]
    combined = pb.combine(body, *given, backend="native", save=save)

    def pulled(call):
        outputs = call(*given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return torch.autograd.grad(sum(map(loss, outputs)), given)

    for _ in range(3):
        torch.testing.assert_close(pulled(combined.apply), pulled(body), rtol=1e-4, atol=1e-4)


def test_threads_share_a_kept_graph(combined):
    given = leaves()
    out = loss(combined.apply(*given))
    want = expected(given)
    with ThreadPool(4) as pool:
        found = pool.map(lambda _: torch.autograd.grad(out, given, retain_graph=True), range(40))

    for one in found:
        torch.testing.assert_close(one, want)
