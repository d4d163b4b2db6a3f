"""Where a hand-written backward is wrong, by how much, by what pattern, and which edit repairs it.

The truth is the forward: PyTorch's own derivative of it, on the examples and on fresh inputs, in
double precision. Where the forward hides a value from autograd (`detach`, NumPy), finite
differences decide. The user's backward is then changed in one place after another until its
gradient is right; the smallest change that does it, and that holds on further inputs, is named.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.autograd.function import Function as TorchFunction

from pullback.capture.joint import Capture
from pullback.diagnose.comparison import BackwardComparison, captured_on_examples, compare_backwards
from pullback.diagnose.detached_values import detached_value
from pullback.diagnose.error_patterns import (
    LAST,
    PATTERNS,
    WrongGradient,
    constant_multiple,
    unused_cotangent,
    wrong_elements,
)
from pullback.diagnose.fault import Fault, Faults
from pullback.diagnose.repairs import GradientRepair, RepairSearch
from pullback.diagnose.scope import cotangent_names
from pullback.diagnose.trials import Trials, UntriedError
from pullback.diagnose.verifier import Verifier
from pullback.errors import CaptureError, first_line, type_and_line
from pullback.function.signature import source_place
from pullback.function.slots import no_backward, no_vjp
from pullback.graph.spelling.expressions import ATOM
from pullback.judge.mismatch import Mismatch

Result = TypeVar("Result")

HIDDEN = "forward hides it from autograd, and finite differences give another gradient"
UNKNOWN = "it follows no simple pattern"


def diagnose(target: Any, *examples: Any, seconds: float = 2.0) -> Faults:
    """What is wrong with the backward of `target`: one fault for each wrong gradient.

    The same call gives the same faults, if it has the time to find them. A gradient that is meant
    to differ from the derivative, as that of a straight-through estimator, is reported too: what
    is meant is not known here. A Function that cannot be judged, since it raises or has nothing to
    differentiate, gives no faults and a reason.

    Arguments:
        target: A Function class, of PyTorch's or ours, with a backward.
        examples: Arguments to call it with; fresh inputs are drawn from their values. Gradients
            are looked at for the tensors that require grad, or, if none does, for all that can.
        seconds: How long to search for edits, in seconds of work of this process: a crowded
            machine finds what an idle one does. The Function is run on the examples, and on values
            near them, in any case; a step that has begun is finished.

    >>> class Double(torch.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         return g
    >>> [fault] = diagnose(Double, torch.ones(3))
    >>> print(fault.pattern, "->", fault.edit)
    1/2 times what it should be -> multiply by 2
    """
    if not (isinstance(target, type) and issubclass(target, TorchFunction)):
        raise CaptureError(
            f"`{getattr(target, '__name__', target)}` must be a Function class to be diagnosed",
            got=type(target).__name__,
            fix="pass the class itself, and the arguments after it",
        )
    deadline = time.process_time() + seconds
    with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")  # each trial would repeat them
        try:
            return _Case(target, examples, deadline).faults()
        except UntriedError as error:
            return Faults(target.__name__, reason=str(error))


class _Case:
    """A Function to diagnose, and what is known about it."""

    def __init__(self, target: Any, examples: Sequence[Any], deadline: float) -> None:
        self.name = target.__name__
        self.deadline = deadline
        self.backward = _backward_of(target)
        self.trials = trials = Trials(target, examples)
        if not trials.positions or not trials.used:
            what = "input takes" if not trials.positions else "output has"
            raise UntriedError(f"no {what} a gradient")
        self.failure = ""
        self.derived = self.attempt(self.captured) if self.in_time() else None
        self.attempt(lambda: trials.add_fresh(self.derived))
        names = tuple(cotangent_names(self.backward, trials.used))
        self.evidence = [WrongGradient(trials, place, names) for place in range(len(trials.names))]
        self.hidden: dict[int, Mismatch] = {}  # where slopes contradict autograd
        self.wrong = [one for one in self.evidence if one.first and not self.is_right(one)]
        self.compared: BackwardComparison | None = None
        self.repairs: dict[int, GradientRepair] = {}
        if self.wrong and self.in_time() and self.derived is not None:
            self.attempt(self.explain)

    def attempt(self, step: Callable[[], Result]) -> Result | None:
        """Take a step that may fail on an unusual Function: the rest of the diagnosis stands."""
        try:
            return step()
        except Exception as error:
            self.failure = self.failure or type_and_line(error)
            return None

    def captured(self) -> Capture | None:
        """The forward, with the backward that autograd derives."""
        return captured_on_examples(self.trials, self.trials.program)

    def in_time(self) -> bool:
        """Whether there is time left."""
        return time.process_time() < self.deadline

    def is_right(self, evidence: WrongGradient) -> bool:
        """Whether the judge finds it right: then finite differences contradict autograd."""
        place, trial = evidence.place, evidence.first
        if trial is None or place in trial.misfits:
            return trial is None
        judged = self.attempt(lambda: (self.trials.judged(trial, place),))
        if judged is None or judged[0] is None:
            return judged is not None
        if not trial.sees(place, judged[0]):
            self.hidden[place] = judged[0]
        return False

    def explain(self) -> None:
        """Compare both graphs, and search for edits."""
        self.compared = compare_backwards(self.trials, self.derived, self.wrong, self.backward)
        if self.compared is not None:
            hand = self.compared.scope.hand.captured
            verifier = Verifier(hand, self.trials.held_out(self.compared.derived))
            seen = {e.place: e for e in self.wrong if e.place not in self.hidden}
            self.repairs = RepairSearch(self.compared, seen, verifier, self.deadline).find()

    # ---- faults ----

    def faults(self) -> Faults:
        """The result."""
        found = tuple(self.fault(evidence) for evidence in self.wrong)
        return Faults(self.name, found, len(self.trials.all), self.reason(found))

    def reason(self, found: Sequence[Fault]) -> str:
        """What could not be determined, and why."""
        is_whole = all(fault.edit and fault.edit.is_small for fault in found)
        refusals = self.trials.refusals
        if is_whole and self.derived is not None:
            return ""
        if self.failure:
            return f"not everything could be tried: {self.failure}"
        if not self.in_time():
            return "the time was up before everything was tried"
        if refusals and (self.derived is None or self.compared is None):
            lost = "no edit was searched" if found else "other sizes were not tried"
            return f"it cannot be captured, so {lost}: {first_line(refusals[0])}"
        if self.compared is None and self.derived is not None and found:
            return "its graph, as it was captured, does not give what its backward gives"
        return ""

    def fault(self, evidence: WrongGradient) -> Fault:
        """What is known about a wrong gradient."""
        place, trial = evidence.place, evidence.first
        assert trial is not None
        expected, got = trial.pair(place)
        repair, said = self.repairs.get(place), self.hidden.get(place)
        is_fit = place not in trial.misfits
        element = trial.worst(place) if is_fit else ()
        wrong, total = int(trial.wrong(place).sum()), expected.numel()
        if said is not None:
            element, wrong, total = said.index or (), said.wrong, said.total
            is_fit = said.index is not None
        is_none = trial.got[place] is None or not is_fit
        pattern, is_known = self.pattern(evidence)
        return Fault(
            input=self.trials.names[place],
            element=element,
            expected=(said.expected if said else expected[element].item()) if is_fit else None,
            got=None if is_none else got[element].item(),
            wrong=wrong,
            total=total,
            pattern=pattern,
            is_known=is_known,
            edit=repair.edit if repair else None,
            place=self.place(place, repair),
            witness=trial,
        )

    def pattern(self, evidence: WrongGradient) -> tuple[str, bool]:
        """The error, and where it is; and whether it is known."""
        if evidence.place in self.hidden:
            return HIDDEN, True
        words, is_clear = self.attempt(lambda: self.kind_of_error(evidence)) or ("", False)
        where = "" if is_clear else self.attempt(lambda: self.where(evidence))
        return (words or UNKNOWN) + (where or ""), bool(words)

    def kind_of_error(self, evidence: WrongGradient) -> tuple[str, bool]:
        """The error, and whether that says where: as a missing mask does.

        First comes what is certain, then what the edit shows, then what is likely.
        """
        known = PATTERNS if self.in_time() or not evidence.shown[0].is_large else PATTERNS[:2]
        found = ((text, pattern) for pattern in known if (text := pattern(evidence)))
        sure, by = next(found, ("", None))
        repair = self.repairs.get(evidence.place)
        words, kind = (repair.pattern, repair.kind) if repair else ("", "")
        is_clear = kind == "factor"
        if kind == "reduction" and by is constant_multiple:
            return words, is_clear  # the mean for the sum: more than a factor
        if kind == "value" and by is unused_cotangent:
            return words, is_clear  # the other cotangent is used
        if sure or (words and kind != "summand"):
            return sure or words, is_clear and not sure
        last = next(
            (text for pattern in LAST if self.in_time() and (text := pattern(evidence))), ""
        )
        return self.held(evidence) or words or last, False

    def held(self, evidence: WrongGradient) -> str:
        """The value that the user's backward treats as a constant."""
        compared = self.compared
        if compared is None:
            return ""
        named = compared.scope.named
        shown = [trial for trial in compared.aligned if trial.is_wrong(evidence.place)]
        is_named = lambda node: not named[node].text.size  # noqa: E731
        held = detached_value(compared.derived, shown, evidence.place, is_named, self.in_time)
        if held is None:
            return ""
        where = f" in `{named[held.user].text.text}`" if held.user else ""
        name = named[held.node].text.text
        return f"the derivative of `{name}`{where} is missing, as if it were a constant"

    def where(self, evidence: WrongGradient) -> str:
        """Which elements, if not all, and which sizes, if not those of the examples."""
        shapes = [
            ", ".join(str(list(tensor.shape)) for tensor in trial.tensors)
            for trial in (self.trials.all[0], evidence.first)
            if trial is not None
        ]
        sizes = f", for inputs of shape {shapes[1]}" if len(set(shapes)) > 1 else ""
        return wrong_elements(evidence, self.conditions()) + sizes

    def conditions(self) -> list[tuple[str, dict[int, Tensor]]]:
        """The user's own conditions, and their opposites, by the number of the trial."""
        found: list[tuple[str, dict[int, Tensor]]] = []
        if self.compared is None:
            return found
        numbers = [trial.number for trial in self.compared.trials]
        for known in self.compared.scope.known:
            if known.is_tensor and known.values[0].dtype == torch.bool:
                values = dict(zip(numbers, known.values, strict=True))
                opposite = {number: ~value for number, value in values.items()}
                found.append((known.text.text, values))
                found.append((f"~{known.text.within(ATOM)}", opposite))
        return found

    def place(self, place: int, repair: GradientRepair | None) -> str:
        """The line of the edit, or of what is returned, or of the backward."""
        nodes: list[Any] = list(repair.users) if repair else []
        nodes += [self.compared.hand.gradients[place]] if self.compared else []
        places = (str(n.meta.get("place", "")) for n in nodes if isinstance(n, fx.Node))
        return next((found for found in places if found), "") or source_place(self.backward)


# ---- parts ----


def _backward_of(target: Any) -> Any:
    """The user's backward, under either of its names."""
    if target.vjp is not no_vjp:
        return target.vjp
    if target.backward is no_backward:
        raise UntriedError("it has no backward")
    return target.backward
