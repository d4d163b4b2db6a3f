"""A target with its examples: everything a check may ask of it.

A check asks the subject for runs, cotangents, judgements and variants, and yields `Finding` or
`Skip`. It never holds tensors of the user's: the subject gives fresh copies each time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pullback.capture.indices import has_indices_elsewhere, is_index, try_indices
from pullback.check.findings.facts import at_worst, numbers, sheet_of
from pullback.check.findings.finding import Finding as Finding
from pullback.check.findings.finding import Rule as Rule
from pullback.check.findings.finding import Severity as Severity
from pullback.check.findings.finding import Skip as Skip
from pullback.check.inputs.arguments import arguments_of
from pullback.check.inputs.relations import (
    Relation,
    allowed_tangents,
    broken_by,
    relations_of,
    restored,
)
from pullback.check.inputs.shapes import resized, smaller_of, symbols_of
from pullback.check.kernels.tuning import worked
from pullback.check.subject.gap import copied
from pullback.check.target.target import Intent, Target
from pullback.check.watching.dispatch import Work
from pullback.check.watching.leftovers import Leftovers, leftovers_of
from pullback.judge.example import Example, describe_value, tensors_in
from pullback.judge.mismatch import Mismatch
from pullback.judge.patterns import Pattern, error_pattern, factor_of
from pullback.judge.run import BackwardFailedError as BackwardFailedError
from pullback.judge.run import CallError as CallError
from pullback.judge.run import ForwardRefusedError as ForwardRefusedError
from pullback.judge.run import Raised, Run, copies_of, cotangents_of, describe, of_span, run
from pullback.judge.tolerances import NEAR_ONE, is_close
from pullback.judge.verdict import Judge

LEAF_IN_PLACE = "a leaf Variable that requires grad"


Show = Callable[["Subject", Finding, Example | None], Finding]


def unshown(subject: Subject, finding: Finding, example: Example | None) -> Finding:
    """A finding as it is, without a program that shows it."""
    return finding


class Subject:
    """A Function at its examples, with everything a check may ask of it.

    `show` completes a finding about it by its repro.
    """

    def __init__(
        self,
        target: Target,
        examples: Sequence[Example],
        *,
        profile: str = "standard",
        show: Show = unshown,
    ) -> None:
        self.show = show
        self.target = target
        self.examples = tuple(examples)
        self.profile = profile
        self.beginning = self.leftovers()  # before the first call
        self.reference = target.reference()
        self._judge = Judge(self.reference, lambda: self.time_is_up, self.tangents)
        self.tried: Counter[str] = Counter()
        self.deadline = float("inf")  # of this process's work, so that the load does not matter
        self.first_run: Run | None = None  # of all, at the example as given
        self.latest = float("inf")  # by the clock, for what waits
        # Variants already tried, by family, and (group, input) pairs that a rule has reported.
        self.trials: dict[str, list[Any]] = {}
        self.reported: set[tuple[str, str]] = set()

    def accept(self, intent: Intent) -> None:
        """Take this for what the author means; what was judged without it is judged anew."""
        self.target = replace(self.target, intent=intent)
        for name in ("base_mismatches", "patterns", "wrong_names", "relations"):
            self.__dict__.pop(name, None)

    def other(self, example: Example, call: Callable[..., Any] | None = None) -> Subject:
        """The same function at another example, or another call in its place."""
        target = self.target
        if call is not None:
            target = replace(target, thing=call, call=call, function=None)
        made = Subject(target, (example,), profile=self.profile, show=self.show)
        made.names = self.names
        return made

    def leftovers(self) -> Leftovers:
        """What the calls so far have left on the class, and around its methods."""
        target = self.target
        methods = map(target.method, ("forward", "backward", "setup_context"))
        return leftovers_of(target.function, (*methods, target.thing))

    @contextmanager
    def with_leftovers(self, other: Leftovers) -> Iterator[None]:
        """The function with what was there at another time; put back afterwards."""
        now = self.leftovers()
        other.put_back()
        try:
            yield
        finally:
            now.put_back()

    # ---- what there is ----

    @property
    def given(self) -> Example:
        """The first example, as the user gave it."""
        return self.examples[0]

    @cached_property
    def base(self) -> Example:
        """The first example in float64 where the function serves that, else as given."""
        exact = self.given.double()
        if not self.accepts(exact):
            return self.given
        return exact if self._serves(exact) or not self._serves(self.given) else self.given

    @cached_property
    def small_given(self) -> Example:
        """The first example, made smaller where it is large: for rules that run it often."""
        return next((e for e in smaller_of(self.given) if self.accepts(e)), self.given)

    @cached_property
    def small(self) -> Example:
        """`small_given` in float64 where forward accepts that."""
        if self.small_given is self.given:
            return self.base
        exact = self.small_given.double()
        return exact if self.accepts(exact) else self.small_given

    @cached_property
    def whole(self) -> Example:
        """`small` with the defaults of the arguments that the example leaves out."""
        small = self.small
        more = self.target.defaults_after(len(small.args))
        return replace(small, args=(*small.args, *more)) if more else small

    def other_arguments(self, usual: Example | None = None) -> Iterator[Example]:
        """`whole` with each argument that is no differentiable tensor as another one in turn."""
        target = self.target
        return arguments_of(usual or self.whole, self.names, target.words, target.optional)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the arguments, also of those that the examples leave to their defaults."""
        count = max(len(e.args) for e in self.examples)
        return self.target.names_of(count + len(self.target.defaults_after(count)))

    @cached_property
    def writes_inputs(self) -> bool:
        """Whether forward changes an input in place, so that it cannot be called with leaves."""
        try:
            run(self.target.call, self.given, self.names)
        except ForwardRefusedError as refusal:
            return LEAF_IN_PLACE in str(refusal.error)
        return False

    @property
    def time_is_up(self) -> bool:
        """Whether a long-running check should end here; it is asked between variants."""
        return worked() > self.deadline or time.monotonic() > self.latest

    # ---- runs ----

    def run(self, example: Example | None = None, *, needs: Iterable[int] | None = None) -> Run:
        """Call the target on fresh copies; raises `ForwardRefusedError` where it refuses them."""
        example = self.base if example is None else example
        self.tried["runs"] += 1
        self._keep_relations(example)
        self._try_indices(example)
        wanted = None if needs is None else frozenset(needs)
        return self.run_other(self.target.call, example, needs=wanted)

    @cached_property
    def relations(self) -> tuple[Relation, ...]:
        """What the examples show of their arguments, and the user says: others are not tried."""
        said = self.target.domain
        known = {(relation.words, relation.positions) for relation in said}
        shown = relations_of(self.examples, few=self.target.intent.has_surrogate)
        new = (r for r in shown if (r.words, r.positions) not in known)
        return (*said, *(r for r in new if not self._is_by_chance(r)))

    def _is_by_chance(self, relation: Relation) -> bool:
        """Whether lengths are none but indices: exchanged, they exchange the entries of outputs."""
        if not relation.is_of_lengths:
            return False
        (i, *_), given = relation.positions, self.given
        count = given.args[i].shape[0]
        turned = given.put(i, given.args[i].flip(0).clone(), "exchanged")
        try:
            one, two = (run(self.target.call, e, self.names).outputs for e in (given, turned))
        except CallError:
            return False
        return bool(one) and all(
            a.shape == b.shape
            and any(
                size == count and torch.equal(a.detach().flip(dim), b.detach())
                for dim, size in enumerate(a.shape)
            )
            for a, b in zip(one, two, strict=True)
        )

    def tangents(self, example: Example) -> dict[int, Callable[[Tensor], Tensor]]:
        """The part of each gradient that counts, where an input keeps a form such as symmetry."""
        return allowed_tangents(example, self.relations) if self.relations else {}

    def kept(self, example: Example) -> Example:
        """An example of other sizes with the relations that drawing anew has broken, restored."""
        shapes = [tuple(t.shape) for t in tensors_in(example.args)]
        if not self.relations or shapes == [tuple(t.shape) for t in tensors_in(self.given.args)]:
            return example
        return restored(example, self.relations)

    def _keep_relations(self, example: Example) -> None:
        if self.relations and not any(example is one for one in self.examples):
            broken = broken_by(example, self.relations)
            if broken is not None:
                raise ForwardRefusedError(ValueError(f"not {broken.words}, as in the examples"))

    def _try_indices(self, example: Example) -> None:
        """Refuse indices that would end all use of the GPU; those that were given are right."""
        if example is self.given or not has_indices_elsewhere(example.args):
            return
        numbers = _sizes_and_indices(example)
        if numbers in self._right_indices:
            return
        # A kernel does not run on a CPU, and a plain reference does.
        try:
            try_indices(self.target.compare_with or self.target.call, example.args)
        except Exception as error:
            raise ForwardRefusedError(error) from error
        self._right_indices.append(numbers)

    @cached_property
    def _right_indices(self) -> list[Any]:
        return [_sizes_and_indices(example) for example in self.examples]

    def run_with(self, example: Example, args: tuple[Any, ...]) -> Run:
        """Call the target on these very arguments, made from `example`."""
        self.tried["runs"] += 1
        return run(self.target.call, example, self.names, args=args)

    def run_other(
        self,
        call: Callable[..., Any],
        example: Example,
        *,
        needs: frozenset[int] | None = None,
        args: tuple[Any, ...] | None = None,
    ) -> Run:
        """Call something else as the target is called, or it at inputs unlike the examples."""
        return run(
            call, example, self.names, needs=needs, args=args, through_clone=self.writes_inputs
        )

    def arguments(self, example: Example, needs: frozenset[int] | None = None) -> tuple[Any, ...]:
        """Fresh arguments, into which forward may write where it does."""
        args = example.fresh(needs=needs)
        if not self.writes_inputs:
            return args
        return tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)

    def accepts(self, example: Example) -> bool:
        """Whether forward takes these arguments."""
        try:
            self.run(example)
        except ForwardRefusedError:
            return False
        return True

    def _serves(self, example: Example) -> bool:
        """Whether neither forward nor backward raises."""
        try:
            self.pull(example)
        except (ForwardRefusedError, BackwardFailedError):
            return False
        return True

    def cotangents(self, run: Run, draw: int = 0) -> tuple[Tensor | None, ...]:
        """The `draw`-th cotangents for the outputs of a run, None where there can be none."""
        return tuple(
            of_span(output, cotangent) if output.requires_grad else None
            for output, cotangent in zip(run.outputs, cotangents_of(run.outputs, draw), strict=True)
        )

    def pull(
        self, example: Example | None = None, *, draw: int = 0, needs: Iterable[int] | None = None
    ) -> dict[str, Tensor | None]:
        """One run, one pull: the gradients by name."""
        called = self.run(example, needs=needs)
        return called.pull(self.cotangents(called, draw))

    # ---- judgements ----

    def judge(self, example: Example | None = None, *, draw: int = 0) -> list[Mismatch]:
        """The gradients that are wrong, beyond doubt, in one run; declared surrogates left out.

        Raises `ForwardRefusedError` or `BackwardFailedError` as the user's code does.
        """
        called = self.run(example)
        cotangents = self.cotangents(called, draw)
        return self.mismatches(called, cotangents, called.pull(copies_of(cotangents)))

    def mismatches(
        self,
        called: Run,
        cotangents: Sequence[Tensor | None],
        grads: dict[str, Tensor | None],
        *,
        at_once: bool = False,
    ) -> list[Mismatch]:
        """The gradients of a run that are wrong, beyond doubt; declared surrogates left out.

        `at_once`: see `Judge.mismatches`.
        """
        self.tried["judged"] += 1
        honest = {n: g for n, g in grads.items() if not self.target.intent.is_surrogate(n)}
        return self._judge.mismatches(called, cotangents, honest, at_once=at_once)

    @cached_property
    def first_gradients(self) -> dict[str, Tensor | None]:
        """The gradients of the first backward of all, at the example as given; none if it fails."""
        try:
            called = self.first_run or self.run(self.given)
            self.first_run = None
            grads = called.pull(self.cotangents(called))
        except (ForwardRefusedError, BackwardFailedError):
            return {}
        return copied(grads)

    @cached_property
    def base_mismatches(self) -> list[Mismatch]:
        """What is wrong at the examples themselves, over several cotangents; empty if it fails."""
        found: dict[str, Mismatch] = {}
        for example in (self.base, *(e.double() for e in self.examples[1:])):
            try:
                for draw in (0, 1):
                    for mismatch in self.judge(example, draw=draw):
                        found.setdefault(mismatch.name, mismatch)
                for mismatch in self._unlike_forward(example) if not found else ():
                    found.setdefault(mismatch.name, mismatch)
            except (ForwardRefusedError, BackwardFailedError):
                continue
        return list(found.values())

    def _unlike_forward(self, example: Example) -> list[Mismatch]:
        """What differences of forward show where the reference agrees; in a program a cut of the
        graph is meant.
        """
        if not self.target.is_function:
            return []
        called = self.run(example)
        cotangents = self.cotangents(called)
        grads = called.pull(copies_of(cotangents))
        honest = {n: g for n, g in grads.items() if not self.target.intent.is_surrogate(n)}
        return self._judge.unlike_forward(called, cotangents, honest)

    @cached_property
    def patterns(self) -> dict[str, Pattern]:
        """By what pattern each gradient is wrong at the examples, by the name of the input."""
        wrong = self.base_mismatches
        called = self.run()
        found = {mismatch.name: error_pattern(mismatch, wrong, called) for mismatch in wrong}
        for mismatch in wrong:
            size = found[mismatch.name].size
            if size and self._keeps_factor(mismatch, size):
                found[mismatch.name] = error_pattern(mismatch, wrong, called, may_be_mean=False)
        return found

    def _keeps_factor(self, mismatch: Mismatch, size: int) -> bool:
        """Whether a gradient is off by the same factor where a size is another: it is no mean."""
        if size not in symbols_of(self.base):
            return False
        other = resized(self.base, {size: size + 1}, f"size {size} as {size + 1}")
        try:
            again = [m for m in self.judge(other) if m.name == mismatch.name]
        except (ForwardRefusedError, BackwardFailedError):
            return False
        old, new = factor_of(mismatch), factor_of(again[0]) if again else None
        return old is not None and new is not None and abs(old - new) < NEAR_ONE * abs(old)

    @cached_property
    def wrong_names(self) -> frozenset[str]:
        """The inputs whose gradient is wrong at the examples: further checks leave them alone."""
        return frozenset(mismatch.name for mismatch in self.base_mismatches)

    @cached_property
    def fails_at_base(self) -> Raised | None:
        """What backward raises at the examples themselves; None if nothing."""
        try:
            self.pull()
        except BackwardFailedError as failure:
            return failure.raised
        except ForwardRefusedError as refusal:
            return refusal.raised
        return None

    @cached_property
    def operators(self) -> int:
        """How many operators one call and one pull have; raises what they raise."""
        with Work() as work:
            self.pull(self.small)
        return int(work.operators)

    @cached_property
    def is_steady(self) -> bool:
        """Whether a call, made again with the same random numbers, gives the same gradients."""
        if self.target.intent.is_drawn:
            return False  # also where a few draws happen to be the same
        try:
            first, *others = (self.pull() for _ in range(3))
        except (BackwardFailedError, ForwardRefusedError):
            return True
        return all(is_close(o[name], one, 100) for o in others for name, one in first.items())

    # ---- words ----

    def finding(self, rule: Rule, *, example: Example | None = None, **facts: Any) -> Finding:
        """A finding about this subject, with its name, place and inputs filled in.

        `at`, `expected` and `got` are typed facts (`check.facts`), or words where there are none.
        """
        if example is not None:
            facts.setdefault("inputs", example.words(self.names))
        place = self.target.place("backward", "vjp", "forward")
        finding = Finding.made(rule, **facts).of(self.target.name, place)
        return finding if finding.repro else self.show(self, finding, example)

    def mismatched(self, rule: Rule, mismatch: Mismatch, example: Example, **facts: Any) -> Finding:
        """A finding about one wrong gradient."""
        expected, got = numbers(mismatch.expected, mismatch.got)
        known = {"at": at_worst(mismatch), "expected": expected, "got": got}
        finding = self.finding(rule, example=example, **{**known, **facts})
        sheet = finding.about.sheet or sheet_of(mismatch)  # that of the repro, where there is one
        return replace(finding, about=replace(finding.about, sheet=sheet))

    def names_at(self, positions: Iterable[int]) -> str:
        """The names of arguments, in a row."""
        return ", ".join(f"`{self.names[i]}`" for i in positions)


def _sizes_and_indices(example: Example) -> list[Any]:
    tensors = tensors_in(example.args)
    return [(tuple(t.shape), t.tolist() if is_index(t) else None) for t in tensors]


def each(items: Iterable[Any], subject: Subject) -> Iterator[Any]:
    """The items, until the subject's time is up."""
    for item in items:
        if subject.time_is_up:
            return
        yield item


__all__ = [
    "BackwardFailedError",
    "CallError",
    "Finding",
    "ForwardRefusedError",
    "Rule",
    "Severity",
    "Skip",
    "Subject",
    "describe",
    "describe_value",
    "each",
]
