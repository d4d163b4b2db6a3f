"""Proof that hand-written gradients are right, or numbers that show that one is wrong.

The hand-written and the derived gradient are read as expressions of the elements of the inputs and
cotangents. First they are compared at many points with fifty digits: a difference is a witness.
Then they are compared as expressions, case by case: no difference anywhere is a proof.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.autograd.function import Function as TorchFunction

from pullback.capture.names import parameter_names
from pullback.capture.trees import tensor_leaves
from pullback.errors import TargetError
from pullback.function.plain import plain_program
from pullback.prove.programs import Key, ProgramPair, UnreadableError, View, pair_of_programs
from pullback.prove.requests import Request, partial_requests, view_for
from pullback.prove.scalars import Outside
from pullback.prove.verdicts import PROVED, REFUTED, UNKNOWN, GradientProver, Judgement, Witness

# Neither sympy nor the capture of a program may run twice at a time.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found out about a hand-written backward.

    `verdict` is "refuted" if one gradient is, otherwise "unknown" if one is, otherwise "proved".
    `gradients` has the judgement on each, by the name of the input. `scope` says for which shapes
    a proof holds.
    """

    name: str
    verdict: str
    gradients: dict[str, Judgement] = field(default_factory=dict)
    scope: str = ""
    reason: str = ""

    @property
    def witness(self) -> Witness | None:
        """Numbers that refute the first wrong gradient."""
        return next((j.witness for j in self.gradients.values() if j.witness is not None), None)

    @property
    def provisos(self) -> tuple[str, ...]:
        """Those of all gradients."""
        return tuple(dict.fromkeys(p for j in self.gradients.values() for p in j.provisos))

    def __str__(self) -> str:
        head = f"{self.name}: {self.verdict}"
        lines = [f"{head}, {self.scope}" if self.verdict == PROVED else head]
        lines += [f"  {self.reason}"] if self.reason and not self.gradients else []
        for name, judgement in self.gradients.items():
            lines.append(f"gradient of `{name}`: {judgement.verdict}")
            facts = [judgement.reason, *judgement.provisos]
            lines += [f"  {fact}" for fact in facts if fact]
            lines += [f"  {judgement.witness}"] if judgement.witness is not None else []
        return "\n".join(lines)


def proof_of(target: Any, *examples: Any, seconds: float = 10.0) -> Proof:
    """Decide whether the hand-written gradients of `target` are right for all inputs.

    Arguments:
        target: a Function class, whose truth is PyTorch's own derivative of its forward; or a pair
            of a program with a hand-written backward and a reference program.
        examples: arguments to call it with. Only kinds, ranks and settings matter, and values that
            show where the function is defined.
        seconds: how long to try, in processor time; what is not decided by then is "unknown".

    A verdict is about real numbers, not about rounding: each op stands for its formula, and each
    float for the simplest number that rounds to it. A gradient is "refuted" by a witness which
    was seen in float64 too. It is "proved" if it is equal to the derived one wherever the function
    and that one are defined, but for what its provisos say: poles, corners or jumps at which
    nothing is shown (a set without volume, such as x = 0 for `relu`).

    If every op is pointwise and all tensors have one shape, a proof about each element holds for
    every size. With sums and broadcasting a proof holds for the sizes in `scope`, small and as far
    as possible different from each other; other sizes are then compared by numbers only.

    The gradients are compared as they are when all are asked for, and also when only some inputs
    need one, or only some outputs are used: each choice of up to three, of more each by itself.
    """
    name, hand, derived = _programs(target)
    with _ONE_AT_A_TIME:
        deadline = time.process_time() + seconds
        try:
            programs = pair_of_programs(hand, derived, examples)
            views = programs.views()
        except UnreadableError as error:
            return Proof(name, UNKNOWN, reason=str(error))
        if not programs.names:
            return Proof(name, UNKNOWN, reason="no input needs a gradient")
        judgements = _judgements(programs, views, deadline)
    names = zip(parameter_names(hand, len(examples)), examples, strict=True)
    given = [*programs.fixed, *(each for each, example in names if not tensor_leaves(example))]
    surrogates = _surrogates(target)
    gradients = {
        programs.names[key]: _with_scope(judgement, programs.names[key], given, surrogates)
        for key, judgement in judgements.items()
    }
    verdicts = [judgement.verdict for judgement in gradients.values()]
    verdict = next((v for v in (REFUTED, UNKNOWN) if v in verdicts), PROVED)
    reasons = [f"gradient of `{n}`: {j.reason}" for n, j in gradients.items() if j.reason]
    return Proof(name, verdict, gradients, _scope(views[0]), next(iter(reasons), ""))


