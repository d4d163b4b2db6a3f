"""The graph of a hand-written backward beside the one that is derived from the same forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx

from pullback.capture.joint import Capture, capture
from pullback.diagnose.error_patterns import ShapeRepair, WrongGradient, shape_repairs, swapped_with
from pullback.diagnose.gradient_trial import GradientTrial
from pullback.diagnose.graph_values import GraphRun, run_graph
from pullback.diagnose.scope import Scope, add_derived, add_reductions, scope_of
from pullback.diagnose.shape_fitting import make_fitted
from pullback.diagnose.trials import Trials
from pullback.errors import PullbackError
from pullback.graph.copies import copied_graph, with_graph
from pullback.graph.dead import erase_dead
from pullback.graph.names import names_of
from pullback.graph.parts import JointGraph
from pullback.graph.rewrite import rewrite
from pullback.graph.simplify import EXACT, READABLE, simplify
from pullback.graph.text import graph_text


@dataclass(frozen=True, slots=True, eq=False)
class BackwardComparison:
    """Both graphs, run in the same trials.

    `scope` has the values that edits can use. `trials` are those that both graphs can run, large
    ones only if a fault does not show in the others. `aligned` are the same, with the cotangents
    that the derived graph takes.
    """

    scope: Scope
    derived: Capture
    readable: JointGraph
    trials: tuple[GradientTrial, ...]
    aligned: tuple[GradientTrial, ...]

    @property
    def hand(self) -> JointGraph:
        """The user's graph, with wrong shapes and swapped gradients corrected."""
        return self.scope.hand.joint

    def shows(self, place: int) -> bool:
        """Whether the gradient at `place` is wrong in these trials: edits need such a trial."""
        return any(trial.is_wrong(place) for trial in self.trials)

    def listing(self, place: int) -> str:
        """The derived gradient as a list of statements, in the user's variables."""
        joint = self.readable
        graph, copies = copied_graph(joint.graph)
        graph.output_node().args = ((copies[joint.gradients[place]],),)
        erase_dead(graph)
        names = self._names(copies)
        text = graph_text(graph, {node: names[node] for node in graph.nodes if node in names})
        return "\n".join([*text.statements, f"return {', '.join(text.returned)}"])

    def _names(self, copies: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, str]:
        """The user's names for the copies of nodes of the derived graph, and generated ones."""
        derived, scope = self.derived, self.scope
        given = [scope.names[node] for node in self.hand.inputs]
        given += [one.name for one in derived.inputs[len(given) :]]
        needing = [i for i, one in enumerate(derived.inputs) if one.needs]
        made = names_of(self.readable, derived.local_names, given, differentiated=needing)
        own = set(scope.names.values())
        known = {node: scope.named[node].text.text for node in made if node in scope.named}
        mine = {node: text for node, text in known.items() if text in own}
        taken = set(mine.values())
        rest = {n: name for n, name in made.items() if n in made.given and name not in taken}
        return {copies[node]: name for node, name in (rest | mine).items()}


def captured_on_examples(
    trials: Trials, program: Callable[..., Any], used: Sequence[bool] | None = None
) -> Capture | None:
    """`program` captured on the examples, with symbols for sizes if possible, or None."""
    for dynamic in (True, False):
        try:
            return capture(program, trials.examples, needs=trials.needs, used=used, dynamic=dynamic)
        except PullbackError as error:
            trials.refusals.append(error)
    return None


def compare_backwards(
    trials: Trials, derived: Capture | None, wrong: Sequence[WrongGradient], backward: Any
) -> BackwardComparison | None:
    """The user's backward beside the derived one, or None if they cannot be captured."""
    hand = captured_on_examples(trials, _fitted(trials, wrong))
    if hand is None or derived is None:
        return None
    used = _used(hand, derived)
    if not all(used):
        derived = captured_on_examples(trials, trials.program, used)
    if derived is None:
        return None
    both = hand, derived
    rows = [t for t in _showing(trials, wrong) if all(one.serves(t.tensors) for one in both)]
    user = run_graph(hand, _tidied(hand.joint), rows)
    if not rows or not _is_faithful(user, rows):
        return None  # a graph that does not give what its program gives explains nothing
    return _compared(trials, user, derived, backward, rows)


