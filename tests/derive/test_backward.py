"""A derived Function gives what its program gives: outputs, gradients, tangents, batches."""

import threading

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from pullback.capture.joint import capture
from pullback.derive.backward import derive_function
from pullback.derive.recipe import parts_of
from pullback.errors import CaptureError, PolicyError
from pullback.function.function import Function
from tests.derive.functions import (
    CASES,
    COMMON,
    COMMON_THEN_EVERY,
    FEW_THEN_EVERY,
    GAIN,
    MANY_THEN_EVERY,
    OFFSET,
    derived,
    differences,
    inputs_of,
    pulled,
    tensors_of,
    weights_for,
)

each = pytest.mark.parametrize("name", MANY_THEN_EVERY)
few_then_each = pytest.mark.parametrize("name", FEW_THEN_EVERY)
common_then_each = pytest.mark.parametrize("name", COMMON_THEN_EVERY)


def normal(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def flags(outputs):
    """Which of the outputs carry a gradient."""
    return [y.requires_grad for y in tensors_of(outputs)]


# ---- outputs and gradients ----


@each
def test_outputs_are_those_of_the_program(name):
    case = CASES[name]
    for row in range(len(case.rows)):
        arguments = case.arguments(row)
        got, expected = derived(name).apply(*arguments), case.program(*arguments)

        assert differences(got, expected, tolerance=1e-12 if case.near else 0) == []
        assert flags(got) == flags(expected)


@common_then_each
def test_outputs_need_no_gradient(name):
    case = CASES[name]
    arguments = case.arguments(needs=False)
    got, expected = derived(name).apply(*arguments), case.program(*arguments)

    assert differences(got, expected, tolerance=1e-12 if case.near else 0) == []
    assert flags(got) == flags(expected)


@each
def test_gradients_are_those_of_autograd(name):
    case = CASES[name]
    for row in range(len(case.rows)):
        arguments = case.arguments(row)
        got, expected = pulled(derived(name).apply, arguments), pulled(case.program, arguments)

        assert differences(got, expected) == []


@pytest.mark.quick(4)
@few_then_each
def test_every_subset_of_inputs_is_served(name):
    case = CASES[name]
    for needs in case.patterns:
        for row in range(len(case.rows)):
            if len(inputs_of(case.arguments(row))) != len(needs):
                continue
            arguments = case.arguments(row, needs=needs)
            got, expected = pulled(derived(name).apply, arguments), pulled(case.program, arguments)

            assert differences(got, expected) == [], needs


def test_values_of_closures_get_gradients():
    (x,) = CASES["calibrated"].arguments()
    program, function = CASES["calibrated"].program, derived("calibrated").apply
    got = torch.autograd.grad(function(x).sum(), (x, GAIN))
    expected = torch.autograd.grad(program(x).sum(), (x, GAIN))

    assert differences(got, expected) == []


def test_parameters_of_a_module_get_gradients():
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = normal(5, 3)
    D = derive_function(module, x)
    wanted = (x, *module.parameters())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2)

    got = torch.autograd.grad(D.apply(x).sum(), wanted)

    assert differences(got, torch.autograd.grad(module(x).sum(), wanted)) == []


def test_one_tensor_may_be_given_twice():
    case = CASES["attention"]
    x = normal(2, 4, 3)
    got, expected = pulled(derived("attention").apply, (x, x, x)), pulled(case.program, (x, x, x))

    assert differences(got, expected) == []


def test_input_need_not_be_a_leaf():
    x = normal(4, 3)
    got = torch.autograd.grad(derived("swish").apply(2 * x).sum(), x)
    expected = torch.autograd.grad(CASES["swish"].program(2 * x).sum(), x)

    assert differences(got, expected) == []


def test_output_that_nobody_uses_is_fine():
    q, p = CASES["leapfrog"].arguments()
    got = torch.autograd.grad(derived("leapfrog").apply(q, p)[1].sum(), (q, p))
    expected = torch.autograd.grad(CASES["leapfrog"].program(q, p)[1].sum(), (q, p))

    assert differences(got, expected) == []


