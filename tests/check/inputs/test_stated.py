"""What a user says that arguments may be: kept by what is tried, or refused with words."""

import math
from typing import ClassVar

import pytest
import torch

import pullback as pb
from pullback.check.inputs.stated import KINDS, moved_inside, stated
from pullback.check.target.target import target_of
from pullback.errors import DeclarationError
from pullback.judge.example import example_of
from tests.check.subjects import made, normal

NAMES = ("x", "p")
EXAMPLE = example_of((torch.tensor([0.5, 1.5, 2.5]), 2.0))


def relations(domain, example=EXAMPLE):
    return stated(domain, NAMES, [example], "F")


@pytest.mark.parametrize(
    ("domain", "other"),
    [
        ({"x": {"min_value": 0}}, (torch.tensor([0.5, -1.5, 2.5]), 2.0)),
        ({"x": {"max_value": 3}}, (torch.tensor([0.5, 4.0, 2.5]), 2.0)),
        ({"p": {"min_value": 1, "max_value": 2}}, (torch.tensor([0.5, 1.5, 2.5]), 3.0)),
        ({"x": "sorted"}, (torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0, 0.0]), 2.0)),
        ({"p": "just"}, (torch.tensor([0.5, 1.5, 2.5]), 2.5)),
        ({"x": lambda x: bool((x > 0).all())}, (torch.tensor([0.0, 1.0, 2.0]), 2.0)),
        (lambda x, p: bool((x > p - 2).all()), (torch.tensor([0.5, 1.5, 2.5]), 9.0)),
    ],
)
def test_domain_holds_of_the_example_and_not_of_others(domain, other):
    given = (
        torch.tensor([0.5, 1.5, 2.5, 3.5, 4.5]) if domain == {"x": "sorted"} else EXAMPLE.args[0]
    )
    example = example_of((given, 2.0))
    (relation,) = relations(domain, example)

    assert relation.is_kept(example)
    assert relation.is_kept(example.double())
    assert not relation.is_kept(example_of(other))


@pytest.mark.parametrize("word", KINDS)
def test_every_word_is_known(word):
    assert KINDS[word]
    (relation,) = stated({"a": word}, ("a",), [example_of((_of_kind(word),))], "F")

    assert relation.words == KINDS[word]


def _of_kind(word):
    matrix = normal(3, 3).detach()
    return {
        "one_hot": torch.eye(3),
        "binary": (matrix > 0).double(),
        "probabilities": matrix.softmax(-1),
        "unit_norm": matrix / matrix.norm(dim=-1, keepdim=True),
        "positive_definite": matrix @ matrix.T + torch.eye(3),
        "symmetric": matrix + matrix.T,
        "lower_triangular": matrix.tril(),
        "upper_triangular": matrix.triu(),
        "permutation": torch.tensor([2, 0, 1]),
        "sorted": torch.arange(6.0),
    }[word]


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        ({"y": "sorted"}, "'y'"),
        ({"x": "sortd"}, "sortd"),
        ({"x": {"min": 0}}, "min_value"),
        ({"x": {"min_value": 1}}, "in its domain"),
        (3, "got:      3"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_may_be_said(domain, words):
    with pytest.raises(DeclarationError, match=words):
        relations(domain)


def test_function_that_serves_positive_numbers_alone_is_sound_in_its_domain():
    root = made(lambda x: x.abs().sqrt(), lambda g, x: g * 0.5 / x.sqrt())
    x = torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.1
    options = {"select": ["domain"], "profile": "quick"}

    assert not pb.check(root, (x,), **options).ok
    assert pb.check(root, (x,), domain={"x": {"min_value": 1e-3}}, **options).ok


def test_author_may_say_the_domain_on_the_class():
    class Root(torch.autograd.Function):
        declares: ClassVar[dict[str, object]] = {"domain": {"x": (1e-3, None)}}

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx, g):
            return g / (2 * ctx.saved_tensors[0].sqrt())

    assert target_of(Root).intent.domain == {"x": (1e-3, None)}
    with pytest.raises(DeclarationError, match="the inputs of `Root` must be in its domain"):
        pb.check(Root, (torch.tensor([-1.0, 2.0]),))


@pytest.mark.parametrize("said", [(1, 0), (0, 1, 2), ("a", 1), {"min_value": 2, "max_value": 1}])
def test_wrong_bounds_are_refused(said):
    with pytest.raises(DeclarationError, match="must say what its arguments may be"):
        relations({"x": said})


@pytest.mark.parametrize(
    ("said", "low", "high"),
    [
        ((0, 1), 0, 1),
        ({"min_value": 2}, 2, math.inf),
        ((None, -1), -math.inf, -1),
        ("sorted", -9, 9),
    ],
)
def test_guesses_are_moved_inside(said, low, high):
    (moved,) = moved_inside((torch.linspace(-3, 3, 7),), {"x": said}, ["x"])

    assert low <= moved.min()
    assert moved.max() <= high
