"""The demonstration says what it verified, and fails when a Function is wrong."""

import dataclasses
import io
import re

import pytest
import torch
from rich.console import Console

from examples import demo


def run():
    """The exit code and the text of the demonstration."""
    console = Console(file=io.StringIO(), width=80, highlight=False)
    code = demo.main(console)
    return code, console.file.getvalue()


def replace(exhibits, name, **changes):
    return tuple(
        dataclasses.replace(exhibit, **changes) if exhibit.name == name else exhibit
        for exhibit in exhibits
    )


@pytest.fixture(scope="module")
def shown():
    return run()


def test_every_right_function_agrees(shown):
    code, text = shown

    assert code == 0
    for exhibit in demo.RIGHT:
        assert re.search(rf"^{exhibit.name} .* agrees", text, re.MULTILINE)


def test_both_published_mistakes_are_shown_wrong(shown):
    _, text = shown

    assert "MyActivationAsPublished is wrong\n     largest error   0.1386  at x = 1.00" in text
    assert "MyComplexOpAsPublished is wrong\n     largest error   2.0859  at x = -2.25" in text


def test_largest_error_is_expected_against_got(shown):
    _, text = shown
    numbers = [float(n) for n in re.findall(r"(?:error|expected|got) +(-?\d\.\d{4})", text)]

    for error, expected, got in (numbers[:3], numbers[3:]):
        assert error == pytest.approx(abs(expected - got), abs=2e-4)


def test_text_to_a_pipe_has_no_colour(shown):
    _, text = shown

    assert "\x1b" not in text


def test_text_fits_a_narrow_ascii_terminal():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    code = demo.main(Console(file=file, width=40, highlight=False))

    assert code == 0


@pytest.mark.parametrize("name", [exhibit.name for exhibit in demo.RIGHT])
def test_wrong_function_makes_it_fail(monkeypatch, name):
    exhibit = next(exhibit for exhibit in demo.RIGHT if exhibit.name == name)

    def tilted(*inputs):
        output = exhibit.apply(*inputs)
        return output + 1e-6 * (inputs[0].sum() - inputs[0].sum().detach())

    monkeypatch.setattr(demo, "RIGHT", replace(demo.RIGHT, name, apply=tilted))
    console = Console(file=io.StringIO(), width=80)

    assert demo.show_right(console) is False
    assert "DIFFERS" in console.file.getvalue()


@pytest.mark.parametrize("name", [exhibit.name for exhibit in demo.PUBLISHED])
def test_mended_mistake_makes_it_fail(monkeypatch, name):
    exhibit = next(exhibit for exhibit in demo.PUBLISHED if exhibit.name == name)
    monkeypatch.setattr(demo, "PUBLISHED", replace(demo.PUBLISHED, name, apply=exhibit.plain))
    code, text = run()

    assert code == 1
    assert f"{name} is NOT FOUND WRONG" in text
    assert "Something above is not as it should be." in text


def test_copying_function_fails_the_in_place_part(monkeypatch):
    class Copies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            return n * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    monkeypatch.setattr(demo.my_function, "MyFunction", Copies)

    assert demo.show_in_place(Console(file=io.StringIO())) is False


def test_right_backwards_are_derived(shown):
    _, text = shown

    assert "for MyComplexOpAsPublished: agrees with PyTorch, difference 0" in text
    assert "grad_x = grad_out * (2 * x.sin()) * x.cos()" in text


def test_wrong_derivation_is_noticed(monkeypatch):
    class Wrong:
        apply = staticmethod(lambda x: 2 * torch.sin(x) ** 2)
        source = staticmethod(lambda: "def backward(ctx, g):\n    return g\n")

    monkeypatch.setattr(demo.pb, "derive", lambda *args: Wrong)
    console = Console(file=io.StringIO(), width=80, highlight=False)

    assert not demo.show_derived(console)
    assert "DIFFERS" in console.file.getvalue()