def reached(function, arguments, place):
    """The gradients of one output alone, where eager has None too."""
    out = tensors_of(function(*arguments))[place].sum()
    return torch.autograd.grad(out, arguments, allow_unused=True)


@pytest.mark.parametrize("place", range(3))
def test_input_of_unused_outputs_has_no_gradient(place):
    def program(x, y):
        return x.sin(), y.exp() * 2, (x * y).sum()

    arguments = normal(3), normal(3)
    got = reached(derive_function(program, *arguments).apply, arguments, place)

    assert differences(got, reached(program, arguments, place)) == []


class Shrinking(torch.autograd.Function):
    """The identity; a part of the input is added to its gradient, whatever the cotangent is."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent + 0.1 * x


@pytest.mark.parametrize("place", range(2))
def test_unused_output_runs_no_hand_written_backward(place):
    def program(x, y):
        return Shrinking.apply(x) * 2, (x * y).sin()

    arguments = normal(3), normal(3)
    D = derive_function(program, *arguments)
    got = reached(lambda *args: D.apply(*(1 * arg for arg in args)), arguments, place)

    assert differences(got, reached(program, arguments, place)) == []


def test_unused_output_of_a_program_that_draws():
    def program(x, y):
        return Shrinking.apply(x) * torch.rand_like(x), y.sin()

    arguments = normal(3), normal(3)
    D = derive_function(program, *arguments)
    got, expected = reached(D.apply, arguments, 1), reached(program, arguments, 1)

    assert differences(got, expected) == []


def test_hand_written_backward_needs_every_output_of_old():
    factor = 2.0

    def program(x, y):
        return Shrinking.apply(x) * factor, y.sin()

    arguments = normal(3), normal(3)
    outputs = derive_function(program, *arguments).apply(*arguments)
    factor = 3.0
    with pytest.raises(CaptureError) as caught:
        torch.autograd.grad(outputs[1].sum(), arguments, allow_unused=True)

    assert str(caught.value) == (
        "E301 capture: `program`, which holds hand-written backwards, must have a gradient for "
        "each of its outputs\n"
        "  got:      an output that is not used, and no way to run it again: an input, or what it "
        "reads from outside it, has changed\n"
        "  fix:      add the unused output, times zero, to what is differentiated"
    )


@pytest.mark.parametrize(
    "program",
    [lambda x: x, lambda x: x.T, lambda x: x[0], lambda x: x.view(-1), lambda x: (x, x)],
    ids=["same", "turned", "row", "flat", "twice"],
)
def test_output_may_be_an_input_or_view(program):
    x = normal(3, 2)
    D = derive_function(program, x)

    assert differences(D.apply(x), program(x), tolerance=0) == []
    assert differences(pulled(D.apply, (x,)), pulled(program, (x,))) == []


def test_constants_may_be_among_outputs():
    def described(x):
        return x.sin(), x.shape[0], None, "rows", torch.ones(2)

    x = normal(4, 3)
    got = derive_function(described, normal(2, 3)).apply(x)

    assert differences(got, described(x), tolerance=0) == []
    assert flags(got) == [True, False]


def test_outputs_may_be_nested():
    def program(x):
        return {"sine": x.sin(), "rest": [x.cos(), 3, (None, x.argmax())]}

    x = normal(3)
    D = derive_function(program, x)

    assert differences(D.apply(x), program(x), tolerance=0) == []
    assert flags(D.apply(x)) == [True, True, False]
    assert differences(pulled(D.apply, (x,)), pulled(program, (x,))) == []
    form = (
        "Returns a flat tuple: ['sine'], ['rest'][0], ['rest'][1], ['rest'][2][0], ['rest'][2][1]."
    )
    assert form in " ".join(D.source().split())


def test_derived_function_has_a_face():
    D = derived("swiglu")

    assert issubclass(D, Function)
    assert D.__name__ == "Swiglu"
    assert D.__doc__ == "A linear layer gated by the swish of another one."
    assert D.program is CASES["swiglu"].program
    assert derive_function(lambda x: x, normal(2)).__name__.startswith("Lambda")


# ---- calls: keywords, sizes, dtypes, layouts ----


def scaled(x, weight, power=1.0, *, shift=0.0):
    """Scaled and shifted."""
    return weight * x**power + shift


@pytest.mark.parametrize(
    "keywords",
    [{}, {"power": 2.0}, {"shift": 3.0}, {"power": 3.0, "shift": -1.0}],
    ids=["none", "power", "shift", "both"],
)
def test_arguments_may_go_by_keyword(keywords):
    x, weight = normal(3), normal(3)
    D = derive_function(scaled, x, weight)

    got, expected = D.apply(x, weight, **keywords), scaled(x, weight, **keywords)

    assert differences(got, expected, tolerance=0) == []


def test_tensors_may_go_by_keyword():
    x, weight = normal(3), normal(3)
    got = torch.autograd.grad(
        derive_function(scaled, x, weight).apply(weight=weight, x=x).sum(), (x, weight)
    )

    assert differences(got, [weight, x]) == []


def test_tensors_may_be_keyword_only():
    def program(x, *, weight=None, power=2.0):
        return x**power if weight is None else weight * x**power

    x, weight = normal(3), normal(3)
    D = derive_function(program, x)

    def second(function):
        out = function(x, power=3.0, weight=weight)
        (first,) = torch.autograd.grad(out.sum(), weight, create_graph=True)
        return first, *torch.autograd.grad(first.sum(), x)

    assert differences(second(D.apply), second(program)) == []


def test_keywords_may_follow_any_number_of_arguments():
    def program(*terms, scale=1.0):
        return sum(terms) * scale

    x, y = normal(3), normal(3)
    D = derive_function(program, x, y)

    assert differences(D.apply(x, y, x, scale=2.0), program(x, y, x, scale=2.0)) == []


SIZES = [
    ((0, 4), (4,)),
    ((1, 4), (4,)),
    ((3, 1), (1,)),
    ((3, 1), (4,)),
    ((3, 4), (1,)),
    ((3, 0), (0,)),
    ((1, 1), (1,)),
    ((2, 3, 4), (4,)),
    ((4,), (3, 4)),
    ((), (4,)),
]


@pytest.mark.parametrize("shapes", SIZES, ids=str)
def test_sizes_of_zero_and_one_are_served(shapes):
    def program(x, w):
        return (x * w).sum(0).sin()

    arguments = [normal(*shape) for shape in shapes]
    D = derive_function(program, normal(3, 4), normal(4))

    assert differences(D.apply(*arguments), program(*arguments), tolerance=0) == []
    assert differences(pulled(D.apply, arguments), pulled(program, arguments)) == []


def in_dtype(arguments, dtype):
    def turn(leaf):
        is_input = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad) if is_input else leaf

    return tree_map(turn, arguments)


@pytest.mark.quick(6)
@few_then_each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_is_served(name, dtype):
    case = CASES[name]
    if case.low:
        pytest.skip(case.low)
    arguments = in_dtype(case.arguments(), dtype)
    got, expected = derived(name).apply(*arguments), case.program(*arguments)
    gradients = [pulled(function, arguments) for function in (derived(name).apply, case.program)]
    near = 1e-5 if dtype == torch.float32 else 5e-2

    assert differences(got, expected, tolerance=near if case.near else 0) == []
    assert differences(*gradients, tolerance=near) == []


def turned(x):
    """The same values, the first dimension last in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0) if x.dim() > 1 else x


