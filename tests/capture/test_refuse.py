"""What cannot be captured is refused, at the user's line, with what to do: each message whole."""

import threading
from textwrap import dedent

import numpy
import pytest
import torch
from torch import nn

import pullback as pb
from pullback.capture.joint import capture
from pullback.capture.units import record
from pullback.errors import CaptureError, MissingBackwardError
from tests.capture.cases import normal
from tests.capture.functions import blind, family, fill

F = family(pb.Function)
TABLE = normal(4, grad=False)


def branch(x):
    return x if x.sum() > 0 else -x


def loop(x):
    while x.norm() > 1:
        x = x / 2
    return x


def item(x):
    return x * x.max().item()


def as_float(x):
    return x * float(x[0, 0])


def as_int(x):
    return TABLE[int(x.argmax())] * x


def as_index(x):
    return [1.0, 2.0, 3.0][x[0].argmax()] * x


def contains(x):
    return x if 1.0 in x else -x


def equal(x):
    return x if torch.equal(x, x * 1) else -x


def as_number(x):
    return x + torch.full((3,), x[0, 0])


def array(x):
    return x * torch.from_numpy(numpy.sin(x.detach().numpy()))


def address(x):
    return x + x.data_ptr()


def masked(x):
    return x[x > 0]


def nonzero(x):
    return x.nonzero()


def unfaked(x):
    return blind(x)


def covariance(x):
    return torch.cov(x)


def gaussian(x):
    return nn.functional.gaussian_nll_loss(x, x.detach(), x.detach().abs())


def filled_by_index(x):
    return x.index_fill(0, torch.tensor([0, 2]), x.sum())


def rotated(x):
    return torch.linalg.svd(torch.complex(x, x.sin()), full_matrices=False).U


def sparse(x):
    return x.to_sparse().to_dense()


def filled(x):
    return fill(x.clone()) or x


