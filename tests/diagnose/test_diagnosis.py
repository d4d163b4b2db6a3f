"""Every planted fault is named, with the edit that repairs it; right Functions have none."""

import ast
import functools
from pathlib import Path

import pytest
import torch
from torch import fx
from torch.autograd import Function

from examples.my_activation import MyActivationAsPublished
from examples.my_complex_op import MyComplexOpAsPublished
from pullback.diagnose.diagnosis import diagnose
from pullback.diagnose.edit_search import Edit
from pullback.diagnose.fault import Faults
from pullback.diagnose.repairs import RepairSearch
from pullback.errors import CaptureError
from pullback.function.plain import plain_program
from pullback.function.signature import forward_signature
from tests.diagnose import faulty, odd
from tests.diagnose.faulty import EXAMPLES, row
from tests.diagnose.odd import ODD
from tests.diagnose.planted import PLANTED
from tests.diagnose.sound import SOUND

ENOUGH = 60.0  # seconds for a search that ends by itself

MANY = [  # every third for `make test-all` alone
    pytest.param(f, marks=pytest.mark.slow if place % 3 == 2 else (), id=f.__name__)
    for place, f in enumerate(EXAMPLES)
]
MENDED = [m for m in MANY if any(edit for _, edit in PLANTED[m.id].values())]


@functools.cache
def faults_of(function: type) -> Faults:
    """The faults of a planted Function, found once."""
    return diagnose(function, *EXAMPLES[function], seconds=ENOUGH)


def spaced(words):
    """`words`, with the code in them written in one way: `x ** 2` for `x**2`."""
    parts = words.split("`")
    parts[1::2] = [ast.unparse(ast.parse(part)) for part in parts[1::2]]
    return "`".join(parts)


def run_edited(edit: Edit, tensors, cotangents):
    """The gradients that the changed graph gives."""
    graph = fx.GraphModule({}, edit.graph.graph)
    return graph(*tensors, *cotangents)[edit.graph.output_count :]