def spaced(x):
    """The same values, every other place of the memory."""
    return torch.stack([x, x], dim=-1)[..., 0]


def expanded(x):
    """One row for all."""
    return x[:1].expand(x.shape) if x.dim() else x


LAYOUTS = [turned, spaced, expanded]


def laid_out(arguments, layout):
    def turn(leaf):
        is_input = isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point
        return layout(leaf.detach()).requires_grad_(leaf.requires_grad) if is_input else leaf

    return tree_map(turn, arguments)


@pytest.mark.quick(8)
@few_then_each
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_inputs_may_lie_anyhow(name, layout):
    case = CASES[name]
    arguments = laid_out(case.arguments(), layout)
    got, expected = derived(name).apply(*arguments), case.program(*arguments)
    gradients = [pulled(function, arguments) for function in (derived(name).apply, case.program)]

    assert differences(got, expected) == []
    assert differences(*gradients) == []


@few_then_each
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_cotangents_may_lie_anyhow(name, layout):
    case = CASES[name]
    arguments = case.arguments()
    got = pulled(derived(name).apply, arguments, layout=layout)

    assert differences(got, pulled(case.program, arguments, layout=layout)) == []


def test_autocast_is_part_of_the_call():
    def program(x, w):
        return torch.tanh(x @ w)

    x, w = normal(3, 4, dtype=torch.float32), normal(4, 5, dtype=torch.float32)
    D = derive_function(program, x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, plain = D.apply(x, w), program(x, w)
    high = D.apply(x, w)

    assert differences(low, plain, tolerance=0) == []
    assert high.dtype == torch.float32


def test_second_derivative_is_taken_under_autocast_too():
    def program(x, w):
        return torch.tanh(x @ w)

    x, w = normal(3, 4, dtype=torch.float32), normal(4, 5, dtype=torch.float32)
    D = derive_function(program, x, w)

    def mixed(function):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = function(x, w)
        (first,) = torch.autograd.grad(out.sum(), x, torch.ones_like(out.sum()), create_graph=True)
        return torch.autograd.grad(first.sum(), w)

    assert differences(mixed(D.apply), mixed(program), tolerance=1e-6) == []


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_when_nobody_asks(mode):
    (x,) = CASES["swish"].arguments()
    with mode():
        got = derived("swish").apply(x)

    assert flags(got) == [False]
    assert differences(got, CASES["swish"].program(x.detach()), tolerance=0) == []


def test_error_of_the_program_is_its_own():
    a, b, c = normal(2, 3), normal(5, 4), normal(4, 5)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        derived("matmul_chain").apply(a, b, c)


@pytest.mark.parametrize(
    "program",
    [
        torch.linalg.cholesky,
        torch.linalg.inv,
        lambda a: torch.linalg.solve(a, a),
        lambda a: torch.linalg.lu_factor(a)[0],
    ],
    ids=["cholesky", "inv", "solve", "lu_factor"],
)
def test_matrix_that_has_no_answer_raises(program):
    good = torch.eye(3, dtype=torch.float64).requires_grad_()
    D = derive_function(program, good)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="linalg"):
            D.apply(0 * good)

    assert differences(D.apply(2 * good), program(2 * good), tolerance=0) == []


