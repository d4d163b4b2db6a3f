"""Second and further derivatives are right, through hand-written Functions too."""

import gc

import pytest
import torch
import torch.nn.functional as F

from pullback.derive.backward import derive_function
from pullback.derive.second import pull_again, push, with_history
from pullback.errors import DoubleBackwardError
from pullback.function.function import Function
from tests.derive.functions import (
    CASES,
    COMMON_THEN_EVERY,
    GAIN,
    MANY_THEN_EVERY,
    SOME_THEN_EVERY,
    ExpSquare,
    RoundThrough,
    derived,
    differences,
    inputs_of,
    pulled_twice,
    tensors_of,
    weights_for,
)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def truth_of(case):
    return case.truth or case.program


# ---- derived Functions ----


@pytest.mark.parametrize("name", SOME_THEN_EVERY)
def test_second_derivatives_are_those_of_autograd(name):
    case = CASES[name]
    for row in range(len(case.rows)):
        arguments = case.arguments(row)
        got, expected = (pulled_twice(f, arguments) for f in (derived(name).apply, truth_of(case)))

        assert differences(got, expected, tolerance=1e-8) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY_THEN_EVERY)
def test_second_derivatives_serve_subsets_of_inputs(name):
    case = CASES[name]
    for needs in case.patterns:
        arguments = case.arguments(needs=needs)
        got, expected = (pulled_twice(f, arguments) for f in (derived(name).apply, truth_of(case)))

        assert differences(got, expected, tolerance=1e-8) == [], needs


POLICIES = [  # of the common programs one policy each, in turn
    pytest.param(each.values[0], save, marks=each.marks or (pytest.mark.slow if late else ()))
    for place, each in enumerate(COMMON_THEN_EVERY)
    for save, late in (("inputs", place % 2 == 1), ("everything", place % 2 == 0))
]


@pytest.mark.parametrize(("name", "save"), POLICIES)
def test_second_derivatives_serve_every_policy(name, save):
    case = CASES[name]
    arguments = case.arguments()
    got = pulled_twice(derived(name, save).apply, arguments)

    assert differences(got, pulled_twice(truth_of(case), arguments), tolerance=1e-8) == []


@pytest.mark.parametrize("name", ["swish", "layer_norm", "attention", "leapfrog", "moments"])
def test_numbers_agree_with_second_derivatives(name):
    arguments = CASES[name].arguments()

    assert torch.autograd.gradcheck(derived(name).apply, arguments)
    assert torch.autograd.gradgradcheck(derived(name).apply, arguments)


@pytest.mark.parametrize("name", ["snake", "gelu_tanh", "with_saved", "quantized"])
def test_fourth_derivative_is_that_of_autograd(name):
    case = CASES[name]
    arguments = case.arguments()

    def derivatives(function):
        x, total, found = arguments[0], function(*arguments).sum(), []
        for _ in range(4):
            (gradient,) = torch.autograd.grad(total, x, create_graph=True, allow_unused=True)
            found.append(gradient)
            if gradient is None or not gradient.requires_grad:
                break
            total = (gradient * (1 + x)).sum()
        return found

    got, expected = derivatives(derived(name).apply), derivatives(truth_of(case))

    assert differences(got, expected, tolerance=1e-8) == []


def test_closures_are_differentiated_twice():
    (x,) = CASES["calibrated"].arguments()

    def mixed(function):
        (first,) = torch.autograd.grad(function(x).sum(), GAIN, create_graph=True)
        return torch.autograd.grad(first.sum(), (x, GAIN))

    got = mixed(derived("calibrated").apply)

    assert differences(got, mixed(CASES["calibrated"].program)) == []


def test_one_tensor_twice_is_differentiated_twice():
    def program(x, y):
        return x**2 * y.sin()

    x = normal(3)
    D = derive_function(program, normal(3), normal(3))

    def second(function):
        (first,) = torch.autograd.grad(function(x, x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    assert differences(second(D.apply), second(program)) == []


def noisy(x):
    """Half of the squares, scaled."""
    return F.dropout(x**2, 0.5) * torch.rand_like(x)


@pytest.mark.parametrize("save", ["auto", "inputs", "everything"])
def test_second_backward_sees_the_numbers_of_forward(save):
    x = normal(50)
    D = derive_function(noisy, x, save=save)

    def both(function):
        torch.manual_seed(3)
        out = function(x).sum()
        state = torch.get_rng_state()
        (first,) = torch.autograd.grad(out, x, create_graph=True)
        untouched = torch.equal(state, torch.get_rng_state())
        return first, *torch.autograd.grad(first.sum(), x), untouched

    assert differences(both(D.apply), both(noisy)) == []


# ---- when an input is gone ----


def test_outputs_alone_are_enough_if_saved():
    def program(x):
        return x.exp()

    x = normal(3)
    out = derive_function(program, x).apply(2 * x)
    gc.collect()
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)

    assert differences(torch.autograd.grad(first.sum(), x), [4 * (2 * x).exp()]) == []


def test_everything_holds_inputs_for_a_second_derivative():
    def program(x):
        return (x.exp() + 1).log()

    x = normal(3)
    out = derive_function(program, x, save="everything").apply(2 * x)
    gc.collect()
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    slope = torch.sigmoid(2 * x)

    assert differences(torch.autograd.grad(first.sum(), x), [4 * slope * (1 - slope)]) == []


def test_lost_intermediate_is_an_error():
    def program(x):
        return x.sum(-1).sin().exp()

    x = normal(3, 50)
    out = derive_function(program, x).apply(2 * x)
    gc.collect()
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)

    with pytest.raises(DoubleBackwardError):
        torch.autograd.grad(first.sum(), x)


