"""The cut of a joint graph: what forward saves for backward, and what backward computes again.

Forward may save any node that can run before a cotangent is known; backward runs again what else it
needs. `cut_problem` says what there is to decide and at which price, `cut_network` finds the best
choice as a minimum cut, `cut_search` trades bytes for flops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pullback.errors import PolicyError
from pullback.graph.cut_network import FEWEST_BYTES, sure
from pullback.graph.cut_problem import Cut, pose
from pullback.graph.cut_search import pareto, polished, search
from pullback.graph.parts import JointGraph

POLICIES = ("auto", "factors", "inputs", "everything")


@dataclass(frozen=True, slots=True)
class TradePoint:
    """One cut of the trade between memory and work, with its time where that was measured."""

    cut: Cut
    time: float | None = None

    @property
    def bytes(self) -> int:
        """The saved bytes that nothing else keeps alive."""
        return self.cut.charged_bytes

    @property
    def flops(self) -> int:
        """The flops that backward spends a second time."""
        return self.cut.flops


def cut(
    joint: JointGraph,
    policy: str | int = "auto",
    *,
    free: Collection[str | int] = frozenset(),
    needed: Collection[int] | None = None,
) -> Cut:
    """The best cut of `joint` under a policy.

    - `"auto"`: the fewest bytes that need nothing dear to run twice: no matmul-like op, and no
      reduction to a quarter of its input or less;
    - `"factors"`: the same, but what matmul-like ops of both passes read is saved, too: it must be
      in memory for them, so that to compute it again costs time even where ops are fused;
    - `"inputs"`: run everything again that may be; random and opaque ops never run twice;
    - `"everything"`: run nothing again but views, and what one call makes of sizes alone: no more
      than eager autograd would keep;
    - a number: the fewest flops whose saved bytes fit into it, to one part in `GRAIN`. Should the
      search outgrow `EFFORT`, the best that it found.

    Arguments:
        joint: a joint graph.
        policy: one of the above.
        free: names or positions of inputs that something else keeps alive (leaves): saving them
            costs nothing. Outputs are returned, so they cost nothing either.
        needed: positions of the gradients that are asked for; None for all of them.
    """
    require_policy(policy)
    problem = pose(joint, policy, free, needed)
    if isinstance(policy, str):
        return problem.cut_saving(sure(problem, FEWEST_BYTES).saved)
    best, _ = search(problem, policy)
    if best is None:
        raise _out_of_reach(policy, sure(problem, FEWEST_BYTES).bytes)
    return problem.cut_saving(polished(problem, best).saved)


def frontier(
    joint: JointGraph,
    *,
    free: Collection[str | int] = frozenset(),
    needed: Collection[int] | None = None,
    time: Callable[[Cut], float] | None = None,
) -> tuple[TradePoint, ...]:
    """Every best trade of saved bytes against recomputed flops, from most bytes to fewest.

    No cut has fewer bytes than one of these without more flops, nor fewer flops without more bytes.
    The points of the convex hull come from a sweep of minimum cuts of `bytes + x * flops`, each of
    which proves itself; those above it from a search below each point, which proves that nothing is
    between. Where a search outgrows `EFFORT`, what it found is left out: it is not proved.
    Differences below one part in `GRAIN` do not count.

    `time` measures a cut, in seconds.
    """
    problem = pose(joint, 0, free, needed)
    choices = (polished(problem, choice) for choice in pareto(problem))
    cuts = [problem.cut_saving(choice.saved) for choice in choices]
    best = [each for each in cuts if not any(_beats(other, each) for other in cuts)]
    return tuple(TradePoint(each, time(each) if time else None) for each in best)


def _beats(one: Cut, other: Cut) -> bool:
    """Whether `one` is better in bytes or flops, and no worse in the other."""
    mine, its = ((each.charged_bytes, each.flops) for each in (one, other))
    return mine != its and mine[0] <= its[0] and mine[1] <= its[1]


# ---- mistakes of the caller ----


def require_policy(policy: object) -> None:
    """Raise `PolicyError` unless `policy` is a known word or a number of bytes."""
    is_budget = isinstance(policy, int) and not isinstance(policy, bool) and policy >= 0
    if is_budget or (isinstance(policy, str) and policy in POLICIES):
        return
    raise PolicyError(
        "`save` must be the name of a policy or a number of bytes",
        expected='"auto", "factors", "inputs", "everything", or a whole number from 0',
        got=repr(policy),
        fix='leave it out, which means "auto"',
    )


def _out_of_reach(budget: int, least: int) -> PolicyError:
    return PolicyError(
        "`save` must leave room for what backward cannot do without",
        expected=f"{least:,} bytes or more",
        got=f"{budget:,} bytes",
        fix=f"save={least}",
    )