def _programs(target: Any) -> tuple[str, Callable[..., Any], Callable[..., Any]]:
    """The name, the program with the hand-written backward, and the reference."""
    hand, reference = _pair(target)
    name = getattr(hand, "__name__", type(hand).__name__)
    if not _is_class(hand) and (reference is None or not callable(hand)):
        raise TargetError(
            "what is proved must be a Function class, or a pair of a program and its reference",
            got=f"`{name}`",
            fix="give the plain function of the same values too: `pb.prove((program, plain), ...)`",
        )
    return name, hand.apply if _is_class(hand) else hand, plain_program(reference or hand)


def _pair(target: Any) -> tuple[Any, Any]:
    return target if isinstance(target, tuple) and len(target) == 2 else (target, None)


def _is_class(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, TorchFunction)


# ---- judgements ----


def _judgements(
    programs: ProgramPair, views: Sequence[View], deadline: float
) -> dict[Key, Judgement]:
    """A judgement on each gradient, for every request."""
    judgements = GradientProver(views, list(programs.names), deadline).run()
    for request in partial_requests(programs):
        if all(judgement.verdict != PROVED for judgement in judgements.values()):
            break
        for key, found in _for_request(request, views[0], judgements, deadline).items():
            judgements[key] = found
    return judgements


def _for_request(
    request: Request, whole: View, judgements: Mapping[Key, Judgement], deadline: float
) -> dict[Key, Judgement]:
    """The judgements that asking for less changes, of those that are proved so far."""
    proved = [key for key, judgement in judgements.items() if judgement.verdict == PROVED]
    keys = [key for key in proved if request.asks_for(key, whole.programs)]
    try:
        view = view_for(request, whole, keys) if keys else None
    except (UnreadableError, Outside) as error:
        unknown = Judgement(UNKNOWN, reason=f"where {request.text}: {error}")
        return dict.fromkeys(keys, unknown)
    if view is None:
        return {}
    found = GradientProver([view], keys, deadline, request.text).run()
    return {key: _joined(judgements[key], each, request) for key, each in found.items()}


def _joined(whole: Judgement, found: Judgement, request: Request) -> Judgement:
    if found.verdict == UNKNOWN:
        return replace(found, reason=f"where {request.text}: {found.reason}")
    provisos = tuple(dict.fromkeys([*whole.provisos, *found.provisos]))
    return replace(found, provisos=provisos if found.verdict == PROVED else ())


def _with_scope(
    judgement: Judgement, name: str, given: Sequence[str], surrogates: Sequence[str] | None
) -> Judgement:
    """A judgement with what it holds for; unknown for a declared surrogate gradient."""
    if surrogates is None or name in surrogates:
        reason = "declared a surrogate: it is not meant to be the derivative"
        return Judgement(UNKNOWN, reason=reason)
    if judgement.verdict != PROVED:
        return judgement
    values = [f"for the given values of `{each}`" for each in given]
    return replace(judgement, provisos=(*judgement.provisos, *values))


def _surrogates(target: Any) -> Sequence[str] | None:
    """The inputs whose gradients are surrogates, as the class `declares`; None for all of them."""
    declared = getattr(_pair(target)[0], "declares", None)
    found = declared.get("surrogate", ()) if isinstance(declared, Mapping) else ()
    if isinstance(found, bool):
        return None if found else ()
    return (found,) if isinstance(found, str) else tuple(found)


# ---- scope ----


def _scope(view: View) -> str:
    captured = view.programs.hand.captured, view.programs.derived.captured
    is_pointwise = view.hand.is_pointwise and view.derived.is_pointwise
    clauses = [clause for each in captured for clause in each.clauses]
    if is_pointwise and all(map(_is_harmless, clauses)):
        rank = max(len(shape) for shape in view.shapes)
        if rank == 0:
            return "for tensors without dimensions"
        common = " common to all inputs" if len(view.inputs) > 1 else ""
        return f"for every size from 2 on{common}, in {rank} dimension{'s' if rank > 1 else ''}"
    names = [i.name for i in view.programs.hand.captured.inputs]
    shapes = [f"{n} {list(s)}" for n, s in zip(names, view.shapes, strict=False)]
    return f"for shapes {', '.join(shapes)}"


_SIZE = r"L\['t(\d+)'\]\.size\(\)\[(\d+)\]"


def _is_harmless(clause: str) -> bool:
    """Whether a guard of a capture only says that sizes are above 1, or common to all inputs."""
    if ".stride()" in clause or re.fullmatch(f"2 <= {_SIZE}", clause):
        return True  # contiguous tensors; what every capture assumes
    same = re.fullmatch(f"{_SIZE} == {_SIZE}", clause)
    return same is not None and same[1] != same[3] and same[2] == same[4]
