"""Compiled nodes against their recipes: wrong code is seen at its first call, right code is not."""

import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import pullback as pb
from pullback.compose import fast_path
from pullback.errors import WrongCodeWarning
from pullback.run import backend_of
from pullback.run.backend import Backend
from pullback.run.nodes.verify import GraphTrial

run = import_module("pullback.run")

COMPILING = ["inductor", "native"]


def leaf(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()


def gate(x, w):
    s = torch.sigmoid(x * w)
    return s * x, s.sum(0)


def spoiled(name, spoil):
    """Backend `name`, whose compiled graphs give what `spoil` makes of their results."""
    real = backend_of(name)

    class Spoiled(Backend):
        absence, make_node, donates = real.absence, real.make_node, real.donates
        prepared = real.prepared

        def specialise(self, graph, row, *, name, **options):
            return self._spoiled(name, real.specialise(graph, row, name=name, **options))

        def specialise_all_sizes(self, graph, row, *, name):
            code = real.specialise_all_sizes(graph, row, name=name)
            call = self._spoiled(name, code)
            call.meets = code.meets
            return call

        def _spoiled(self, name, code):
            return lambda arguments: spoil(name, list(code(arguments)))

    return Spoiled()


def use(monkeypatch, name, spoil):
    monkeypatch.setattr(fast_path, "backends_of", lambda _: {name: spoiled(name, spoil)})


def gradients(function, args, cotangents):
    outputs = function(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, args, cotangents)


# ---- a planted wrong backend ----


def halve_second_gradient(name, made):
    if name == "backward":
        made[1] = made[1] / 2
    return made


def shift_one_element(name, made):
    if name == "forward":
        made[0] = made[0].clone()
        made[0].view(-1)[3] += 1e-3
    return made


def lose_a_cotangent(name, made):
    """A gradient that is right for all cotangents together in one element only."""
    if name == "backward":
        made[0] = made[0] * torch.linspace(1, 1.001, made[0].numel()).view_as(made[0])
    return made


def crash_in_backward(name, made):
    if name == "backward":
        raise RuntimeError("the kernel was not launched")
    return made


def crash_in_forward(name, made):
    if name == "forward":
        raise RuntimeError("the kernel was not launched")
    return made


def lose_rows_of_a_gradient(name, made):
    if name == "backward":
        made[0] = made[0][:2]
    return made


def transpose_an_output(name, made):
    if name == "forward":
        made[0] = made[0].t().contiguous().t()
    return made


def lose_an_output(name, made):
    return made[:1] if name == "forward" else made


@pytest.mark.quick(5)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", COMPILING)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (halve_second_gradient, "the gradient of `w`"),
        pytest.param(shift_one_element, "output 0 at [0, 3]", marks=pytest.mark.slow),
        (lose_a_cotangent, "the gradient of `x`"),
        (crash_in_backward, "what it raises: RuntimeError: the kernel was not launched"),
        (crash_in_forward, "what it raises: RuntimeError: the kernel was not launched"),
        (lose_rows_of_a_gradient, "returned an invalid gradient"),
        (lose_an_output, "what it raises: "),
        (transpose_an_output, "output 0: strides (1, 4) instead of strides (5, 1)"),
    ],
)
def test_planted_fault_is_caught_at_the_first_call(monkeypatch, backend, spoil, said):
    use(monkeypatch, backend, spoil)
    args = leaf(4, 5), leaf(5, seed=1)
    combined = pb.combine(gate, *args, backend=backend)
    with pytest.warns(WrongCodeWarning) as told:
        outputs = combined.apply(*args)

    (warning,) = [one.message for one in told if isinstance(one.message, WrongCodeWarning)]
    assert str(warning).startswith(
        f'W502 wrong-code: what backend "{backend}" made of `Gate` must compute what the program'
    )
    assert said in warning.facts["got"]
    assert said in combined.explain()
    assert all(map(torch.equal, outputs, gate(*args)))  # the call got the eager result
    cotangents = [torch.ones_like(y) for y in outputs]
    torch.testing.assert_close(
        gradients(combined.apply, args, cotangents), gradients(gate, args, cotangents)
    )


