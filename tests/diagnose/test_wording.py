"""Edits and errors are said with the user's names, and say what must be saved."""

from pullback.diagnose.candidate_edits import Site
from pullback.diagnose.wording import Wording
from pullback.graph.values import aten
from tests.diagnose import faulty
from tests.diagnose.test_edit_search import compared_of


def words_of(function):
    scope = compared_of(function)[0].scope
    return scope, Wording(scope)


def node_of(scope, text):
    return next(node for node, known in scope.texts.items() if known.text == text)


def known_of(scope, text):
    return next(known for known in scope.known if known.text.text == text)


def test_values_are_described_by_what_they_are():
    scope, words = words_of(faulty.SineWithSavedSine)

    described = [words.described(known_of(scope, name), is_saved=True) for name in ("x", "g", "s")]

    assert described == ["the input `x`", "the cotangent `g`", "the saved sine `s`"]


def test_value_without_name_is_written_out():
    scope, words = words_of(faulty.NormedWithoutMean)

    assert words.described(known_of(scope, "x.mean(-1, keepdim=True)")) == (
        "`x.mean(-1, keepdim=True)`"
    )


def test_what_is_not_saved_must_be():
    scope, words = words_of(faulty.SineWithSavedSine)

    assert words.saving(known_of(scope, "x")) == ", and save `x`"
    assert words.saving(known_of(scope, "s")) == ""


def test_saved_but_unused_needs_no_saving():
    scope, words = words_of(faulty.GeluWithoutDensity)

    assert words.saving(known_of(scope, "x")) == ""


def test_summand_names_where_it_goes():
    scope, words = words_of(faulty.NormedWithoutMean)
    old = node_of(scope, "g - projected")
    (user,) = old.users
    site = Site(old, ((user, 1),))

    edit, pattern = words.joined(old, aten.sub.Tensor, known_of(scope, "g"), site)

    assert edit == "subtract `g` from `g - projected` in `rstd * (g - projected)`"
    assert pattern == "a summand is missing: `-g`"


def test_several_uses_change_together():
    scope, words = words_of(faulty.NormedWithoutMean)
    old = node_of(scope, "g")
    uses = tuple((user, 0) for user in old.users)

    edit, _ = words.replaced(old, known_of(scope, "x"), Site(old, uses, "everywhere"))

    assert edit == "use `x` instead of `g` everywhere, and save `x`"


def test_operand_too_many_is_named_by_what_it_does():
    scope, words = words_of(faulty.NormedWithoutMean)
    difference = node_of(scope, "g - projected")
    g, projected = difference.args
    (product,) = difference.users
    rstd = next(arg for arg in product.args if arg is not difference)
    used = Site(difference, ((product, 1),))

    assert words.dropped(difference, g, used) == (
        "drop `projected` from `g - projected`",
        "a summand too many in `g - projected`: `projected`",
    )
    assert words.dropped(difference, projected, used)[0].startswith(
        "use `projected` instead of `g - projected`"
    )
    assert words.dropped(product, difference, Site(product, ()))[1] == "a factor too many: `rstd`"
    assert scope.texts[rstd].text == "rstd"
