"""Every function that the tests derive, as C++ in one library: outputs, gradients, second order."""

import pytest
import torch

from pullback.capture.trees import flatten, tensor_leaves
from pullback.emit.compiled import build_file
from pullback.emit.python.module import snake
from pullback.emit.subject import subject_of
from tests.derive.functions import CASES, differences, pulled, pulled_twice, tensors_of
from tests.emit.cpp.cases import differences as near
from tests.emit.cpp.cases import emit_together

pytestmark = [pytest.mark.slow, pytest.mark.needs_compiler]

AROUND = ("calibrated",)
"""Those that read tensors from around them, which the op takes as arguments."""


def class_name(name):
    return "Every" + "".join(part.capitalize() for part in name.split("_"))


def plain_of(arguments):
    return [leaf for leaf in flatten(tuple(arguments))[0] if not isinstance(leaf, torch.Tensor)]


def attempt(call, *arguments):
    """What a call gives, and what it said if it was refused."""
    try:
        return call(*arguments), ""
    except RuntimeError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """Each function as an op."""
    subjects = []
    for name, case in CASES.items():
        subject = subject_of(case.program, case.arguments())
        object.__setattr__(subject, "name", class_name(name))
        subjects.append(subject)
    folder = tmp_path_factory.mktemp("every")
    file = folder / "every.cpp"
    file.write_text(emit_together(subjects), encoding="utf-8")
    build_file(file, cache=folder / "cache", flags=["-O0"])
    return {name: getattr(torch.ops.emitted, snake(class_name(name))) for name in CASES}


@pytest.mark.parametrize("name", [name for name in CASES if name not in AROUND])
def test_op_agrees_with_its_function(name, ops):
    case = CASES[name]
    first, count = plain_of(case.arguments()), len(tensor_leaves(case.arguments()))

    def call(*arguments):
        return ops[name](*tensor_leaves(arguments))

    rows = [case.arguments(row) for row in range(len(case.rows))]
    served = 0
    for arguments in rows:
        if plain_of(arguments) != first or len(tensor_leaves(arguments)) != count:
            continue  # the op is written for the plain arguments of the example
        outputs, said = attempt(call, *arguments)
        assert not said or " must " in said or "emitted for sizes" in said
        if said:
            continue
        served += 1
        assert differences(tensors_of(outputs), tensors_of(case.program(*arguments))) == []
        assert differences(pulled(call, arguments), pulled(case.program, arguments)) == []

    assert served


@pytest.mark.parametrize("name", [name for name in CASES if name not in AROUND])
def test_second_derivative_is_right_or_refused(name, ops):
    case = CASES[name]
    arguments = case.arguments()
    expected = pulled_twice(case.truth or case.program, case.arguments())
    found, said = attempt(pulled_twice, lambda *a: ops[name](*tensor_leaves(a)), arguments)

    assert not said or "there is no second derivative" in said
    assert said or near(found, expected, 1e-8) == []