def test_changed_input_is_not_used_again():
    def program(x):
        return x.exp()

    x = normal(3)
    y = 2 * x
    out = derive_function(program, x).apply(y)
    y.mul_(3)
    (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)

    assert differences(torch.autograd.grad(first.sum(), x), [4 * (2 * x).exp()]) == []


# ---- the parts ----


def test_function_of_ours_has_history_already():
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * cotangent

    assert with_history(Double) is Double


def test_shadow_has_the_methods_of_the_function():
    shadow = with_history(ExpSquare)

    assert issubclass(shadow, Function)
    assert shadow.__name__ == "ExpSquare"
    assert shadow.backward is not None
    assert with_history(ExpSquare) is shadow


def test_shadow_gives_history_to_intermediates():
    x = normal(3)

    def first(function):
        return torch.autograd.grad(function(x).sum(), x, create_graph=True)[0]

    (got,) = torch.autograd.grad(first(with_history(ExpSquare).apply).sum(), x)

    assert differences(got, 4 * (2 * x).exp()) == []
    assert not first(ExpSquare.apply).requires_grad


def on_row(case, arguments):
    """The program of a case on its row of inputs."""

    def run(row):
        return [y for y in tensors_of(truth_or_program(case)(*row)) if y.is_floating_point()]

    def truth_or_program(case):
        return case.program

    return run


@pytest.mark.parametrize("name", ["swiglu", "leapfrog", "with_saved", "quantized"])
def test_pull_again_can_be_differentiated(name):
    case = CASES[name]
    inputs = inputs_of(case.arguments())

    def twice(pull):
        cotangents = [c.requires_grad_() for c in weights_for(tensors_of(case.program(*inputs)))]
        first = [g for g in pull(cotangents) if g is not None]
        second = torch.autograd.grad(
            first, [*inputs, *cotangents], weights_for(first, 8), allow_unused=True
        )
        return [*first, *second]

    def plain(cotangents):
        outputs = tensors_of(truth_of(case)(*inputs))
        return torch.autograd.grad(outputs, inputs, cotangents, create_graph=True)

    got = twice(lambda cotangents: pull_again(on_row(case, inputs), inputs, cotangents))

    assert differences(got, twice(plain), tolerance=1e-8) == []


def test_pull_again_gives_what_is_wanted():
    x, y = normal(3), normal(3)
    got = pull_again(
        lambda row: [row[0] * row[1]], [x, y], [torch.ones_like(x)], wanted=[False, True]
    )

    assert differences(got, [None, x]) == []
    assert got[1].requires_grad


def test_pull_again_need_not_be_recorded():
    x = normal(3)
    got = pull_again(lambda row: [row[0].sin()], [x], [torch.ones_like(x)], record=False)

    assert differences(got, [x.cos()]) == []
    assert not got[0].requires_grad


def test_pull_again_leaves_out_what_nobody_needs():
    x, y = normal(3), normal(3).detach()

    def program(row):
        return [row[0] * row[1], row[1].sin()]

    got = pull_again(program, [x, y], [torch.ones_like(x), None])

    assert differences(got, [y, None]) == []
    assert pull_again(program, [x, y], [None, torch.ones_like(x)]) == [None, None]


@pytest.mark.parametrize("name", ["swiglu", "leapfrog", "with_saved", "quantized"])
def test_push_is_forward_mode(name):
    case = CASES[name]
    inputs = inputs_of(case.arguments(needs=False))
    tangents = weights_for(inputs)
    got = push(on_row(case, inputs), inputs, tangents)
    expected = torch.func.jvp(
        lambda *row: tuple(tensors_of(truth_of(case)(*row))), tuple(inputs), tuple(tangents)
    )[1]

    assert differences(got, list(expected)) == []


def test_push_needs_no_tangent_for_every_input():
    x, y = normal(3).detach(), normal(3).detach()

    def program(row):
        return [row[0] * row[1], row[1].sin()]

    tangent = torch.ones_like(x)

    assert differences(push(program, [x, y], [tangent, None]), [y, None]) == []


def test_surrogate_gradient_stays_in_every_order():
    def program(x):
        return RoundThrough.apply(x**2)

    x = normal(3)
    D = derive_function(program, x)
    (first,) = torch.autograd.grad(D.apply(x).sum(), x, create_graph=True)

    assert differences(first, 2 * x) == []
    assert differences(torch.autograd.grad(first.sum(), x), [torch.full_like(x, 2)]) == []


# ---- what is detached ----


def detaching(h, y):
    return h + y.exp() * y.exp().detach()


def idle(x, y):
    return x.sin().detach() + y.exp() * y.exp().detach()


def twice(function, *args):
    y = args[-1]
    out = function(*args)
    (first,) = torch.autograd.grad(out, y, torch.ones_like(out), create_graph=True)
    return torch.autograd.grad(first.sum(), y)


@pytest.mark.parametrize("program", [detaching, idle])
def test_what_is_detached_stays_so_in_the_second_derivative(program):
    x, y = normal(3), normal(3)
    D = derive_function(program, x, y)

    assert differences(twice(D.apply, x, y), twice(program, x, y)) == []


def test_detaching_program_whose_input_is_gone_is_not_differentiated_twice():
    x, y = normal(3), normal(3)
    D = derive_function(detaching, x, y)

    with pytest.raises(DoubleBackwardError, match="`detaching`, which detaches, must be run again"):
        twice(lambda x, y: D.apply(x * 1, y), x, y)


def test_everything_holds_the_inputs_of_a_detaching_program():
    x, y = normal(3), normal(3)
    D = derive_function(detaching, x, y, save="everything")

    assert differences(twice(lambda x, y: D.apply(x * 1, y), x, y), twice(detaching, x, y)) == []