# ---- what is asked for ----


class Count(TorchDispatchMode):
    """How many matrix products run."""

    def __init__(self):
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **(kwargs or {}))


def products_of(function, arguments, wanted):
    """How many matrix products a backward runs."""
    out = function(*arguments).sum()
    with Count() as count:
        torch.autograd.grad(out, wanted)
    return count.products


@pytest.mark.quick(10)
@pytest.mark.parametrize("needs", CASES["mlp"].patterns, ids=str)
def test_gradient_that_nobody_needs_costs_nothing(needs):
    arguments = CASES["mlp"].arguments(needs=needs)
    wanted = [x for x in arguments if x.requires_grad]
    derived("mlp").apply(*arguments)

    got = products_of(derived("mlp").apply, arguments, wanted)

    assert got == products_of(CASES["mlp"].program, arguments, wanted)


@pytest.mark.parametrize("place", range(5))
def test_gradient_that_nobody_asks_for_costs_nothing(place):
    arguments = CASES["mlp"].arguments()
    wanted = arguments[place]
    derived("mlp").apply(*arguments)

    got = products_of(derived("mlp").apply, arguments, wanted)

    assert got == products_of(CASES["mlp"].program, arguments, wanted)


def test_backward_of_some_inputs_leaves_the_others():
    x, w = normal(3, 4), normal(4, 5)
    D = derive_function(lambda x, w: (x @ w).sin(), x, w)
    D.apply(x, w).sum().backward(inputs=[x])

    assert w.grad is None
    assert differences(x.grad, ((x @ w).cos() @ w.T)) == []


