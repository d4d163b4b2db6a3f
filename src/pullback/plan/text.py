"""A plan as text: the table of what was measured, and why one was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pullback.graph.cost import bytes_text
from pullback.plan.choice import scores, weight_of
from pullback.plan.evidence import PlanEvidence, Sized
from pullback.plan.measurements import AS_WRITTEN, COMBINED, NESTED, Measurement, PlanCandidate

HEADS = ("grouping", "backend", "save", "time", "speed-up", "saved", "peak", "error", "nodes")
LEFT_COLUMNS = 3  # columns that begin at the left
LABEL = 72  # characters of a grouping that are shown in the table

# ---- numbers ----


def seconds_text(seconds: float) -> str:
    """A time in three figures: `41.2 us`."""
    rounded = float(f"{seconds:.3g}")  # first, since 999.6 us are 1 ms
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if rounded >= size:
            return f"{seconds:.0f} s" if rounded >= 1000 else f"{rounded / size:.3g} {unit}"
    return f"{rounded * 1e9:.3g} ns"


def error_text(row: Measurement) -> str:
    """The error of a row."""
    if row.error is None:
        return "?"
    return "not finite" if math.isinf(row.error) else f"{row.error:.1e}"


def count_text(count: int) -> str:
    """A count with its thousands apart: `1 000 000`."""
    return f"{count:,}".replace(",", " ")


# ---- the table ----


def table(evidence: PlanEvidence) -> str:
    """Every row, size by size, the chosen ones marked with a star."""
    return "\n\n".join("\n".join(_table(evidence, one)) for one in evidence.sized)


def _table(evidence: PlanEvidence, sized: Sized) -> Iterator[str]:
    of = f" of `{evidence.argument}`" if evidence.argument else ""
    yield f"{evidence.program}{sized.shapes}: {count_text(sized.size)} elements{of}"
    if not sized.rows:
        yield "  nothing was measured"
        return
    rows = sorted(sized.rows, key=lambda row: row.relative)
    cells = [("", *HEADS), *(_cells(row, row.candidate == sized.chosen) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        parts = [
            cell.ljust(width) if place <= LEFT_COLUMNS else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(parts).rstrip()
    if any(row.is_inexact for row in rows):
        yield "   ! loses accuracy: its error is clearly larger than another's"


def _cells(row: Measurement, is_chosen: bool) -> tuple[str, ...]:
    one = row.candidate
    spread = "" if one == AS_WRITTEN else f" ({1 / row.high:.2f} to {1 / row.low:.2f})"
    return (
        "*" if is_chosen else " ",
        row.label if len(row.label) <= LABEL else f"{row.label[: LABEL - 4]} ...",
        one.backend or "-",
        one.save or "-",
        seconds_text(row.seconds),
        f"{row.speedup:.2f}{spread}",
        bytes_text(row.saved),
        bytes_text(row.peak),
        error_text(row) + (" !" if row.is_inexact else ""),
        str(row.nodes),
    )


# ---- the reasons ----


def candidate_text(candidate: PlanCandidate, label: str = "") -> str:
    """A candidate as text."""
    if candidate.how == NESTED:
        return "nested, as written"
    what = candidate.how if candidate.how == COMBINED else f"hybrid {label}".strip()
    return f'{what}, backend "{candidate.backend}", save "{candidate.save}"'


def chosen_text(evidence: PlanEvidence) -> str:
    """What serves, from small sizes to large ones."""
    labels = {row.candidate: row.label for one in evidence.sized for row in one.rows}
    names = [candidate_text(one, labels.get(one, "")) for one in evidence.chosen]
    parts = names[:1]
    of = f" of `{evidence.argument}`" if evidence.argument else ""
    for border, name in zip(evidence.borders, names[1:], strict=True):
        parts.append(f"from {count_text(border)} elements{of} on {name}")
    return "; ".join(parts)


def explain(evidence: PlanEvidence) -> str:
    """Why this was chosen: for each size, and what was considered."""
    lines = [f"{evidence.program}: {chosen_text(evidence)}"]
    weight = weight_of(evidence.objective)
    for one in evidence.sized:
        first, *rest = _why(one, weight)
        lines.append(f"  {count_text(one.size)} elements: {first}")
        lines += [f"    {line}" for line in rest]
    lines += _between(evidence)
    lines += [f"  considered: {note}" for note in evidence.notes]
    reasons = dict[str, list[str]]()
    for name, reason in evidence.refused.items():
        reasons.setdefault(reason, []).append(name)
    lines += [f"  not possible: {_listed(names)}: {why}" for why, names in reasons.items()]
    lines.append(f"  measured: {_machine(evidence)}")
    return "\n".join(lines)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _why(sized: Sized, weight: float) -> Iterator[str]:
    row = sized.row
    if row is None:
        yield "nothing was measured, so the program runs as written"
        return
    base = sized.row_of(AS_WRITTEN)
    chosen = f"{candidate_text(row.candidate, row.label)}, {seconds_text(row.seconds)}"
    if row.candidate == AS_WRITTEN or base is None:
        yield f"{chosen}, {bytes_text(row.saved)} saved"
    else:
        low, high = 1 / row.high, 1 / row.low
        yield chosen
        yield (
            f"{row.speedup:.2f} times as fast as written ({low:.2f} to {high:.2f}), "
            f"{bytes_text(row.saved)} saved instead of {bytes_text(base.saved)}"
        )
    yield from _rivals(sized, row, weight)


def _rivals(sized: Sized, row: Measurement, weight: float) -> Iterator[str]:
    """What was as good or seemed better, and why it was not taken."""
    cost = scores(sized.rows, weight)
    others = [other for other in sized.rows if other != row]
    better = [other for other in others if other.is_inexact and cost[other] < cost[row]]
    for other in sorted(better, key=cost.__getitem__)[:2]:
        yield (
            f"{candidate_text(other.candidate, other.label)} is faster and loses accuracy: error "
            f"{error_text(other)} against {error_text(row)}"
        )
    if row.is_inexact:
        yield f"it loses accuracy (error {error_text(row)}), and nothing exact is near in time"
    exact = [other for other in others if not other.is_inexact]
    if exact:
        second = min(exact, key=cost.__getitem__)
        times = second.relative / row.relative
        name = candidate_text(second.candidate, second.label)
        how = "as fast within noise" if abs(times - 1) <= 0.02 else f"{times:.2f} times its time"
        yield f"next is {name}: {how}, {bytes_text(second.saved)} saved"


def _between(evidence: PlanEvidence) -> Iterator[str]:
    """Where one choice overtakes the other."""
    changes = [
        (small, large)
        for small, large in zip(evidence.sized, evidence.sized[1:], strict=False)
        if small.chosen != large.chosen
    ]
    for border, (small, large) in zip(evidence.borders, changes, strict=True):
        yield (
            f"  crossover: {count_text(border)} elements, between the measured "
            f"{count_text(small.size)} and {count_text(large.size)}"
        )


def _machine(evidence: PlanEvidence) -> str:
    made = evidence.made_with
    threads = f"{made['threads']} thread" + ("" if made["threads"] == 1 else "s")
    return f"torch {made['torch']}, {made['device']}, {threads}, in {made['seconds']} s"
