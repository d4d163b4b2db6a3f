"""`combine` of a module: used like the module, with the same numbers, gradients and buffers."""

import copy
import io
import pickle
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import pullback as pb
from pullback.errors import CaptureError, UncompiledWarning


class Net(nn.Module):
    """Two layers, one of them tied to a third, and a buffer that is only read."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.linspace(1, 2, 4))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x, power: int = 2, *, shift=0.0):
        y = torch.tanh(self.first(x)) ** power
        return self.second(y) * self.scale + shift


def made(cls=Net, *args):
    torch.manual_seed(0)
    return cls(*args).double()


def data(*shape):
    return torch.linspace(-1, 1, 12, dtype=torch.float64).view(*(shape or (3, 4)))


def results(module, *args, **kwargs):
    """The outputs of a module, and the gradients of its parameters and of its first argument."""
    x = args[0].detach().clone().requires_grad_()
    module.zero_grad()
    output = module(x, *args[1:], **kwargs)
    output.square().sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters(remove_duplicate=False)}
    return output.detach(), x.grad, grads, {n: b.clone() for n, b in module.named_buffers()}


def assert_same(combined, module, *args, **kwargs):
    """Two modules that do not share tensors do the same, from the same random state."""
    torch.manual_seed(1)
    expected = results(module, *args, **kwargs)
    torch.manual_seed(1)
    torch.testing.assert_close(results(combined, *args, **kwargs), expected)


def is_one_node(module, *args):
    return module(*args).grad_fn.name() == f"{type(module).__name__}Backward"


@pytest.fixture
def pair():
    """A module, and a combined copy of it."""
    module = made()
    return pb.combine(copy.deepcopy(module), data(), backend="eager"), module


# ---- like the module ----


def test_it_is_the_module_in_one_node(pair):
    combined, module = pair

    assert is_one_node(combined, data())
    assert_same(combined, module, data())
    assert_same(combined, module, data(4, 3).T.contiguous().view(3, 4))
    assert_same(combined, module, data(1, 3, 4), 3)
    assert_same(combined, module, data(), power=3)
    assert_same(combined, module, data(), shift=data(3, 4))


def test_everything_is_shared_with_the_module():
    module = made()
    combined = pb.combine(module, data(), backend="eager")

    assert type(combined) is not type(module)
    assert isinstance(combined, Net)
    assert list(combined.state_dict()) == list(module.state_dict())
    assert [*map(id, combined.parameters())] == [*map(id, module.parameters())]
    assert repr(combined) == repr(module)
    combined.eval()
    assert not module.training
    assert not module.first.training


def test_capturing_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
    before = copy.deepcopy(module.state_dict())
    state = torch.get_rng_state()

    combined = pb.combine(module, data(), backend="eager")

    torch.testing.assert_close(module.state_dict(), before)
    assert torch.get_rng_state().equal(state)
    assert all(p.grad is None for p in combined.parameters())


def test_optimizer_trains_it(pair):
    combined, module = pair
    losses = []
    for one in (module, combined):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = one(data()).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())

    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    torch.testing.assert_close(combined.state_dict(), module.state_dict())


def test_without_gradients_it_runs_as_written(pair):
    combined, module = pair
    with torch.no_grad():
        assert combined(data()).equal(module(data()))
    with torch.inference_mode():
        assert combined(data()).equal(module(data()))


# ---- changes of the module ----


def test_state_is_loaded(pair):
    combined, module = pair
    combined(data())
    other = made()
    for parameter in other.parameters():
        nn.init.normal_(parameter)

    combined.load_state_dict(other.state_dict())
    assert_same(combined, other, data())
    for one in (combined, module):
        one.load_state_dict(made().state_dict(), assign=True)  # which unties what was tied
    assert_same(combined, module, data())
    assert is_one_node(combined, data())


def test_replaced_parameter_is_used_and_nothing_is_captured_for_it(pair, monkeypatch):
    combined, module = pair
    results(combined, data())
    recipes = sys.modules["pullback.derive.recipes"]
    monkeypatch.setattr(recipes, "capture", lambda *_, **__: pytest.fail("captured"))
    for one in (combined, module):
        one.first.bias = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64))

    assert_same(combined, module, data())


def test_tie_that_is_broken_is_seen(pair):
    combined, module = pair
    combined(data())
    for one in (combined, module):
        one.second.weight = nn.Parameter(torch.eye(4, dtype=torch.float64))

    assert_same(combined, module, data())


def test_module_that_is_rebuilt_is_captured_anew(pair):
    combined, module = pair
    combined(data())
    torch.manual_seed(2)
    layer = nn.Linear(4, 2).double()
    for one in (combined, module):
        one.second = copy.deepcopy(layer)
        one.register_buffer("scale", torch.ones(2, dtype=torch.float64))

    assert_same(combined, module, data())
    assert is_one_node(combined, data())


def test_frozen_parameter_gets_no_gradient(pair):
    combined, module = pair
    combined(data())
    for one in (combined, module):
        one.first.bias.requires_grad_(False)
    assert_same(combined, module, data())
    for one in (combined, module):
        one.requires_grad_(False)

    assert combined(data()).requires_grad is False


def test_dtype_follows(pair):
    combined, module = pair
    combined(data())
    combined.float()
    module.float()

    assert combined.first.weight.dtype is torch.float32
    assert_same(combined, module, data().float())
    assert is_one_node(combined, data().float())


def test_setting_is_read_at_each_call():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.factor = nn.Linear(4, 4), 2.0

        def forward(self, x):
            return self.layer(x) * self.factor if self.training else self.layer(x)

    module = made(Scaled)
    combined = pb.combine(copy.deepcopy(module), data(), backend="eager")
    assert_same(combined, module, data())
    combined.factor = module.factor = 3.0
    assert_same(combined, module, data())
    combined.eval()
    module.eval()
    assert_same(combined, module, data())


def test_unused_parameter_has_no_gradient(pair):
    combined, _ = pair
    combined(data()).sum().backward()

    assert combined.unused.grad is None


# ---- copies ----


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch"])
def test_copy_stands_by_itself(how):
    original = pb.combine(made(), data(), backend="eager")
    if how == "deepcopy":
        copied = copy.deepcopy(original)
    elif how == "pickle":
        copied = pickle.loads(pickle.dumps(original))
    else:
        file = io.BytesIO()
        torch.save(original, file)
        file.seek(0)
        copied = torch.load(file, weights_only=False)

    assert copied.first.weight is not original.first.weight
    assert copied.second.weight is copied.first.weight
    assert_same(copied, made(), data())
    assert is_one_node(copied, data())
    with torch.no_grad():
        copied.first.weight.zero_()
    assert original.first.weight.abs().sum() > 0


def test_combined_again_is_one_layer_deep(pair):
    combined, module = pair
    again = pb.combine(combined, data(), backend="eager")

    assert type(again).__mro__[1:3] == type(combined).__mro__[1:3]
    assert_same(again, module, data())


def test_replica_runs_as_written(pair):
    combined, module = pair
    replica = combined._replicate_for_data_parallel()
    replica.first, replica.second = module.first, module.second

    assert replica(data()).equal(module(data()))


# ---- transforms and wrappers ----


def test_compiler_reads_it(pair):
    combined, module = pair
    compiled = torch.compile(combined, backend="eager", fullgraph=True)

    assert torch.allclose(compiled(data()), module(data()))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_jit_trace_records_the_module(pair):
    combined, module = pair
    for _ in range(2):
        traced = torch.jit.trace(combined, (data(),))

        assert torch.allclose(traced(data()), module(data()))


def test_functional_call_and_transforms(pair):
    combined, module = pair
    other = {name: torch.ones_like(p) for name, p in module.named_parameters()}
    got = torch.func.functional_call(combined, other, (data(),))

    assert torch.allclose(got, torch.func.functional_call(module, other, (data(),)))

    def loss(weights, one):
        return torch.func.functional_call(one, weights, (data(),)).sum()

    torch.testing.assert_close(
        torch.func.grad(loss)(other, combined), torch.func.grad(loss)(other, module)
    )


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(pair, use_reentrant):
    combined, module = pair
    expected = results(module, data())
    x = data().requires_grad_()
    combined.zero_grad()
    output = checkpoint(combined, x, use_reentrant=use_reentrant)
    output.square().sum().backward()

    torch.testing.assert_close((output.detach(), x.grad), expected[:2])
    torch.testing.assert_close(combined.first.weight.grad, expected[2]["first.weight"])


def test_second_derivative(pair):
    combined, module = pair

    def penalty(one):
        x = data().requires_grad_()
        (gradient,) = torch.autograd.grad(one(x).sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, one.first.weight))

    torch.testing.assert_close(penalty(combined), penalty(module))


def test_autocast(pair):
    combined, module = (one.float() for one in pair)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = combined(data().float()), module(data().float())

    assert got.dtype is expected.dtype
    torch.testing.assert_close(got, expected)


def test_inside_another_composition(pair):
    combined, module = pair
    outer = pb.combine(lambda x: combined(x).sin(), data(), backend="eager")
    x = data().requires_grad_()

    torch.testing.assert_close(outer(x), module(x).sin())
    torch.testing.assert_close(
        torch.autograd.grad(outer(x).sum(), combined.first.weight),
        torch.autograd.grad(module(x).sin().sum(), module.first.weight),
    )


def test_parametrized_weights():
    module = nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Tanh()).double()
    combined = pb.combine(copy.deepcopy(module), data(), backend="eager")

    assert_same(combined, module, data())


# ---- random numbers, and buffers that are changed ----


def test_dropout_draws_as_the_module_does():
    module = made(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)))
    combined = pb.combine(copy.deepcopy(module), data(), backend="eager")

    for _ in range(2):
        assert_same(combined, module, data())
    assert is_one_node(combined, data())
    combined.eval()
    module.eval()
    assert_same(combined, module, data())


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 3, 3, padding=1), nn.BatchNorm1d(3)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def test_batch_norm_updates_its_buffers():
    module, x = made(Convolved), data(1, 3, 4)
    combined = pb.combine(copy.deepcopy(module), x, backend="eager")

    for step in range(1, 4):
        assert_same(combined, module, x * step)
        assert combined.norm.num_batches_tracked == step
    assert is_one_node(combined, x)
    combined.eval()
    module.eval()
    module.norm.load_state_dict(combined.norm.state_dict())
    assert_same(combined, module, x)
    combined.train()
    module.train()
    assert_same(combined, module, x)


def test_two_calls_before_one_backward_keep_their_buffers_apart():
    module, x = made(Convolved), data(1, 3, 4)
    combined = pb.combine(copy.deepcopy(module), x, backend="eager")

    def gradients(one):
        loss = one(x).sum() + one(2 * x).square().sum()
        return torch.autograd.grad(loss, list(one.parameters()))

    torch.testing.assert_close(gradients(combined), gradients(module))
    torch.testing.assert_close(combined.state_dict(), module.state_dict())


# ---- what runs as written ----


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def test_attribute_that_forward_sets_is_refused_with_its_line():
    combined = pb.combine(made(Counting), data(), backend="eager")
    combined(data())
    combined(data())
    line = Counting.forward.__code__.co_firstlineno + 1

    assert combined.calls == 2
    assert not is_one_node(combined, data())
    assert f"`self.calls`, which `forward` sets (test_modules.py:{line})" in combined.explain()


def test_refusal_goes_with_the_part_that_was_refused():
    class Quiet(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

    combined = pb.combine(nn.Sequential(made(Counting), nn.Tanh()), data(), backend="eager")
    assert "`self.calls`" in combined.explain()
    combined[0] = made(Quiet)

    assert combined(data()).grad_fn.name() == "SequentialBackward"
    assert combined.explain() == 'combined: one node of 2 units, backend "eager"'


def test_buffer_that_is_bound_anew_is_refused_with_its_line():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            y = self.layer(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y - self.mean

    module = made(Mean)
    combined = pb.combine(copy.deepcopy(module), data(), backend="eager")
    for _ in range(2):
        assert_same(combined, module, data())

    assert "`mean`, which `forward` binds to another tensor (test_modules.py:" in combined.explain()


def test_hooks_of_submodules_run_with_every_call(pair):
    combined, module = pair
    combined(data())
    seen = []
    handle = combined.first.register_forward_hook(lambda *_: seen.append(1))
    combined(data())
    combined(data())
    assert len(seen) == 2
    assert "`first` has hooks" in combined.explain()
    handle.remove()

    assert is_one_node(combined, data())
    assert_same(combined, module, data())


def test_hooks_of_the_module_stay(pair):
    combined, module = pair
    for one in (combined, module):
        one.register_forward_hook(lambda module, args, output: 2 * output)
        one.register_forward_pre_hook(lambda module, args: (args[0] + 1, *args[1:]))
        one.register_full_backward_hook(lambda module, gave, got: (3 * gave[0],))

    assert_same(combined, module, data())
    assert combined.forward(data()).grad_fn.name() == "NetBackward"


def test_branch_on_values_runs_as_written():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            y = self.layer(x)
            return y.sin() if y.sum() > 0 else y.cos()

    module = made(Branching)
    combined = pb.combine(copy.deepcopy(module), data(), backend="eager")

    assert_same(combined, module, data())
    assert_same(combined, module, -data())
    assert combined.explain().startswith("nested: ")


def test_error_of_the_module_is_its_own(pair):
    combined, _ = pair
    combined(data())

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        combined(data(2, 6))
    assert is_one_node(combined, data())


def test_module_on_meta_is_captured_when_it_has_values():
    def layers():
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    with torch.device("meta"):
        combined = pb.combine(layers(), torch.empty(3, 4), backend="eager")
        assert combined(torch.empty(2, 4)).shape == (2, 4)

    combined.to_empty(device="cpu")
    module = made(layers)
    combined.double().load_state_dict(module.state_dict())

    assert_same(combined, module, data())
    assert combined(data()).grad_fn.name() == "SequentialBackward"


def test_call_on_meta_says_that_it_is_not_compiled():
    with torch.device("meta"):
        combined = pb.combine(Convolved(), torch.empty(1, 3, 4), backend="inductor")
        with pytest.warns(UncompiledWarning, match="an input is on the meta device"):
            combined(torch.empty(2, 3, 4))

    assert "1 call uncompiled: an input is on the meta device" in combined.explain()


def test_parameters_without_values_are_refused():
    with pytest.raises(CaptureError, match="must have its parameters") as raised:
        pb.combine(nn.Sequential(nn.LazyLinear(3)), torch.ones(2, 4))

    assert raised.value.facts["got"] == "`0.weight`, which the first call makes"


def test_tensors_of_other_kinds_are_named(pair):
    combined, module = pair

    class Marked(torch.Tensor):
        pass

    for one in (combined, module):
        one.scale = one.scale.as_subclass(Marked)

    assert combined(data()).equal(module(data()))
    assert "`scale` is a `Marked`" in combined.explain()


# ---- a transformer block ----


class Block(nn.Module):
    """RMS norm, rope, causal attention and swiglu."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)
        half = width // heads // 2
        angles = torch.arange(32)[:, None] / 10000 ** (torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def rope(self, x):
        a, b = x.chunk(2, -1)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rope(q), self.rope(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        z = self.between(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


@pytest.mark.slow
def test_transformer_block_is_one_node():
    module = made(Block)
    x = torch.randn(2, 8, 16, dtype=torch.float64)
    combined = pb.combine(copy.deepcopy(module), x, backend="eager")

    assert is_one_node(combined, x)
    assert_same(combined, module, x)
    assert_same(combined, module, torch.randn(3, 5, 16, dtype=torch.float64))


@pytest.mark.slow
def test_transformer_block_is_compiled():
    module = made(Block).float()
    x = torch.randn(2, 8, 16)
    combined = pb.combine(copy.deepcopy(module), x, backend="inductor")
    combined(x)

    assert is_one_node(combined, x)
    assert_same(combined, module, x)
    assert combined.explain() == 'combined: one node of 37 units, backend "inductor"'