def assert_caught_and_served(combined, program, args, said):
    """Require that the first call warns, and that it and the next get what the program gives."""
    with pytest.warns(WrongCodeWarning) as warned:
        outputs = combined.apply(*args)
    expected = program(*args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    assert any(said in str(one.message) for one in warned)
    assert said in combined.explain()
    torch.testing.assert_close(outputs, expected)
    cotangents = [torch.ones_like(y) for y in expected]
    torch.testing.assert_close(
        torch.autograd.grad(outputs, args, cotangents),
        torch.autograd.grad(expected, args, cotangents),
    )
    torch.testing.assert_close(
        gradients(combined.apply, args, cotangents), gradients(program, args, cotangents)
    )


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("wrong", "right"),
    [(["inductor"], ["eager"]), (["native"], ["eager", "inductor"]), (COMPILING, [])],
)
def test_planted_fault_among_several_backends_is_caught(monkeypatch, wrong, right):
    """What "auto" chooses among: one that is wrong is never chosen, however fast."""
    several = {name: spoiled(name, halve_second_gradient) for name in wrong}
    several |= {name: backend_of(name) for name in right}
    monkeypatch.setattr(fast_path, "backends_of", lambda _: several)
    args = leaf(4, 5), leaf(5, seed=1)
    combined = pb.combine(gate, *args, backend="auto")

    assert_caught_and_served(combined, gate, args, "the gradient of `w`")


@pytest.mark.needs_triton
def test_planted_fault_in_kernels_of_ours_is_caught(run_python):
    """In a process of its own, since Triton's interpreter is chosen where it is imported."""
    done = run_python("-c", KERNELS, folder=Path(__file__).resolve().parents[3])

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "caught"


KERNELS = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import pytest
from tests.run.nodes.test_verify import assert_caught_and_served, halve_second_gradient, leaf, use
import pullback as pb

def rows(x, w):
    return (x * w).softmax(-1)

with pytest.MonkeyPatch.context() as patch:
    use(patch, "triton", halve_second_gradient)
    args = leaf(4, 5), leaf(4, 5, seed=1)
    combined = pb.combine(rows, *args, backend="triton")
    assert_caught_and_served(combined, rows, args, "the gradient of `w`")
