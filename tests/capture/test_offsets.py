"""Programs that see where an input begins in its memory are captured for that place alone."""

import pytest
import torch

import pullback as pb
from pullback.errors import CaptureError


def windows(x):
    return x.as_strided((2, 2), (2, 1), 1).sin()


def windows_of_view(x):
    return x[1:].as_strided((2, 2), (2, 1), 2).sin()


def windows_of_copy(x):
    return (x.clone() * 1).as_strided((2, 2), (2, 1), 1).sin()


def shifted(x):
    return x.sin() * x.storage_offset()


PROGRAMS = [windows, windows_of_view, windows_of_copy, shifted]
MEMORY = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)


def leaf(offset):
    return MEMORY[offset : offset + 7].detach().requires_grad_()


def part(offset):
    return MEMORY.clone().requires_grad_()[offset : offset + 7]


def pulled(program, x):
    cotangent = torch.arange(1.0, 1 + program(x).numel(), dtype=x.dtype)
    y = program(x)
    (gradient,) = torch.autograd.grad(y, x, cotangent.reshape(y.shape), allow_unused=True)
    return y, gradient


def composed(program, x):
    return pb.combine(program, x, backend="eager").apply


@pytest.mark.quick(5)
@pytest.mark.parametrize("made", [lambda f, x: pb.derive(f, x).apply, composed])
@pytest.mark.parametrize("input_of", [leaf, part])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradient_is_right_at_every_offset(program, input_of, made):
    for first in (0, 3):
        function = made(program, input_of(first))
        for offset in (3, 0, 2, 3):
            x = input_of(offset)

            torch.testing.assert_close(pulled(function, x), pulled(program, x))


def test_capture_holds_for_its_offset_alone():
    captured = pb.derive(windows, leaf(3))._pb_derived.general.captured

    assert [captured.begins_like([leaf(offset)]) for offset in (3, 0)] == [True, False]


def test_program_that_sees_no_offset_serves_every_one():
    captured = pb.derive(torch.sin, leaf(3))._pb_derived.general.captured

    assert captured.begins_like([leaf(0)])


def test_text_refuses_another_offset():
    space = {}
    exec(pb.derive(windows, leaf(0)).source(), space)

    with pytest.raises(ValueError, match="`x` must begin where its memory does"):
        space["Windows"].apply(leaf(3))
    torch.testing.assert_close(pulled(space["Windows"].apply, leaf(0)), pulled(windows, leaf(0)))


def test_text_is_not_written_for_an_offset():
    with pytest.raises(CaptureError, match="`x` must begin where its memory does") as error:
        pb.derive(windows, leaf(3)).source()

    assert error.value.facts["got"] == "3"