# ---- random numbers ----


def noisy(x):
    """Half of the sines, scaled."""
    return F.dropout(x.sin(), 0.5) * torch.rand_like(x)


def test_backward_sees_the_numbers_of_forward():
    x = normal(50)
    D = derive_function(noisy, x)
    torch.manual_seed(3)
    got = D.apply(x)
    torch.manual_seed(3)
    expected = noisy(x)

    assert differences(got, expected, tolerance=0) == []
    assert differences(*(torch.autograd.grad(y.sum(), x) for y in (got, expected))) == []


@pytest.mark.parametrize("save", ["inputs", "everything", 0])
def test_every_policy_keeps_the_random_numbers(save):
    x = normal(50)
    try:
        D = derive_function(noisy, x, save=save)
    except PolicyError:
        assert save == 0
        return
    torch.manual_seed(3)
    got = D.apply(x)
    torch.manual_seed(3)
    expected = noisy(x)

    assert differences(*(torch.autograd.grad(y.sum(), x) for y in (got, expected))) == []


# ---- forward mode, batches, torch.func ----


def pushed(function, arguments, moving):
    """The tangents of the outputs when the inputs at `moving` have one."""
    with forward_ad.dual_level():
        rest = iter(range(len(inputs_of(arguments))))

        def dual(leaf):
            if not any(leaf is x for x in inputs_of(arguments)):
                return leaf
            place = next(rest)
            (tangent,) = weights_for([leaf], seed=place)
            return forward_ad.make_dual(leaf, tangent) if place in moving else leaf

        outputs = tensors_of(function(*tree_map(dual, arguments)))
        return [forward_ad.unpack_dual(y).tangent for y in outputs]


@each
def test_forward_mode_is_that_of_the_program(name):
    case = CASES[name]
    for row in range(len(case.rows)):
        arguments = case.arguments(row, needs=False)
        count = len(inputs_of(arguments))
        for moving in [range(count), *([k] for k in range(count) if count > 1)]:
            got = pushed(derived(name).apply, arguments, moving)
            expected = pushed(case.truth or case.program, arguments, moving)

            assert differences(got, expected) == [], list(moving)


def on_inputs(function, arguments):
    """`function` of its inputs alone, and the inputs."""
    inputs = inputs_of(arguments)

    def run(*values):
        rest = iter(values)

        def fill(leaf):
            return next(rest) if any(leaf is x for x in inputs) else leaf

        outputs = function(*tree_map(fill, arguments))
        return tuple(y for y in tensors_of(outputs) if y.is_floating_point() or y.is_complex())

    return run, inputs


@common_then_each
def test_jvp_is_that_of_the_program(name):
    case = CASES[name]
    arguments = case.arguments(needs=False)
    runs = []
    for function in (derived(name).apply, case.truth or case.program):
        run, inputs = on_inputs(function, arguments)
        runs.append(torch.func.jvp(run, tuple(inputs), tuple(weights_for(inputs))))

    assert differences(*runs) == []


@common_then_each
def test_vjp_is_that_of_the_program(name):
    case = CASES[name]
    arguments = case.arguments(needs=False)
    runs = []
    for function in (derived(name).apply, case.truth or case.program):
        run, inputs = on_inputs(function, arguments)
        outputs, pull = torch.func.vjp(run, *inputs)
        runs.append(pull(tuple(weights_for(outputs))))

    assert differences(*runs) == []


def stacked(rows):
    """Rows of arguments as one row with a first dimension, and where that is."""

    def is_tensor(leaf):
        return isinstance(leaf, torch.Tensor)

    batch = tree_map(lambda *each: torch.stack(each) if is_tensor(each[0]) else each[0], *rows)
    return batch, tree_map(lambda leaf: 0 if is_tensor(leaf) else None, rows[0])


