"""Right gradients are proved, wrong ones refuted by numbers, and what is neither is said."""

import contextlib
import dataclasses
import math
import threading

import pytest
import torch
from torch.nn import functional as F

from examples.combined import CombinedFunction
from examples.hybrid import ComplexFunction
from examples.my_activation import MyActivation, MyActivationAsPublished
from examples.my_complex_op import MyComplexOp, MyComplexOpAsPublished
from examples.my_elementwise import MyElementWise, MyElementWiseInCppNames
from examples.my_function import MyFunction
from examples.my_relu import MyReLU
from examples.nested import SineFunction, SquareFunction
from pullback.errors import TargetError
from pullback.prove import prove, zero_test
from tests.prove.proofs import (
    ALMOST,
    ONE,
    PLANTED,
    POSITIVE,
    ROWS,
    SOUND,
    TWO,
    assert_witness_holds,
    drawn,
    function,
    is_right,
    norm_backward,
    softmax_backward,
    stable_softmax,
    std_backward,
)

# ---- sound functions ----


# Others use the same methods: these need them for longer.
LONG = ("sigmoid", "tangent", "gelu by tanh", "mish", "power", "hypotenuse", "log-softmax",
        "scaled layer norm", "rms norm", "CombinedFunction", "MyActivation",
        "MyElementWiseInCppNames")  # fmt: skip


def slow_if_long(names):
    """Names as parameters, the long ones marked slow."""
    return [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in names]


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", slow_if_long(SOUND))
def test_sound_function_is_proved(name):
    forward, backward, examples = SOUND[name]
    cls = function(forward, backward)

    assert is_right(cls, examples)
    assert prove(cls, *examples, seconds=60).verdict == "proved"


EXAMPLES = {
    MyElementWise: TWO,
    MyElementWiseInCppNames: TWO,
    MyActivation: ONE,
    MyComplexOp: ONE,
    CombinedFunction: TWO,
    SquareFunction: ONE,
    SineFunction: ONE,
    ComplexFunction: TWO,
    MyReLU: ONE,
    MyFunction: (*ONE, 3),
}


@pytest.mark.parametrize("name", slow_if_long(cls.__name__ for cls in EXAMPLES))
def test_sound_example_is_proved(name):
    cls = next(cls for cls in EXAMPLES if cls.__name__ == name)

    assert prove(cls, *EXAMPLES[cls], seconds=60).verdict == "proved"


@pytest.mark.parametrize("name", ALMOST)
def test_proviso_says_where_nothing_is_shown(name):
    forward, backward, examples, proviso = ALMOST[name]
    cls = function(forward, backward)
    proof = prove(cls, *examples, seconds=60)

    assert is_right(cls, examples)
    assert proof.verdict == "proved"
    assert proviso in proof.provisos


def test_equal_poles_need_no_proviso():
    inverse = function(torch.reciprocal, lambda x, g: -g / x**2)

    assert prove(inverse, *POSITIVE, seconds=60).provisos == ()


def test_stable_softmax_is_not_refuted():
    examples = drawn((1, 2))
    cls = function(stable_softmax, softmax_backward)

    assert is_right(cls, examples)
    assert prove(cls, *examples, seconds=2).verdict in ("proved", "unknown")


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        pytest.param(lambda x: x.std(-1), std_backward, marks=pytest.mark.slow),
        (lambda x: x.norm(dim=-1), norm_backward),
        (lambda x: torch.log(x * x), lambda x, g: 2 * g / x),
        (lambda x: torch.where(x > 0, torch.exp(x), x), lambda x, g: g * torch.exp(F.relu(x))),
        (torch.erfc, lambda x, g: -2 / math.sqrt(math.pi) * torch.exp(-x * x) * g),
        (torch.atan, lambda x, g: g / (1 + x * x)),
    ],
    ids=["deviation", "length", "logarithm", "two branches", "error function", "arc"],
)
def test_sound_function_is_not_refuted(forward, backward):
    cls = function(forward, backward)
    examples = drawn((2, 3))

    assert is_right(cls, examples)
    assert prove(cls, *examples, seconds=20).verdict in ("proved", "unknown")


# ---- planted faults ----


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_refuted(name):
    forward, backward, examples = PLANTED[name]
    cls = function(forward, backward)
    proof = prove(cls, *examples, seconds=60)

    assert proof.verdict == "refuted"
    assert_witness_holds(cls, proof.witness, ["x", "y", "z"][: len(examples)])


