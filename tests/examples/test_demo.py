"""The demonstration says what it verified, and fails when a Function is wrong."""

import dataclasses
import io
import re

import pytest
import torch
from rich.console import Console

from examples import demo, planned


@pytest.fixture(autouse=True, scope="module")
def eager():
    """Only what needs no compiler is planned, for a second: it takes no longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULLBACK_BACKENDS", "eager")
        patch.setattr(planned, "BUDGET", 1.0)
        patch.setattr(demo, "has_compiler", lambda: False)
        yield
        demo.emitted.cache_clear()


def run():
    """The exit code and the text of the demonstration."""
    console = Console(file=io.StringIO(), width=80, highlight=False)
    code = demo.main(console)
    return code, console.file.getvalue()


@pytest.fixture(scope="module")
def shown():
    return run()


def test_every_right_function_agrees(shown):
    code, text = shown

    assert code == 0
    for exhibit in demo.RIGHT:
        line = rf"^   {exhibit.name} .* agrees \([\d.e-]+\); nothing found, \d+ rules, \d+ runs$"
        assert re.search(line, text, re.MULTILINE)


def test_it_fits_three_screens(shown):
    _, text = shown

    assert len(text.splitlines()) <= 120


def test_every_step_tells_its_time(shown):
    _, text = shown

    assert len(re.findall(r"^   \d+\.\d s$", text, re.MULTILINE)) == len(demo.STEPS)


def test_step_is_told_before_it_works(monkeypatch):
    console = Console(file=io.StringIO(), width=80, highlight=False)
    before = []
    monkeypatch.setattr(demo, "show_in_place", lambda c: before.append(c.file.getvalue()) or True)
    demo._step(console, 4, "A title", "A sentence.", "show_in_place")

    assert before == ["4. A title\n   A sentence.\n"]


def test_nothing_is_told_twice(shown):
    _, text = shown
    lines = [line.strip() for line in text.splitlines() if len(line.strip()) > 40]
    told = [line for line in lines if not line.endswith("times as fast")]  # of each size

    assert sorted(told) == sorted(set(told))


def test_plan_shows_what_was_measured(shown):
    _, text = shown

    assert re.search(r"^ +\*? +\[SquareFunction SineFunction mul\] .* times as fast", text, re.M)
    assert "The chosen one agrees with PyTorch" in text


def test_wrong_plan_makes_it_fail(monkeypatch):
    tilted = planned.make_plan()
    tilted.best = lambda x, y: planned.square_sine(x, y) * 1.001
    monkeypatch.setattr(planned, "make_plan", lambda budget: tilted)

    assert demo.show_planned(Console(file=io.StringIO(), width=80)) is False


def test_emitted_backward_is_shown(shown):
    _, text = shown

    assert re.search(r"auto grad_x = x\.sin\(\) .* x\.cos\(\) \* grad_out;", text)
    assert "There is no C++ compiler here, so it is not built." in text


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_emitted_op_is_built_and_agrees(monkeypatch):
    monkeypatch.setattr(demo, "has_compiler", lambda: True)
    demo.emitted.cache_clear()
    console = Console(file=io.StringIO(), width=80, highlight=False)

    assert demo.show_emitted(console)
    assert "The op agrees with PyTorch" in console.file.getvalue()


def test_text_to_a_pipe_has_no_colour(shown):
    _, text = shown

    assert "\x1b" not in text


@pytest.mark.slow
def test_text_fits_a_narrow_ascii_terminal():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    code = demo.main(Console(file=file, width=40, highlight=False))

    assert code == 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [exhibit.name for exhibit in demo.RIGHT])
def test_wrong_function_makes_it_fail(monkeypatch, name):
    exhibit = next(exhibit for exhibit in demo.RIGHT if exhibit.name == name)

    def tilted(*inputs):
        output = exhibit.apply(*inputs)
        return output + 1e-6 * (inputs[0].sum() - inputs[0].sum().detach())

    monkeypatch.setattr(demo, "RIGHT", (dataclasses.replace(exhibit, apply=tilted),))
    console = Console(file=io.StringIO(), width=80)

    assert demo.show_right(console) is False
    assert "DIFFERS" in console.file.getvalue()


@pytest.mark.parametrize("name", [exhibit.name for exhibit in demo.PUBLISHED])
def test_mended_mistake_makes_it_fail(monkeypatch, name):
    exhibit = next(exhibit for exhibit in demo.PUBLISHED if exhibit.name == name)
    monkeypatch.setattr(demo, "PUBLISHED", (dataclasses.replace(exhibit, apply=exhibit.plain),))
    monkeypatch.setattr(demo, "STEPS", demo.STEPS[1:2])
    code, text = run()

    assert code == 1
    assert f"{name}: NOT FOUND WRONG" in text
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


@pytest.mark.slow
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


# ---- checked ----


def test_check_tells_the_reason_of_both(shown):
    _, text = shown
    saved = "the saved `sine` is used where the input `x` is needed"
    constant = "the derivative of `(x.exp() + 1) ** -0.5` is missing, as if it were a constant"

    assert text.count("G101 wrong-gradient (wrong)") == 2
    assert f"why:      {saved}" in text
    assert f"why:      {constant}" in text
    assert "fix:      use `x` instead of `sine` in `sine.cos()`, and save `x`" in text
    assert "examples/my_complex_op.py:47" in text


def test_finding_on_right_one_is_noticed(monkeypatch):
    monkeypatch.setattr(demo, "RIGHT", demo.PUBLISHED[1:])
    console = Console(file=io.StringIO(), width=80, highlight=False)

    assert not demo.show_right(console)
    assert "DIFFERS" in console.file.getvalue()
    assert "FINDINGS" in console.file.getvalue()


def test_missed_mistake_is_noticed(monkeypatch):
    monkeypatch.setattr(demo, "PUBLISHED", demo.RIGHT[1:2])
    console = Console(file=io.StringIO(), width=80, highlight=False)

    assert not demo.show_published(console)
    assert "SquareFunction: NOT FOUND WRONG" in console.file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", demo.RIGHT, ids=lambda exhibit: exhibit.name)
def test_standard_profile_finds_nothing(exhibit):
    report = demo.pb.check(exhibit.apply, tuple(exhibit.inputs().values()))

    assert report.findings == ()