def _compared(
    trials: Trials, user: GraphRun, derived: Capture, backward: Any, rows: Sequence[GradientTrial]
) -> BackwardComparison:
    scope = scope_of(user, trials.input_names, backward)
    scope.kept = tuple(trials.kept())
    cotangents = _shared_cotangents(user.captured, derived)
    aligned = tuple(_aligned(trial, cotangents) for trial in rows)
    readable = simplify(derived.joint, READABLE)
    for joint in (readable, derived.joint):
        add_derived(scope, run_graph(derived, joint, aligned), cotangents)
    add_reductions(scope)
    return BackwardComparison(scope, derived, readable, tuple(rows), aligned)


def _showing(trials: Trials, wrong: Sequence[WrongGradient]) -> list[GradientTrial]:
    """The small trials, if every fault shows in them, else all."""
    small = [trial for trial in trials.all if not trial.is_large]
    is_shown = all(any(trial.is_wrong(one.place) for trial in small) for one in wrong)
    return small if is_shown else trials.all


def _tidied(joint: JointGraph) -> JointGraph:
    """`joint` without no-ops. Nothing is merged, so that an edit can change each op by itself."""
    return with_graph(joint, rewrite(joint.graph, EXACT, joint.output_count).graph)


def _is_faithful(user: GraphRun, rows: Sequence[GradientTrial]) -> bool:
    """Whether the graph gives what the user's backward gave, where its shape was right."""
    for trial, values in zip(rows, user.values, strict=True):
        for place, (got, node) in enumerate(zip(trial.got, user.joint.gradients, strict=False)):
            found = values[node] if isinstance(node, fx.Node) else None
            if place not in trial.misfits and not trial.agrees(got, found):
                return False
    return True


# ---- cotangents ----


def _shared_cotangents(hand: Capture, derived: Capture) -> list[int]:
    """For each cotangent of the derived graph, its place among the user's."""
    used = [i for i, output in enumerate(hand.outputs) if output.used]
    pairs = zip(hand.outputs, derived.outputs, strict=False)
    both = [i for i, (a, b) in enumerate(pairs) if a.used and b.differentiable]
    return [used.index(i) for i in both]


def _used(hand: Capture, derived: Capture) -> list[bool]:
    """Which differentiable outputs of the derived graph have a cotangent: those the user's has."""
    places = [i for i, output in enumerate(derived.outputs) if output.differentiable]
    return [i < len(hand.outputs) and hand.outputs[i].used for i in places]


def _aligned(trial: GradientTrial, cotangents: Sequence[int]) -> GradientTrial:
    return replace(trial, cotangents=tuple(trial.cotangents[i] for i in cotangents))


# ---- gradients of the wrong shape ----


def _fitted(trials: Trials, wrong: Sequence[WrongGradient]) -> Callable[..., Any]:
    """The user's Function; gradients of the wrong shape are corrected, if possible."""
    misshapen = [one for one in wrong if not one.has_shape()]
    if not misshapen:
        apply: Callable[..., Any] = trials.target.apply
        return apply
    by_position: dict[int, ShapeRepair] = {}
    order: dict[int, int] = {}
    for one in misshapen:
        position, other = trials.position(one.place), swapped_with(one)
        if other is not None:
            order[position] = trials.position(other)
            order[trials.position(other)] = position
        for _, repair in shape_repairs(one):
            by_position.setdefault(position, repair)

    def fit(position: int, gradient: Tensor, shape: Sequence[Any]) -> Tensor:
        if position in by_position:
            return by_position[position](gradient, shape)
        return gradient.new_zeros(tuple(shape))

    return make_fitted(trials.target, fit, order=order)