print("caught")
"""


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", COMPILING)
def test_fault_is_told_once_and_the_code_never_runs_again(monkeypatch, backend):
    use(monkeypatch, backend, halve_second_gradient)
    args = leaf(4, 5), leaf(5, seed=1)
    combined = pb.combine(gate, *args, backend=backend)
    with pytest.warns(WrongCodeWarning):
        combined.apply(*args)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongCodeWarning)
        for _ in range(3):
            combined.apply(*args)


@pytest.mark.quick(1)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", COMPILING)
def test_fault_in_code_for_open_sizes_is_caught(monkeypatch, backend):
    sizes = []

    def spoil(name, made):
        sizes.append(made[0].shape)
        if name == "backward" and made[0].shape[0] != 4:
            made[0] = -made[0]
        return made

    use(monkeypatch, backend, spoil)
    combined = pb.combine(gate, leaf(4, 5), leaf(5, seed=1), backend=backend)
    combined.apply(leaf(4, 5), leaf(5, seed=1))
    args = leaf(7, 5), leaf(5, seed=1)
    with pytest.warns(WrongCodeWarning, match="the gradient of `x`"):
        outputs = combined.apply(*args)

    cotangents = [torch.ones_like(y) for y in outputs]
    got = gradients(combined.apply, args, cotangents)
    torch.testing.assert_close(got, gradients(gate, args, cotangents))


@pytest.mark.needs_compiler
def test_verification_can_be_switched_off(monkeypatch):
    use(monkeypatch, "inductor", halve_second_gradient)
    args = leaf(4, 5), leaf(5, seed=1)
    combined = pb.combine(gate, *args, backend="inductor", verify=False)
    outputs = combined.apply(*args)
    cotangents = [torch.ones_like(y) for y in outputs]

    wrong = gradients(combined.apply, args, cotangents)[1]
    torch.testing.assert_close(2 * wrong, gradients(gate, args, cotangents)[1])


@pytest.mark.needs_compiler
def test_error_of_the_program_is_the_user_s_own():
    """An index out of range raises in compiled code, too: that is no fault of the code."""

    def looked_up(table, places):
        return F.embedding(places, table).sin()

    args = leaf(5, 3), torch.tensor([1, 4])
    combined = pb.combine(looked_up, *args, backend="inductor")
    with warnings.catch_warnings(), pytest.raises(IndexError, match="index out of range"):
        warnings.simplefilter("error", WrongCodeWarning)
        combined.apply(args[0], torch.tensor([1, 7]))

    torch.testing.assert_close(combined.apply(*args), looked_up(*args))
    assert "1 call run by backend" in combined.explain()


@pytest.mark.needs_compiler
@pytest.mark.parametrize("spoil", [shift_one_element, transpose_an_output, crash_in_forward])
def test_output_without_gradients_is_compared_too(monkeypatch, spoil):
    use(monkeypatch, "inductor", spoil)
    args = leaf(4, 5), leaf(5, seed=1)
    combined = pb.combine(gate, *args, backend="inductor")
    with torch.no_grad(), pytest.warns(WrongCodeWarning, match="output 0|what it raises"):
        outputs = combined.apply(*args)

    assert all(map(torch.equal, outputs, gate(*args)))


@pytest.mark.needs_compiler
def test_plan_never_takes_wrong_code(monkeypatch):
    use(monkeypatch, "inductor", halve_second_gradient)
    args = leaf(4, 5), leaf(5, seed=1)
    plan = pb.plan(gate, *args, backends=["inductor"], budget=2)

    assert any("computes something else" in why for why in plan.evidence.refused.values())
    cotangents = [torch.ones(4, 5), torch.ones(5)]
    torch.testing.assert_close(
        gradients(plan.best, args, cotangents), gradients(gate, args, cotangents)
    )


@pytest.mark.needs_compiler
def test_what_inductor_gets_wrong_runs_eagerly():
    def conv_pools(x, w):
        c = F.conv2d(x, w, padding=1)
        return (
            F.max_pool2d(c, 2),
            F.avg_pool2d(c, 2, 1),
            F.interpolate(c, scale_factor=2, mode="bilinear"),
        )

    args = leaf(1, 1, 5, 5, dtype=torch.float64), leaf(1, 1, 2, 2, dtype=torch.float64, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WrongCodeWarning)  # until that is mended upstream
        combined = pb.combine(conv_pools, *args, backend="inductor")
        outputs = combined.apply(*args)
        cotangents = [torch.randn_like(y) for y in outputs]
        got = gradients(combined.apply, args, cotangents)
    torch.testing.assert_close(got, gradients(conv_pools, args, cotangents))


# ---- first calls that tell nothing ----


def relu_products(x, w):
    return torch.relu(x) * w.sum(), (x * w).sum(1)


@pytest.mark.quick(2)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", COMPILING)
@pytest.mark.parametrize("first", [0.0, -1.0, float("nan")])
def test_fault_that_the_first_call_hides_is_caught(monkeypatch, backend, first):
    """The gradient of `w` is zero, or NaN, at such a first call, whatever is wrong with it."""
    use(monkeypatch, backend, halve_second_gradient)
    x = torch.full((4, 5), first, requires_grad=True)
    args = (x if first else torch.zeros(4, 5, requires_grad=True)), leaf(5, seed=1)
    with pytest.warns(WrongCodeWarning, match="the gradient of `w`"):
        pb.combine(relu_products, *args, backend=backend).apply(*args)


def pointed_at(x, table):
    return table[x.long()] * x


@pytest.mark.needs_compiler
def test_first_call_that_tells_nothing_is_said():
    """The numbers become indices: others are not drawn for them."""
    args = torch.zeros(4, requires_grad=True), torch.zeros(3, requires_grad=True)
    combined = pb.combine(pointed_at, *args, backend="inductor")
    combined.apply(*args)

    said = combined.explain()
    assert '  what backend "inductor" made was compared only where outputs or gradients' in said
    assert "eager:" not in said  # it runs compiled, all the same
    other = leaf(4).detach().abs().requires_grad_(), leaf(3)
    again = pb.combine(pointed_at, *other, backend="inductor")
    again.apply(*other)
    assert "compared only" not in again.explain()


@pytest.mark.needs_compiler
def test_first_call_with_zeros_is_no_fault():
    def gathered(x, w):
        return w[(x * 3).long()] * x, x.log().clamp(max=2.0)

    args = torch.zeros(6, requires_grad=True), leaf(4, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongCodeWarning)
        combined = pb.combine(gathered, *args, backend="inductor")
        outputs = combined.apply(*args)
    assert all(map(torch.equal, outputs, gathered(*args)))


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_numbers_that_the_program_refuses_are_not_drawn():
    """The gradient of `a` is zero at this first call, and `cholesky` refuses any other numbers."""

    def solved(a, b):
        return torch.cholesky_solve(b, torch.linalg.cholesky(a)).sin(), b * 2

    args = (2 * torch.eye(3)).requires_grad_(), torch.zeros(3, 2, requires_grad=True)
    outputs = pb.combine(solved, *args, backend="inductor").apply(*args)

    torch.testing.assert_close(outputs, solved(*args))


# ---- right code is not suspected ----

SOUND = {
    "sums that cancel": (lambda x: (x - x.mean(1, keepdim=True)).sum(1) + x.sin(), (64, 64)),
    "steps": (lambda x: (x * 1.7 + 0.3).floor() * x + (x > 0.1).to(x.dtype), (100, 100)),
    "powers": (lambda x: (x * 20).exp() / (x * 20).exp().sum(-1, keepdim=True), (30, 50)),
    "a long sum": (lambda x: x.sin().sum(), (300, 300)),
    "overflow": (lambda x: (x * 60).exp() * (x * 60).exp(), (20, 20)),
    "ties": (lambda x: x.round().amax(1) + x.round().amin(1), (20, 30)),
    "a norm": (lambda x: F.layer_norm(x, x.shape[1:]) * x.norm(dim=1, keepdim=True), (16, 48)),
}
QUICK = ("sums that cancel", "ties")


@pytest.mark.quick(1)
@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if c in QUICK else pytest.mark.slow) for c in SOUND],
)
def test_rounding_is_no_fault(case, dtype):
    program, shape = SOUND[case]
    x = leaf(*shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongCodeWarning)
        combined = pb.combine(program, x, backend="inductor")
        combined.apply(x)

    assert "1 call run by backend" in combined.explain()


@pytest.mark.needs_compiler
def test_rounding_in_a_coarser_dtype_than_the_inputs_is_no_fault():
    def normed(x):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype).sin()

    x = leaf(30, 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongCodeWarning)
        combined = pb.combine(normed, x, backend="inductor")
        combined.apply(x)

    assert "1 call run by backend" in combined.explain()


def test_inputs_nearby_lie_in_memory_as_the_inputs_do():
    row = leaf(1, 3).expand(4, 3), leaf(3, 8)[:, ::2], torch.arange(3)
    nearby = GraphTrial(fx.Graph(), lambda row: row, row).nearby

    for moved in nearby:
        assert [x.stride() for x in moved] == [x.stride() for x in row]
        assert [torch.equal(x, y) for x, y in zip(moved, row, strict=True)] == [False, False, True]
        torch.testing.assert_close(moved, list(row))


def test_random_numbers_and_gradients_stay_as_they_are():
    x, w = leaf(4, 5), leaf(5, seed=1)
    x.register_hook(lambda g: pytest.fail("a hook was called"))
    state = torch.get_rng_state()
    combined = pb.combine(gate, x, w, backend="eager")
    combined.apply(x, w)

    assert torch.equal(torch.get_rng_state(), state)
    assert x.grad is None
