"""What a user says that the arguments of a function may be: `pb.check(F, inputs, domain=...)`.

The author may say the same on the class: `declares = {"domain": ...}`.

A domain is a mapping from the name of an argument to one of

- a word, such as "symmetric" or "sorted": see `KINDS`; "just" for the values of the examples alone;
- bounds, in the words of Hypothesis: `{"min_value": 0, "max_value": 1}`, or one of the two; a pair
  `(0, 1)` for short;
- a function of that argument, true where it is one that the function serves;

or a function of all arguments, for what holds between them. Arguments outside of it are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from pullback.check.inputs.relations import ALONE, Relation
from pullback.errors import DeclarationError
from pullback.judge.example import Example, can_differ

JUST = "just"
BOUNDS = ("min_value", "max_value")
# The words of a domain, each with the words by which the same is told where examples show it.
KINDS = {
    "one_hot": "one-hot rows",
    "binary": "zeros and ones",
    "probabilities": "rows that sum to one",
    "unit_norm": "rows of norm one",
    "positive_definite": "a positive definite matrix",
    "symmetric": "a symmetric matrix",
    "lower_triangular": "a lower triangular matrix",
    "upper_triangular": "an upper triangular matrix",
    "permutation": "a permutation",
    "sorted": "sorted numbers",
}


def stated(
    domain: Any, names: Sequence[str], examples: Sequence[Example], function: str
) -> tuple[Relation, ...]:
    """The relations that a domain says, all of which the examples keep; or `DeclarationError`."""
    if domain is None:
        return ()
    if callable(domain):
        places = tuple(range(len(names)))
        found = [Relation("in the domain", places, partial(_holds, domain), is_stated=True)]
    elif isinstance(domain, Mapping):
        unknown = [name for name in domain if name not in names]
        if unknown:
            near = get_close_matches(str(unknown[0]), names, 1) or names
            raise DeclarationError(
                f"the domain of `{function}` must be of its arguments",
                expected=f"out of {', '.join(near)}",
                got=repr(unknown[0]),
            )
        found = [
            _of(name, said, names.index(name), examples, function) for name, said in domain.items()
        ]
    else:
        raise _error(function, domain)
    for relation in found:
        for example in examples:
            if not relation.is_kept(example):
                raise DeclarationError(
                    f"the inputs of `{function}` must be in its domain",
                    expected=f"{', '.join(names[i] for i in relation.positions)}: {relation.words}",
                    got=example.words(tuple(names)),
                    fix="give inputs that are, or a wider domain",
                )
    return tuple(found)


def _of(name: str, said: Any, place: int, examples: Sequence[Example], function: str) -> Relation:
    if said == JUST and isinstance(said, str):
        given = [example.args[place] for example in examples if place < len(example.args)]
        return Relation("as given", (place,), partial(_is_one_of, given), is_stated=True)
    if isinstance(said, str) and said in KINDS:
        holds, restored = ALONE[KINDS[said]]
        return Relation(KINDS[said], (place,), holds, restored, is_stated=True)
    if (ends := _ends(said)) is not None:
        low, high = ends
        return Relation(
            _words(low, high),
            (place,),
            partial(_is_within, low, high),
            partial(_clamped, low, high),
            is_stated=True,
        )
    if callable(said):
        return Relation("in the domain", (place,), partial(_holds, said), is_stated=True)
    raise _error(function, {name: said})


def _ends(said: Any) -> tuple[Any, Any] | None:
    """The least and the largest number, None for one that is not said; None for no bounds."""
    if isinstance(said, Mapping) and said and all(key in BOUNDS for key in said):
        low, high = (said.get(key) for key in BOUNDS)
    elif isinstance(said, list | tuple) and len(said) == 2:
        low, high = said
    else:
        return None
    are_numbers = all(end is None or type(end) in (int, float) for end in (low, high))
    is_right = are_numbers and (low is None or high is None or low <= high)
    return (low, high) if is_right else None


def moved_inside(args: Sequence[Any], domain: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Arguments that were guessed, brought within the bounds of a domain."""
    moved = list(args)
    for name, said in domain.items() if isinstance(domain, Mapping) else ():
        ends, place = _ends(said), names.index(name) if name in names else len(args)
        if ends is not None and place < len(args) and can_differ(args[place]):
            inside = _between(args[place].detach(), *ends)
            moved[place] = inside.requires_grad_(args[place].requires_grad)
    return tuple(moved)


def _between(x: Tensor, low: float | None, high: float | None) -> Tensor:
    least = low if low is not None and isfinite(low) else None
    most = high if high is not None and isfinite(high) else None
    if least is not None and most is not None:
        return x.sigmoid() * (most - least) + least
    if least is not None:
        return x.abs() + least
    return x if most is None else most - x.abs()


def _error(function: str, said: Any) -> DeclarationError:
    return DeclarationError(
        f"the domain of `{function}` must say what its arguments may be",
        expected=f"for each a word ({', '.join([JUST, *KINDS])}), bounds such as "
        '{"min_value": 0} or (0, 1), or a function that is true for those it may be',
        got=repr(said),
        fix='write for example domain={"a": "symmetric", "x": {"min_value": 0, "max_value": 1}}',
    )


def _words(low: Any, high: Any) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"between {low} and {high}"


def _holds(says: Callable[..., Any], *args: Any) -> bool:
    """What a user's function says; one that cannot tell of these arguments says no."""
    try:
        return bool(says(*args))
    except Exception:  # the user's code, called with what it may not expect
        return False


def _is_one_of(given: Sequence[Any], value: Any) -> bool:
    if not isinstance(value, Tensor):
        return any(not isinstance(one, Tensor) and one == value for one in given)
    tensors = [one.detach() for one in given if isinstance(one, Tensor)]
    alike = [one for one in tensors if one.shape == value.shape]
    if can_differ(value):
        return any(torch.equal(one.to(value.dtype), value) for one in alike)
    return any(torch.equal(one, value) for one in alike)


def _is_within(low: Any, high: Any, value: Any) -> bool:
    if isinstance(value, Tensor):
        is_low = low is not None and bool((value < low).any())
        return not is_low and not (high is not None and bool((value > high).any()))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    return (low is None or value >= low) and (high is None or value <= high)


def _clamped(low: Any, high: Any, value: Tensor) -> Tensor:
    return value.clamp(low, high)