def derived(function, arguments, cotangents):
    """The gradients that autograd gives through the forward; zeros where it gives none."""
    wanted = [leaf for leaf in arguments if isinstance(leaf, torch.Tensor)]
    outputs = plain_program(function)(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return torch.autograd.grad(outputs, wanted, cotangents, materialize_grads=True)


def fresh(example, seed):
    """An argument like `example`, of other values of the same signs."""
    if not isinstance(example, torch.Tensor):
        return example
    generator = torch.Generator().manual_seed(seed)
    factor = torch.rand(example.shape, generator=generator, dtype=torch.float64) + 0.5
    return (example * factor).requires_grad_()


# ---- planted faults ----


@pytest.mark.quick(18)
@pytest.mark.parametrize("function", MANY)
def test_planted_fault_is_named(function):
    expected = PLANTED[function.__name__]

    found = {f.input: (f.pattern, str(f.edit or "")) for f in faults_of(function)}

    assert {key: tuple(map(spaced, words)) for key, words in found.items()} == {
        key: tuple(map(spaced, words)) for key, words in expected.items()
    }


@pytest.mark.parametrize("function", MENDED)
@pytest.mark.parametrize("seed", [5, 6])
def test_edit_makes_gradient_right(function, seed):
    arguments = [fresh(example, seed + k) for k, example in enumerate(EXAMPLES[function])]
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    outputs = function.apply(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = [torch.randn_like(output) for output in outputs]
    expected = derived(function, arguments, cotangents)
    names = forward_signature(function).names

    for fault in faults_of(function):
        place = names.index(fault.input)
        got = run_edited(fault.edit, [t.detach() for t in tensors], cotangents)[place]
        got = torch.zeros_like(expected[place]) if got is None else got

        assert torch.allclose(got, expected[place], rtol=1e-9, atol=1e-12)


def test_every_planted_function_is_pinned():
    assert {function.__name__ for function in EXAMPLES} == set(PLANTED)


def test_one_wrong_element_is_found():
    (fault,) = faults_of(faulty.OneOfAThousand)

    assert (fault.element, fault.wrong, fault.total) == ((617,), 1, 1000)


def test_worst_element_and_values_are_given():
    (fault,) = diagnose(faulty.SquareWithoutTwo, torch.tensor([1.0, -8.0, 2.0]))

    off = (fault.witness.expected[0] - fault.witness.got[0]).abs()
    assert fault.element == (int(off.argmax()),)
    assert fault.expected == pytest.approx(2 * fault.got)
    assert fault.off == pytest.approx(abs(fault.got))
    assert (fault.wrong, fault.total) == (3, 3)


class SineMinusTwice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -(g * x.cos() + g * x.cos())


def test_negative_factor_is_divided_out():
    (fault,) = diagnose(SineMinusTwice, torch.linspace(-2, 2, 7), seconds=ENOUGH)

    assert fault.edit.text == "multiply by -0.5"


def test_place_is_line_of_edit():
    (fault,) = faults_of(faulty.SineWithSavedSine)
    lines = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()
    file, line = fault.place.split(":")

    assert file == "faulty.py"
    assert lines[int(line) - 1].strip() == "return 2 * s * torch.cos(s) * g"


def test_fault_only_at_other_sizes_is_found():
    (fault,) = faults_of(faulty.MeanOfFour)

    assert fault.total == 20
    assert diagnose(faulty.MeanOfFour, row(8, 3), seconds=ENOUGH)[0].total == 24


# ---- the published examples ----


def test_saved_sine_of_published_example():
    (fault,) = diagnose(MyComplexOpAsPublished, torch.linspace(-3, 3, 9), seconds=ENOUGH)

    assert str(fault) == (
        "the gradient of `x` is wrong: the saved `sine` is used where the input `x` is needed\n"
        "  at:       my_complex_op.py:47\n"
        f"  expected: {fault.expected:.6g} at {list(fault.element)}\n"
        f"  got:      {fault.got:.6g}, off by {fault.off:.6g}; 8 of 9 elements wrong\n"
        "  fix:      use `x` instead of `sine` in `sine.cos()`, and save `x`"
    )


def test_missing_summand_of_published_example():
    (fault,) = diagnose(MyActivationAsPublished, torch.linspace(-4, 4, 9), seconds=ENOUGH)

    assert spaced(fault.pattern) == (
        "the derivative of `(x.exp() + 1) ** (-0.5)` is missing, as if it were a constant"
    )
    assert spaced(fault.edit.text) == (
        "subtract `cotangent * sigmoid * (0.5 * (x.exp() + 1) ** (-1.5)) * x.exp()`"
    )
    assert fault.edit.is_small


# ---- Functions that are right ----


@pytest.mark.parametrize("function", SOUND, ids=lambda function: function.__name__)
def test_sound_function_has_no_fault(function):
    assert list(diagnose(function, *SOUND[function])) == []


# ---- how it is called ----


class MeanOfRowsWithSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.count = x.shape[1]
        return x.mean(1)

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(1).expand(g.shape[0], ctx.count)


class ProductWithoutFactors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * b

    @staticmethod
    def backward(ctx, g):
        return g, g


class TwoStepsWrong(torch.autograd.Function):
    """Too long for one line, and too wrong for one edit."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        for _ in range(4):
            x = (0.9 * x).sin() + 0.1 * x
        return x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.cosh() - 3 * x.tan())


def test_same_call_gives_same_faults():
    again = diagnose(faulty.GateWithoutSecond, *EXAMPLES[faulty.GateWithoutSecond], seconds=ENOUGH)

    assert again == faults_of(faulty.GateWithoutSecond)


def test_global_random_state_is_kept():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    diagnose(faulty.SquareWithoutTwo, row(5))

    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_and_threads_stay_as_they_are():
    x = row(5).requires_grad_()
    kept, threads = x.detach().clone(), torch.get_num_threads()
    diagnose(faulty.SquareWithoutTwo, x)

    assert torch.equal(x, kept)
    assert x.grad is None
    assert torch.get_num_threads() == threads


def test_without_time_numbers_alone_are_told():
    faults = diagnose(faulty.SineWithSavedSine, row(5), seconds=0)

    assert [fault.edit for fault in faults] == [None]
    assert faults[0].off > 0
    assert faults.reason == "the time was up before everything was tried"


def test_derived_gradient_is_no_small_edit():
    (fault,) = faults_of(faulty.SeveralThingsAtOnce)

    assert not fault.edit.is_small


def test_only_required_gradients_are_looked_at():
    a, b = row(5).requires_grad_(), row(5, seed=2)

    assert not diagnose(faulty.ProductWithNone, a, b)
    assert [f.input for f in diagnose(faulty.ProductWithNone, a.detach(), b)] == ["b"]


def test_large_examples_are_searched_on_small_ones():
    (fault,) = diagnose(faulty.SineWithSavedSine, row(300, 1000), seconds=ENOUGH)

    assert (fault.pattern, str(fault.edit)) == PLANTED["SineWithSavedSine"]["x"]
    assert fault.total == 300_000


def test_single_precision_examples_are_doubled():
    (fault,) = diagnose(faulty.SquareWithoutTwo, row(5).to(torch.bfloat16))

    assert fault.pattern == "1/2 times what it should be"


def test_long_derived_gradient_is_listed():
    (fault,) = diagnose(TwoStepsWrong, row(5), seconds=ENOUGH)

    first, *lines = fault.edit.text.splitlines()
    assert first == "return what is derived:"
    assert lines[-1] == "return grad_x"
    assert str(fault).endswith("\n              return grad_x")


def test_fault_of_unlike_shapes_shows_no_numbers():
    (fault,) = faults_of(faulty.LinearTransposed)

    assert str(fault) == (
        "the gradient of `w` is wrong: transposed: the shape is [6, 5] instead of [5, 6]\n"
        f"  at:       {fault.place}\n"
        "  fix:      return `(x.T @ g).T`"
    )


def test_program_that_is_no_function_is_refused():
    with pytest.raises(CaptureError) as caught:
        diagnose(torch.sin, row(3))

    assert str(caught.value) == (
        "E301 capture: `sin` must be a Function class to be diagnosed\n"
        "  got:      builtin_function_or_method\n"
        "  fix:      pass the class itself, and the arguments after it"
    )


# ---- Functions of odd kinds ----


@pytest.mark.parametrize("function", ODD, ids=lambda function: function.__name__)
def test_odd_function_is_told_about(function):
    examples, expected = ODD[function]

    faults = diagnose(function, *examples, seconds=ENOUGH)

    said = faults.reason or "".join(fault.pattern for fault in faults)
    assert said[: len(expected) or None] == expected


@pytest.mark.parametrize("function", [odd.SingleNumpySine, odd.SoftmaxInSingle])
def test_odd_sound_function_has_no_fault(function):
    faults = diagnose(function, *ODD[function][0])

    assert faults.is_judged
    assert list(faults) == []


def test_square_examples_name_the_right_size():
    (fault,) = diagnose(MeanOfRowsWithSum, row(5, 5), seconds=ENOUGH)

    assert fault.pattern == "`x.shape[1]` times what it should be"
    assert fault.edit.text == "divide by `x.shape[1]`"


def test_equal_examples_name_the_right_input():
    faults = diagnose(ProductWithoutFactors, torch.ones(5), torch.ones(5), seconds=ENOUGH)

    texts = {fault.input: fault.edit.text for fault in faults}
    assert texts == {"a": "multiply by `b`, and save `b`", "b": "multiply by `a`, and save `a`"}


def test_failure_of_search_leaves_the_numbers(monkeypatch):
    def fail(self):
        raise KeyError("lost")

    monkeypatch.setattr(RepairSearch, "find", fail)
    faults = diagnose(faulty.SquareWithoutTwo, row(5), seconds=ENOUGH)

    assert [fault.pattern for fault in faults] == ["1/2 times what it should be"]
    assert faults.reason == "not everything could be tried: KeyError: 'lost'"