def cond(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def generated(x):
    return x + torch.rand(3, generator=torch.Generator())


def runs_backward(x):
    return x.sin().sum().backward()


def misshapen(x):
    return x @ torch.ones(7, 7)


def changes_leaf(x):
    return x.mul_(2)


VALUES = "must do the same work whatever the values of its tensors are"
WHERE = "write the choice with `torch.where`, or make it before the call and pass it as a bool"
READ = "keep it a tensor, or read it before the call and pass it as a number"
SIZE = "use a form of fixed size, such as a mask with `torch.where`, or make it before the call"
OTHER = "write it in ops that do without"
CUSTOM = "put that part into a custom op: `torch.library.custom_op` with `register_fake`"

NESTED = "in tuples, lists and dicts"
NOBODY = "no other input"
WHETHER = "whether it needs a gradient"

# Each program with the rule it breaks, what it is told it did, and what to do.
REFUSED = {
    branch: (VALUES, "a decision on the value of a tensor", WHERE),
    loop: (VALUES, "a decision on the value of a tensor", WHERE),
    item: (VALUES, "`.item()`, which reads the value of a tensor", READ),
    as_float: (VALUES, "`float(...)` of a tensor", READ),
    as_int: (VALUES, "`int(...)` of a tensor", READ),
    as_index: (VALUES, "a tensor used as an index or a size", READ),
    contains: (VALUES, "`in`, which compares the values of a tensor", WHERE),
    equal: (VALUES, "`torch.equal`, which compares the values of tensors", WHERE),
    as_number: (VALUES, "a tensor where a number is needed: its value is read", READ),
    array: (VALUES, "a NumPy array of a tensor's values", f"use torch ops, or {CUSTOM}"),
    address: (VALUES, "the address of a tensor's memory", CUSTOM),
    masked: (
        VALUES,
        "`aten::nonzero`, whose result has as many elements as the values say",
        SIZE,
    ),
    nonzero: (
        VALUES,
        "`aten::nonzero`, whose result has as many elements as the values say",
        SIZE,
    ),
    covariance: (
        VALUES,
        "`cov`, in which PyTorch calls `aten::equal`, which reads the value of a tensor",
        f"{OTHER}, or {READ}",
    ),
    gaussian: (
        VALUES,
        "`gaussian_nll_loss`, in which PyTorch calls `aten::_local_scalar_dense`, "
        "which reads the value of a tensor",
        f"{OTHER}, or {READ}",
    ),
    filled_by_index: (
        VALUES,
        "the derivative of that line, which needs `aten::_unique`, "
        "whose result has as many elements as the values say",
        OTHER,
    ),
    rotated: (
        VALUES,
        "the derivative of that line, which needs `torch.allclose`, "
        "which compares the values of tensors",
        OTHER,
    ),
    unfaked: (
        "must be made of ops that can run on tensors without values",
        "`pullback_capture::blind`, which has no fake kernel",
        'give it one: `torch.library.register_fake("pullback_capture::blind")`',
    ),
    sparse: (
        "must be made of ops that can run on tensors without values",
        "`aten::_to_sparse`, which has no fake kernel",
        CUSTOM,
    ),
    filled: (
        "must not use custom ops that change their arguments",
        "`pullback_capture::fill`",
        "let the op return a new tensor, or clone the argument inside it",
    ),
    cond: (
        "must not call other graphs (`torch.cond`, `torch.while_loop`, ...)",
        "`cond`",
        "write the choice with `torch.where`, and the loop in Python",
    ),
    generated: (
        "must draw random numbers from PyTorch's own generator",
        "`rand` with a generator of its own",
        "leave `generator` out, or draw before the call and pass the numbers",
    ),
    runs_backward: (
        "must leave the `.grad` of its tensors to its caller",
        "a call of `backward`",
        "use `torch.autograd.grad` for a gradient that is part of the computation",
    ),
    misshapen: (
        "must run on tensors without values",
        "RuntimeError: a and b must have same reduction dim, but got [4, 3] X [7, 7].",
        f"call `misshapen` itself on the same examples; if it runs there, {CUSTOM}",
    ),
    changes_leaf: (
        "must run on tensors without values",
        "RuntimeError: a leaf Variable that requires grad is being used in an in-place operation.",
        f"call `changes_leaf` itself on the same examples; if it runs there, {CUSTOM}",
    ),
}


def message(text):
    """A message as it is written below, without its indentation."""
    return dedent(text).strip()


def refusal(program, examples, **options):
    with pytest.raises(CaptureError) as caught:
        capture(program, examples, **options)
    return str(caught.value)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
@pytest.mark.filterwarnings("ignore:.*Dynamo does not know:UserWarning")
@pytest.mark.parametrize("program", REFUSED, ids=lambda f: f.__name__)
def test_program_is_refused_at_its_line(program):
    rule, got, fix = REFUSED[program]
    line = program.__code__.co_firstlineno + 1

    found = refusal(program, (normal(4, 3),), dynamic=program is not misshapen)

    assert found == "\n".join(
        [
            f"E301 capture: `{program.__name__}` {rule}",
            f"  at:       test_refuse.py:{line}",
            f"  got:      {got}",
            f"  fix:      {fix}",
        ]
    )


@pytest.mark.filterwarnings("ignore:Accessing the data pointer")
@pytest.mark.parametrize(
    "program", [branch, item, masked, array, address], ids=lambda f: f.__name__
)
def test_numbers_for_sizes_refuse_as_well(program):
    _, got, _ = REFUSED[program]

    assert f"got:      {got}" in refusal(program, (normal(4, 3),), dynamic=False)


class Careful(pb.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.abs().max() < 1e3 else g * 0


def test_decision_in_backward_is_refused():
    line = Careful.backward.__code__.co_firstlineno + 2

    assert refusal(Careful.apply, (normal(4, 3),)) == message(
        f"""
        E301 capture: `Careful.apply` must do the same work whatever the values of its tensors are
          at:       test_refuse.py:{line}
          got:      a decision on the value of a tensor
          fix:      {WHERE}
        """
    )


def test_object_among_outputs_is_refused():
    class Box:
        pass

    def program(x):
        return x, Box()

    assert refusal(program, (normal(3),)) == message(
        f"""
        E301 capture: `program` must return tensors, numbers, strings and `None`, {NESTED}
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          got:      Box
          fix:      return its tensors one by one
        """
    )


def test_shared_memory_of_changed_input_is_refused():
    def program(a, b):
        a.mul_(2)
        return a + b

    x = normal(4, grad=False)

    assert refusal(program, (x, x[:4])) == message(
        f"""
        E301 capture: `a`, which `program` changes in place, must share its memory with {NOBODY}
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          got:      memory shared with `b`
          fix:      pass a clone of `b`
        """
    )


def test_shared_memory_is_fine_without_changes():
    x = normal(4)

    assert capture(lambda a, b: a * b, (x, x)).mutated == ()


SPECIAL = {
    "torch.sparse_coo": lambda: normal(3, grad=False).to_sparse(),
    "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", SPECIAL)
def test_special_tensor_is_refused(kind):
    def program(x):
        return x * 2

    assert refusal(program, (SPECIAL[kind](),)) == message(
        f"""
        E301 capture: `x` of `program` must be an ordinary dense tensor
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          got:      {kind}
          fix:      convert it before the call
        """
    )


def test_wrong_number_of_needs_is_refused():
    def program(x, y):
        return x * y

    assert refusal(program, (normal(3), normal(3)), needs=[True]) == message(
        f"""
        E301 capture: `needs` must say for each tensor among the arguments of `program` {WHETHER}
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          expected: 2, for (x, y)
          got:      1
        """
    )


def test_integer_cannot_need_a_gradient():
    def program(x):
        return x * 2

    assert refusal(program, (torch.arange(3),), needs=[True]) == message(
        f"""
        E301 capture: `x` of `program` must be of a dtype that has gradients to need one
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          expected: a floating-point or complex dtype
          got:      torch.int64
          fix:      say False in its place in `needs`
        """
    )


def test_wrong_number_of_used_is_refused():
    def program(x):
        return x * 2

    assert refusal(program, (normal(3),), used=[True, False]) == message(
        f"""
        E301 capture: `used` must say for each differentiable output of `program` whether it is used
          at:       test_refuse.py:{program.__code__.co_firstlineno}
          expected: 1
          got:      2
        """
    )


def test_change_in_backward_is_refused():
    seen = torch.zeros(())

    class Counting(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.add_(1)
            return g * 2

    line = Counting.backward.__code__.co_firstlineno + 2

    rule = "must not change its inputs or tensors from outside it in backward"
    assert refusal(Counting.apply, (normal(3),)) == message(
        f"""
        E301 capture: `Counting.apply` {rule}
          at:       test_refuse.py:{line}
          got:      a change in place, made by backward
          fix:      let backward work on a clone, and return what it finds as a gradient
        """
    )


def test_output_changed_in_backward_is_refused():
    class Greedy(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.y = x * 2
            return ctx.y * 1

        @staticmethod
        def backward(ctx, g):
            g.mul_(3)
            return g

    def program(x):
        y = Greedy.apply(x)
        return y

    class Spoiling(pb.Function):
        @staticmethod
        def forward(ctx, x, kept):
            ctx.kept = kept
            return x * 2

        @staticmethod
        def backward(ctx, g):
            ctx.kept.detach().add_(g)
            return g, None

    x, kept = normal(3), normal(3, grad=False)

    assert "in backward" in refusal(lambda x, k: (Spoiling.apply(x, k), k), (x, kept))
    assert capture(program, (x,)).mutated == ()  # a cotangent is nobody's input


# ---- what is no refusal ----


def test_error_of_the_user_passes():
    def program(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        capture(program, (normal(3),))


def test_error_of_pullback_passes():
    class Half(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * torch.rand_like(x)

        @staticmethod
        def backward(ctx, cotangent):
            return pb.derived

    with pytest.raises(MissingBackwardError):
        capture(Half.apply, (normal(3),))


def test_place_in_a_module_is_found():
    class Reader(nn.Module):
        def forward(self, x):
            return x * x.max().item()

    line = Reader.forward.__code__.co_firstlineno + 1

    assert f"at:       test_refuse.py:{line}" in refusal(Reader(), (normal(3),))


def test_nothing_is_logged_for_a_refusal(caplog):
    refusal(misshapen, (normal(4, 3),), dynamic=False)

    assert [r for r in caplog.records if r.name == "torch._subclasses.fake_tensor"] == []


@pytest.mark.parametrize("program", [branch, masked, misshapen], ids=lambda f: f.__name__)
def test_refused_program_leaves_nothing_behind(program):
    before = threading.active_count()
    refusal(program, (normal(4, 3),))

    assert type(F.SavedInput.apply(normal(3))) is torch.Tensor
    assert threading.active_count() == before


# ---- refusals of recording ----


def unrecorded(program, *examples):
    with pytest.raises(CaptureError) as caught:
        record(program, *examples)
    return str(caught.value)


READS = {
    branch: ("a decision on the value of a tensor", WHERE),
    item: ("`.item()`, which reads the value of a tensor", READ),
    array: ("a NumPy array of a tensor's values", f"use torch ops, or {CUSTOM}"),
    equal: ("`torch.equal`, which compares the values of tensors", WHERE),
}


@pytest.mark.parametrize("program", READS, ids=lambda f: f.__name__)
def test_recorded_values_cannot_be_read(program):
    got, fix = READS[program]

    assert unrecorded(program, normal(4, 3)) == message(
        f"""
        E301 capture: `{program.__name__}` {VALUES}
          at:       test_refuse.py:{program.__code__.co_firstlineno + 1}
          got:      {got}
          fix:      {fix}
        """
    )


def test_values_may_be_read_inside_units():
    program = record(lambda x: Careful.apply(x) + 1, normal(3))

    assert [unit.name for unit in program.units] == ["Careful", "add"]


def test_tensor_in_a_slice_is_refused():
    def program(x, n):
        return x[:n]

    assert unrecorded(program, normal(4), torch.tensor(2)) == message(
        f"""
        E301 capture: `program` {VALUES}
          at:       test_refuse.py:{program.__code__.co_firstlineno + 1}
          got:      a tensor used as an index or a size
          fix:      {READ}
        """
    )


def test_hook_between_units_is_refused():
    def program(x):
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y

    assert unrecorded(program, normal(4)) == message(
        f"""
        E301 capture: `program` must not hang hooks on its tensors between its units
          at:       test_refuse.py:{program.__code__.co_firstlineno + 2}
          got:      a call of `register_hook`
          fix:      write what the hook does as the backward of a Function
        """
    )


def test_transform_between_units_is_refused():
    def program(x):
        return torch.func.vmap(torch.sin)(x)

    assert unrecorded(program, normal(4)) == message(
        f"""
        E301 capture: `program` must use `torch.func` transforms inside of Functions only
          at:       test_refuse.py:{program.__code__.co_firstlineno + 1}
          got:      `sin` inside a transform
          fix:      put the transformed part into the `forward` of a Function
        """
    )


def test_call_of_forward_is_refused():
    T = family(torch.autograd.Function)
    hidden = super(torch.autograd.Function, T.SavedInput).apply

    def program(x):
        return hidden(x)

    assert unrecorded(program, normal(4)) == message(
        f"""
        E301 capture: `program` must call `SavedInput.apply` by that name
          at:       functions.py:{T.SavedInput.forward.__code__.co_firstlineno + 3}
          got:      `SavedInput.forward`, called directly or through an alias of `apply`
          fix:      write `SavedInput.apply(...)` in the place of the alias
        """
    )


def test_calls_of_compiled_code_are_refused():
    def program(x):
        with torch._C.DisableTorchFunction():
            return x * 2

    assert unrecorded(program, normal(4)) == message(
        f"""
        E301 capture: `program` must make its calls in Python, where they can be seen
          at:       test_refuse.py:{program.__code__.co_firstlineno + 2}
          got:      `aten.mul.Tensor`, called by compiled code
          fix:      call the compiled code in the `forward` of a Function, or make it a custom op
        """
    )


def test_refusal_of_a_backward_names_the_line_it_differentiates():
    def program(x, value):
        y = x * 2
        return y.index_fill(0, torch.tensor([0, 2]), value)

    with pytest.raises(CaptureError) as error:
        capture(program, [normal(4), normal()])

    assert error.value.facts["at"] == f"test_refuse.py:{program.__code__.co_firstlineno + 2}"