@pytest.mark.parametrize("cls", [MyActivationAsPublished, MyComplexOpAsPublished])
def test_published_example_is_refuted(cls):
    proof = prove(cls, *ONE)

    assert proof.verdict == "refuted"
    assert_witness_holds(cls, proof.witness, ["x"])


def test_each_gradient_is_judged_by_itself():
    cls = function(torch.mul, lambda x, y, g: (g * y, 2 * g * x))
    proof = prove(cls, *TWO)

    assert {n: j.verdict for n, j in proof.gradients.items()} == {"x": "proved", "y": "refuted"}
    assert proof.witness.input == "y"


def test_witness_has_short_numbers():
    witness = prove(function(torch.square, lambda x, g: x * g), *ONE).witness
    numbers = [*witness.inputs["x"], *witness.cotangents[0]]

    assert all(number == round(number) for number in numbers)


# ---- neither ----


def nothing(x, g):
    return g


@pytest.mark.parametrize(
    ("forward", "backward", "examples", "reason"),
    [
        (torch.mm, lambda x, y, g: (g @ y.T, x.T @ g), drawn((2, 3), (3, 2)), "`mm`"),
        (lambda x: x[..., [1, 0]], lambda x, g: g[..., [1, 0]], drawn((2, 2)), "`index"),
        (lambda x: x.sort().values, nothing, ONE, "`"),
        (lambda x: x * torch.rand_like(x), nothing, ONE, "`rand_like`"),
        (lambda x: x.masked_fill(x > 0, math.inf).exp(), nothing, ONE, "the number inf"),
    ],
    ids=["matrix product", "index", "sort", "random", "infinity"],
)
def test_reason_names_what_is_outside(forward, backward, examples, reason):
    proof = prove(function(forward, backward), *examples)

    assert proof.verdict == "unknown"
    assert reason in proof.reason


def test_one_unreadable_gradient_leaves_the_others():
    def backward(x, y, g):
        return g.sum() * torch.ones_like(x), torch.linalg.inv(g.expand(2, 2) + torch.eye(2))[0, 0]

    proof = prove(function(lambda x, y: x.sum() + y, backward), *drawn((3,), ()))

    assert proof.gradients["x"].verdict == "proved"
    assert proof.gradients["y"].verdict == "unknown"


def test_complex_input_is_unknown():
    x = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    proof = prove(SquareFunction, x)

    assert (proof.verdict, proof.reason) == ("unknown", "complex input `x`")


def test_value_dependence_is_unknown():
    cls = function(lambda x: x if x.sum() > 0 else -x, nothing)
    proof = prove(cls, *ONE)

    assert proof.verdict == "unknown"
    assert "no graph" in proof.reason


def test_many_elements_are_unknown():
    cls = function(lambda x: x.reshape(10, 20).sum(), lambda x, g: g.expand(200))
    proof = prove(cls, *drawn((200,)))

    assert proof.verdict == "unknown"
    assert "shapes" in proof.reason


def test_rounded_constant_is_unknown():
    def backward(x, g):
        return g * (0.5 * (1 + torch.erf(x * 0.70710678)) + x * torch.exp(-x * x / 2) * 0.3989423)

    proof = prove(function(F.gelu, backward), *ONE)

    assert proof.verdict == "unknown"
    assert "rounded constant" in proof.reason


def test_numbers_alone_prove_nothing(monkeypatch):
    monkeypatch.setattr(zero_test, "METHODS", [])
    cls = function(torch.tanh, lambda x, g: g / torch.cosh(x) ** 2)
    proof = prove(cls, *ONE)

    assert proof.verdict == "unknown"
    assert "no way found" in proof.reason


# ---- the limit of time ----


def endless(expression):
    while True:
        with contextlib.suppress(Exception):
            expression += 0


def test_endless_method_is_stopped(monkeypatch):
    monkeypatch.setattr(zero_test, "METHODS", [(endless, 1.0)])
    before = threading.active_count()
    cls = function(torch.tanh, lambda x, g: g / torch.cosh(x) ** 2)
    proof = prove(cls, *ONE, seconds=1)

    assert (proof.verdict, proof.reason) == ("unknown", "gradient of `x`: time limit")
    assert threading.active_count() == before


def test_no_time_is_unknown():
    proof = prove(SineFunction, *ONE, seconds=0)

    assert (proof.verdict, proof.reason) == ("unknown", "gradient of `x`: time limit")