@each
def test_vmap_is_a_loop_over_samples(name):
    case = CASES[name]
    for row in range(len(case.rows)):
        samples = [case.arguments(row, seed=seed, needs=False) for seed in range(3)]
        batch, dims = stacked(samples)
        got = tensors_of(torch.func.vmap(derived(name).apply, in_dims=dims)(*batch))
        one_by_one = [tensors_of(case.program(*sample)) for sample in samples]
        expected = [torch.stack(outputs) for outputs in zip(*one_by_one, strict=True)]

        assert differences(got, expected) == []


def test_vmap_may_leave_inputs_alone():
    (x, w, v) = CASES["swiglu"].arguments(needs=False)
    batch = torch.stack([x, 2 * x, -x], dim=1)
    got = torch.func.vmap(derived("swiglu").apply, in_dims=(1, None, None), out_dims=1)(batch, w, v)
    expected = torch.stack([CASES["swiglu"].program(s, w, v) for s in (x, 2 * x, -x)], dim=1)

    assert differences(got, expected) == []


def test_gradients_per_sample_are_a_loop():
    q, p = (torch.stack([x, -x, 2 * x]) for x in CASES["leapfrog"].arguments(needs=False))

    def energy(function):
        return lambda q, p: sum((x**2).sum() for x in function(q, p))

    got = torch.func.vmap(torch.func.grad(energy(derived("leapfrog").apply), argnums=(0, 1)))(q, p)
    plain = torch.func.grad(energy(CASES["leapfrog"].program), argnums=(0, 1))
    expected = [torch.stack(each) for each in zip(*map(plain, q, p), strict=True)]

    assert differences(got, expected) == []


