"""Facts are data, and have the text that findings show."""

import pytest

from pullback.check.findings.facts import (
    At,
    Both,
    Cotangent,
    Gradient,
    Input,
    Number,
    Output,
    Second,
    Words,
    number,
    numbers,
)
from pullback.check.findings.finding import Finding, Rule, Skip
from pullback.judge.run import Raised

RULE = Rule("X1", "some-rule", "some")

TEXTS = {
    "gradient of `x` at [0, 3]": At(Gradient("x"), (0, 3)),
    "gradient of `x` at [1], wrong in 2 of 9 entries, late": At(
        Gradient("x"), (1,), ", late", wrong=2, total=9
    ),
    "input `x`": At(Input("x")),
    "output 1 at []": At(Output(1), ()),
    "cotangent of output 2": At(Cotangent(2)),
    "gradient of the tensor that is both `x` and `y`": At(Both("x", "y")),
    "second derivative with respect to `x`": At(Second(Input("x"))),
    "second derivative with respect to the cotangent": At(Second(Cotangent(0), is_only=True)),
    "second derivative with respect to the cotangent of output 1": At(Second(Cotangent(1))),
    "0.333333, as before": Number(1 / 3).then(", as before"),
    "shape [3], as before": Words("shape [3]").then(", as before"),
    "ValueError: no": Raised("ValueError", "no"),
    "ValueError": Raised("ValueError"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_fact_has_its_text(text):
    assert str(TEXTS[text]) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "None"), (1 / 3, "0.333333"), (1 + 2j, "1+2j"), (1e-9, "1e-09")]
)
def test_number_has_six_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [((1.0, 2.0), ("1", "2")), ((4.92034001, 4.92034002), ("4.92034001", "4.92034002"))],
)
def test_two_numbers_are_told_apart(values, texts):
    assert tuple(map(str, numbers(*values))) == texts


def test_equal_numbers_are_shown_in_full():
    assert tuple(map(str, numbers(0.5, 0.5))) == ("0.5", "0.5")


def test_gradient_in_a_list_is_its_name():
    assert At(Gradient("x"), (1,), ", late").brief == "`x` at [1], late"
    assert At(Both("x", "y")).brief == "the tensor that is both `x` and `y`"
    assert At(Output(0)).brief == "output 0"


# ---- findings made of facts ----


def test_finding_keeps_the_facts_of_its_words():
    found = Finding.made(RULE, at=At(Gradient("x"), (2,)), expected=Number(1.0), got=Number(2.0))

    assert (found.at, found.expected, found.got) == ("gradient of `x` at [2]", "1", "2")
    assert (found.about.name, found.about.index, found.about.raised) == ("x", (2,), None)


def test_finding_of_words_has_no_facts():
    about = Finding.made(RULE, at="gradient of `x`", expected="1", got="ValueError: no").about

    assert (about.name, about.index, about.expected, about.got, about.raised) == (
        *("", None, None, None),
        None,
    )


def test_finding_retold_changes_words_and_facts():
    found = Finding.made(RULE, at=At(Gradient("x")), expected=Number(1.0), got=Number(2.0))
    told = found.retold(At(Gradient("x"), (0,)), Number(3.0), Number(4.0))

    assert (told.at, told.expected, told.got) == ("gradient of `x` at [0]", "3", "4")
    assert (told.about.index, told.about.expected) == ((0,), Number(3.0))


def test_skip_has_the_error_that_it_tells_of():
    error = Raised("ValueError", "no")

    assert Skip.refused(RULE, "it fails", error).reason == "it fails: ValueError: no"
    assert Skip.refused(RULE, raised=error).reason == "ValueError: no"
    assert Skip.refused(RULE, "it fails").raised is None