def test_proof_works_on_any_thread():
    proofs = []
    threads = [
        threading.Thread(target=lambda cls=cls: proofs.append(prove(cls, *ONE)))
        for cls in (MyComplexOp, MyComplexOpAsPublished)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(proof.verdict for proof in proofs) == ["proved", "refuted"]


# ---- what is asked and what is said ----


def test_pair_is_compared_with_its_reference():
    def right(x):
        return MyComplexOp.apply(x) / 2

    assert prove((right, lambda x: torch.sin(x) ** 2 / 2), *ONE).verdict == "proved"
    assert prove((right, lambda x: torch.sin(x) ** 2), *ONE).verdict == "refuted"


def test_pair_of_other_outputs_is_unknown():
    proof = prove((SquareFunction, lambda x: (x, x)), *ONE)

    assert proof.verdict == "unknown"
    assert "outputs" in proof.reason


def test_plain_function_needs_a_reference():
    with pytest.raises(TargetError) as raised:
        prove(torch.sin, *ONE)

    assert str(raised.value) == (
        "E401 target: what is proved must be a Function class, "
        "or a pair of a program and its reference\n"
        "  got:      `sin`\n"
        "  fix:      give the plain function of the same values too: "
        "`pb.prove((program, plain), ...)`"
    )


@pytest.mark.parametrize(
    ("cls", "examples", "scope"),
    [
        (SineFunction, drawn((500, 300)), "for every size from 2 on, in 2 dimensions"),
        (
            MyElementWise,
            drawn((500,), (500,)),
            "for every size from 2 on common to all inputs, in 1 dimension",
        ),
        (MyElementWise, drawn((), ()), "for tensors without dimensions"),
        (MyElementWise, drawn((500, 7), (7,)), "for shapes x [2, 3], y [3]"),
        (MyElementWise, drawn((5, 1), (7,)), "for shapes x [2, 1], y [3]"),
        (function(torch.sum, lambda x, g: g.expand_as(x)), ROWS, "for shapes x [2, 3]"),
    ],
    ids=["one input", "two inputs", "no dimensions", "broadcasting", "size one", "sum"],
)
def test_scope_says_for_which_shapes(cls, examples, scope):
    proof = prove(cls, *examples)

    assert (proof.verdict, proof.scope) == ("proved", scope)


def test_formula_with_sizes_is_not_for_every_shape():
    cls = function(lambda x: x * x.shape[0], lambda x, g: g * x.shape[0])

    assert prove(cls, *drawn((4,))).scope == "for shapes x [4]"


def test_inputs_without_gradient_stay_variables():
    x, y = TWO
    proof = prove(MyElementWise, x, y.detach())

    assert {n: j.verdict for n, j in proof.gradients.items()} == {"x": "proved"}


def test_examples_may_need_no_gradient():
    proof = prove(MyElementWise, *(x.detach() for x in TWO))

    assert list(proof.gradients) == ["x", "y"]


def test_single_precision_and_whole_numbers_are_taken():
    cls = function(
        lambda x, mask: torch.where(mask, x * x, x),
        lambda x, mask, g: (torch.where(mask, 2 * x, torch.ones_like(x)) * g, None),
    )
    proof = prove(cls, torch.rand(2), torch.tensor([True, False]))

    assert proof.verdict == "proved"
    assert proof.provisos == ("for the given values of `y`",)


def test_several_outputs_are_taken():
    cls = function(
        lambda x: (torch.sin(x), torch.cos(x)),
        lambda x, g, h: g * torch.cos(x) - h * torch.sin(x),
    )
    wrong = function(
        lambda x: (torch.sin(x), torch.cos(x)),
        lambda x, g, h: g * torch.cos(x) + h * torch.sin(x),
    )

    assert prove(cls, *ONE).verdict == "proved"
    assert prove(wrong, *ONE).verdict == "refuted"


def test_proof_reads_as_text():
    proof = prove(function(torch.square, lambda x, g: x * g), *drawn(()))
    witness = proof.witness
    numbers = f"expected {witness.expected:g}, got {witness.got:g}"
    place = f"x = {witness.inputs['x']}, cotangent = {witness.cotangents[0]}"

    assert str(proof) == (
        f"Planted: refuted\ngradient of `x`: refuted\n  gradient of `x`: {numbers} at {place}"
    )


def test_proof_of_relu_reads_as_text():
    assert str(prove(MyReLU, *ONE)) == (
        "MyReLU: proved, for every size from 2 on, in 1 dimension\n"
        "gradient of `x`: proved\n"
        "  not shown where x = 0"
    )


def test_proof_cannot_be_changed():
    proof = prove(SineFunction, *ONE)

    with pytest.raises(dataclasses.FrozenInstanceError):
        proof.verdict = "refuted"