def test_jacobians_are_those_of_the_program():
    (x,) = CASES["softmax"].arguments(needs=False)
    program, function = CASES["softmax"].program, derived("softmax").apply
    for transform in (torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        assert differences(transform(function)(x), transform(program)(x)) == []


# ---- what is saved ----


def saved_by(function, arguments, known):
    """The bytes that hooks of saved tensors see, of memory that `known` and outputs do not own."""
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = function(*arguments)
    for tensor in (*tensors_of(arguments), *tensors_of(outputs), *known):
        seen.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(seen.values())


def cut_of(case, arguments, save):
    return parts_of(capture(case.program, arguments), save).cut


@pytest.mark.quick(8)
@few_then_each
@pytest.mark.parametrize("save", ["auto", "inputs", "everything"])
def test_saved_bytes_are_those_of_the_cut(name, save):
    case, function = CASES[name], derived(name, save).apply
    arguments = case.arguments()
    function(*arguments)

    got = saved_by(function, arguments, [GAIN, OFFSET])

    assert got == cut_of(case, arguments, save).intermediate_bytes
    assert got <= saved_by(case.program, arguments, [GAIN, OFFSET])


@few_then_each
@pytest.mark.parametrize("save", ["inputs", "everything"])
def test_policies_change_no_gradient(name, save):
    case = CASES[name]
    for row in range(len(case.rows)):
        arguments = case.arguments(row)
        function = derived(name, save).apply

        assert differences(function(*arguments), case.program(*arguments), tolerance=1e-12) == []
        assert differences(pulled(function, arguments), pulled(case.program, arguments)) == []


@pytest.mark.quick(3)
@few_then_each
@pytest.mark.parametrize("share", [pytest.param(0, marks=pytest.mark.slow), 0.5])
def test_budget_of_bytes_is_kept(name, share):
    case = CASES[name]
    arguments = case.arguments()
    least, most = (cut_of(case, arguments, save).charged_bytes for save in ("inputs", "everything"))
    budget = int(least + share * (most - least))
    function = derive_function(case.program, *arguments, save=budget).apply
    gradients = pulled(function, arguments)

    assert saved_by(function, arguments, [GAIN, OFFSET]) <= budget
    assert differences(gradients, pulled(case.program, arguments)) == []


def test_budget_of_bytes_holds_for_every_size():
    def program(x):
        return x.sin().exp().tanh() * x.cos()

    derived = derive_function(program, normal(4), save=64)
    for size in (4, 8, 1000):
        x = normal(size) * 1  # no leaf: to keep it costs its bytes
        assert bytes_kept(derived, x) <= 64


def bytes_kept(derived, x):
    """How many a call keeps; none if what it must keep is more than its policy says."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes), id):
        try:
            derived.apply(x)
        except PolicyError:
            return 0
    return sum(kept)


def test_leapfrog_saves_no_intermediate():
    arguments = CASES["leapfrog"].arguments()
    derived("leapfrog").apply(*arguments)

    assert saved_by(derived("leapfrog").apply, arguments, ()) == 0
    assert saved_by(CASES["leapfrog"].program, arguments, ()) > 0


def test_policy_must_be_known():
    with pytest.raises(PolicyError):
        derive_function(CASES["swish"].program, normal(3), save="some")


def test_derive_needs_examples():
    with pytest.raises(CaptureError) as caught:
        derive_function(CASES["swish"].program)

    assert str(caught.value) == (
        "E301 capture: `swish` must be derived with examples of its arguments\n"
        "  expected: derive(program, *examples)\n"
        "  got:      no example\n"
        "  fix:      pass tensors like those it will be called with, and its other arguments"
    )


def test_input_changed_in_place_is_refused():
    def program(x):
        return x.mul_(2)

    with pytest.raises(CaptureError) as caught:
        derive_function(program, torch.randn(3))

    assert str(caught.value) == (
        "E301 capture: `program` must leave its inputs as they are to be derived\n"
        "  got:      `x` changed in place\n"
        "  fix:      work on a clone of `x`, and return it"
    )


# ---- around a call ----


def test_saved_input_changed_later_raises():
    x = normal(4, 3)
    y = 2 * x
    out = derived("swish").apply(y)
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_runs_twice_only_when_told():
    (x,) = CASES["swish"].arguments()
    out = derived("swish").apply(x).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)

    assert differences(torch.autograd.grad(out, x), first, tolerance=0) == []
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, x)


def test_first_call_may_be_inside_checkpoint():
    (x,) = CASES["swish"].arguments()
    D = derive_function(CASES["swish"].program, x)
    got = torch.autograd.grad(checkpoint(D.apply, x, use_reentrant=False).sum(), x)

    assert differences(got, pulled_sum(CASES["swish"].program, x)) == []


def pulled_sum(function, x):
    return torch.autograd.grad(function(x).sum(), x)


def test_capture_hides_from_hooks_around():
    (x,) = CASES["swish"].arguments()
    D = derive_function(CASES["swish"].program, x)
    first = saved_shapes(D.apply, x)

    assert first == saved_shapes(D.apply, x)


def saved_shapes(function, x):
    shapes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(t.shape), lambda _: None):
        function(x)
    return shapes


def test_capture_hides_from_modes_around():
    a, b, c = CASES["matmul_chain"].arguments()
    D = derive_function(CASES["matmul_chain"].program, a, b, c)
    with Count() as count:
        D.apply(a, b, c)

    assert count.products == 2


def test_derived_function_may_be_derived_again():
    inner = derived("swish")

    def outer(x):
        return inner.apply(x) * x

    def plain(x):
        return CASES["swish"].program(x) * x

    (x,) = CASES["swish"].arguments()
    D = derive_function(outer, x)

    assert differences(D.apply(x), plain(x), tolerance=0) == []
    assert differences(pulled(D.apply, (x,)), pulled(plain, (x,))) == []


def test_threads_may_call_at_once():
    case = CASES["swiglu"]
    D = derive_function(case.program, *case.arguments())
    start = threading.Barrier(6)
    found = []

    def work(number):
        needs = [bool((number + 1) >> place & 1) for place in range(3)]
        arguments = case.arguments(number % 2, seed=number, needs=needs)
        start.wait()
        for _ in range(3):
            got = [D.apply(*arguments), pulled(D.apply, arguments)]
            found.append(
                differences(got, [case.program(*arguments), pulled(case.program, arguments)])
            )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [[]] * 18


# ---- torch.compile ----


def compiled(function):
    return torch.compile(
        lambda *arguments: function(*arguments), backend="aot_eager", fullgraph=True
    )


@pytest.mark.quick(3)
@few_then_each
def test_compiled_call_is_that_of_the_program(name):
    case = CASES[name]
    function = compiled(derived(name).apply)
    for row in range(len(case.rows)):
        arguments = case.arguments(row)
        got, expected = function(*arguments), case.program(*arguments)

        assert differences(got, expected) == []
        assert differences(pulled(function, arguments), pulled(case.program, arguments)) == []


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False)], ids=str)
def test_compiled_call_serves_subsets_of_inputs(needs):
    arguments = CASES["swiglu"].arguments(needs=needs)
    got = pulled(compiled(derived("swiglu").apply), arguments)

    assert differences(got, pulled(CASES["swiglu"].program, arguments)) == []


def test_compiled_call_serves_other_plain_values():
    (x, _) = CASES["leaky_relu"].arguments()
    function = compiled(derived("leaky_relu").apply)
    for slope in (0.1, 0.3):
        assert differences(function(x, slope), CASES["leaky_relu"].program(x, slope)) == []


def test_compiled_call_serves_other_sizes():
    case = CASES["causal_attention"]
    function = compiled(derived("causal_attention").apply)
    for row in (0, 1):
        arguments = case.arguments(row)
        assert differences(function(*arguments), case.program(*arguments)) == []


def test_compiled_call_serves_broadcasting():
    def program(x, w):
        return (x * w).sin()

    D = derive_function(program, normal(3, 4), normal(3, 4))
    x, w = normal(3, 4), normal(1, 4)
    function = compiled(D.apply)

    assert differences(function(x, w), program(x, w)) == []
    assert differences(pulled(function, (x, w)), pulled(program, (x, w))) == []


def test_compiled_call_serves_other_dtypes_and_ranks():
    program = CASES["swish"].program
    for x in (normal(2, 3, 2), normal(5, dtype=torch.float32)):
        assert differences(compiled(derived("swish").apply)(x), program(x), tolerance=1e-6) == []


def test_most_common_cases_are_enough():
    assert len(CASES) >= 60
    assert 3 * len(COMMON) >= len(CASES) / 2


# ---- what a call is made under ----


def test_program_may_switch_autocast_off():
    def program(x, w):
        with torch.autocast("cpu", enabled=False):
            return (x @ w).exp()

    x, w = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    derived = derive_function(program, x, w)
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = derived.apply(x, w), program(x, w)
        again = torch.autograd.grad(got.sum(), (x, w))

    assert got.dtype is torch.float32
    assert torch.equal(got, expected)
    assert differences(again, torch.autograd.grad(expected.sum(), (x, w)), tolerance=1e-6) == []


def test_without_recording_the_program_runs():
    def program(x):
        return x * 2 if torch.is_grad_enabled() else x * 3

    x = torch.randn(3, requires_grad=True)
    derived = derive_function(program, x)
    with torch.no_grad():
        got = derived.apply(x)

    assert torch.equal(got, 3 * x)
    assert torch.equal(derived.apply(x), 2 * x)


def test_second_derivative_sees_the_numbers_of_forward():
    def program(x):
        return torch.nn.functional.dropout(x, 0.5) * x.exp()

    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    derived = derive_function(program, x)
    found = []
    for call in (derived.apply, program):
        torch.manual_seed(3)
        (first,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append([first, second, torch.rand(2)])

    assert differences(*found) == []


def test_function_class_is_derived_from_its_forward():
    class TwoOf(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            step = (x > 0).to(x.dtype)
            ctx.mark_non_differentiable(step)
            return (x * w).sin(), step

    x, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    derived = derive_function(TwoOf, x, w)
    outputs = derived.apply(x, w)

    assert derived.__name__ == "TwoOf"
    assert [y.requires_grad for y in outputs] == [True, False]
    assert "def forward(ctx, x, w):" in derived.source()
    assert torch.autograd.gradcheck(lambda x, w: derived.apply(x, w)[0], (x, w))
