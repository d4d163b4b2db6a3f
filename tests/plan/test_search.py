"""The search decides by what is measured: planted numbers lead it where they must."""

import contextlib
import os
import signal
import sys
from dataclasses import replace

import pytest
import torch

from pullback.plan.choice import choose_measurement
from pullback.plan.measurements import AS_WRITTEN, COMBINED, HYBRID, PlanCandidate, build_candidate
from pullback.plan.search import PlanSearch
from pullback.plan.sized_program import sized_program
from tests.plan.fakes import (
    FakeMeter,
    Sine,
    Square,
    chain,
    decides,
    doubles_in_place,
    leaf,
    square_sine,
)

PAIR = ("eager", "everything")


def search(program, meter, *rows, weight=0.0, budget=1000.0, pairs=(PAIR,), report=None):
    rows = rows or ((leaf(),),)
    cases = [sized_program(program, row, row[0].numel()) for row in rows]
    found = PlanSearch(
        program, cases, pairs, weight, budget, meter, report or (lambda done, total, text: None)
    )
    found.run()
    return found


def chosen(found, size=8):
    return choose_measurement(found.rows[size], found.weight).candidate


# ---- planted times ----


def test_fewest_nodes_win_where_nodes_cost():
    assert chosen(search(chain, FakeMeter())) == PlanCandidate(COMBINED, (), *PAIR)


def test_slow_whole_gives_way_to_the_best_groups():
    meter = FakeMeter({"Chain": 9.0})

    assert chosen(search(chain, meter)).groups in {((0, 1),), ((1, 2),)}


def test_planted_delay_in_group_is_avoided():
    meter = FakeMeter({"Chain": 9.0, "SquareSine": 5.0})

    assert chosen(search(chain, meter)) == PlanCandidate(HYBRID, ((1, 2),), *PAIR)


def test_nested_wins_where_every_node_is_slow():
    slow = dict.fromkeys(("Chain", "SquareSine", "SineGrowth"), 9.0)

    assert chosen(search(chain, FakeMeter(slow))) == AS_WRITTEN


def test_group_of_branches_that_are_apart_wins():
    meter = FakeMeter({"SquareSine": 9.0, "Square_Sine_mul": 9.0, "SineMul": 9.0, "Mul": 3.0})

    found = search(square_sine, meter, (leaf(), leaf()))

    assert chosen(found) == PlanCandidate(HYBRID, ((0, 2),), *PAIR)


def test_every_grouping_of_few_is_measured():
    found = search(square_sine, FakeMeter(), (leaf(), leaf()))

    labels = {row.label for row in found.rows[8]}
    assert labels == {
        "Square Sine mul",
        "[Square Sine] mul",
        "[Square mul] Sine",
        "Square [Sine mul]",
        "[Square Sine mul]",
    }
    assert found.notes == ["all 7 convex groups"]


def test_groups_written_alike_are_measured_once():
    def steps(x):
        for _ in range(3):
            x = Sine.apply(Square.apply(x))
        return x

    meter = FakeMeter()
    search(steps, meter)

    alone = [names for names in meter.timed if names == ("SquareSine",)]
    assert len(alone) == 5  # one task in five rounds, not three


# ---- memory and accuracy ----


def test_memory_decides_where_it_is_asked_for():
    meter = FakeMeter({"Chain": 9.0}, saved={"Square": 4, "Sine": 4, "SquareSine": 6})

    assert chosen(search(chain, meter, weight=1.0)) == PlanCandidate(COMBINED, (), *PAIR)
    assert chosen(search(chain, meter, weight=0.0)).how == HYBRID


def test_inexact_grouping_is_marked_and_left():
    meter = FakeMeter({"Chain": 0.9, "SineGrowth": 0.5}, errors={"Chain": 1e-2})

    found = search(chain, meter)

    marked = [row.candidate for row in found.rows[8] if row.is_inexact]
    assert marked == [PlanCandidate(COMBINED, (), *PAIR)]
    assert chosen(found) == PlanCandidate(HYBRID, ((1, 2),), *PAIR)


def test_policy_far_from_the_best_is_not_searched(monkeypatch):
    slow = []

    class ByPolicy(FakeMeter):
        def time(self, task):
            return FakeMeter.time(self, task) * (9 if task.function in slow else 1)

    def made(program, candidate, args):
        function = build_candidate(program, candidate, args)
        if candidate.save == "auto":
            slow.append(function.apply)
        return function

    monkeypatch.setattr(sys.modules[PlanSearch.__module__], "build_candidate", made)
    found = search(chain, ByPolicy(), pairs=(PAIR, ("eager", "auto")))

    hybrids = [row.candidate for row in found.rows[8] if row.candidate.how == HYBRID]
    assert {one.save for one in hybrids} == {"everything"}
    assert any('save "auto"' in note for note in found.notes)


@pytest.mark.slow
def test_factors_are_kept_where_there_are_products():
    pairs = (PAIR, ("eager", "auto"), ("eager", "factors"))
    x, w = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    plain = search(chain, FakeMeter(), pairs=pairs)
    found = search(lambda x, w: Sine.apply(x) @ w, FakeMeter(), (x, w), pairs=pairs)

    assert {row.candidate.save for row in plain.rows[8]} == {"", "everything", "auto"}
    assert {row.candidate.save for row in found.rows[16]} == {"", "everything", "auto", "factors"}


# ---- several sizes ----


def test_each_size_gets_its_own_choice():
    meter = FakeMeter({"Chain": lambda size: size / 4})

    found = search(chain, meter, (leaf(4),), (leaf(64),))

    assert chosen(found, 4).how == COMBINED
    assert chosen(found, 64).how == HYBRID


def test_winner_elsewhere_is_measured_here():
    meter = FakeMeter({"Chain": lambda size: size / 4})

    found = search(chain, meter, (leaf(4),), (leaf(64),))

    for size in (4, 64):
        measured = {row.candidate for row in found.rows[size]}
        assert {chosen(found, 4), chosen(found, 64)} <= measured


# ---- stopping ----


def test_spent_budget_still_knows_whole_programs():
    meter = FakeMeter({"Chain": 9.0}, step=1.0)

    found = search(chain, meter, budget=0.0)

    assert {row.candidate.how for row in found.rows[8]} == {"nested", "combined"}
    assert chosen(found) == AS_WRITTEN
    assert any("the budget was spent" in note for note in found.notes)


def test_whole_programs_are_measured_when_the_time_is_over_at_once():
    meter = FakeMeter()

    def report(done, total, text):
        meter.clock += 10.0

    found = search(chain, meter, budget=5.0, report=report)

    assert {row.candidate for row in found.rows[8]} == {
        AS_WRITTEN,
        PlanCandidate(COMBINED, (), *PAIR),
    }


def test_few_groupings_are_known_before_compiling(monkeypatch):
    meter = FakeMeter()

    def made(program, candidate, args):
        if candidate.backend == "native":
            meter.clock += 1000.0  # a compiler that takes longer than there is time
        return build_candidate(program, replace(candidate, backend="eager"), args)

    monkeypatch.setattr(sys.modules[PlanSearch.__module__], "build_candidate", made)
    native = ("native", "everything")
    found = search(square_sine, meter, (leaf(), leaf()), budget=100.0, pairs=(native, PAIR))

    hybrids = {row.candidate.groups for row in found.rows[8] if row.candidate.how == HYBRID}
    assert hybrids == {((0, 1),), ((0, 2),), ((1, 2),)}
    assert chosen(found) == PlanCandidate(COMBINED, (), *native)


def test_budget_that_ends_among_groups_is_said():
    meter = FakeMeter()
    steps = []

    def report(done, total, text):
        steps.append(text)
        meter.clock += 10.0 if text.startswith("group ") else 0.0

    found = search(chain, meter, budget=40.0, report=report)

    assert any(
        note.endswith("groups were not measured: the budget was spent") for note in found.notes
    )


def test_interrupt_keeps_what_is_known():
    def report(done, total, text):
        if text.startswith("group 2"):
            raise KeyboardInterrupt

    found = search(chain, FakeMeter(), report=report)

    assert found.stopped == "stopped by Ctrl-C before all was measured"
    assert {row.candidate.how for row in found.rows[8]} == {"nested", "combined"}


def test_interrupt_before_all_knows_nothing():
    def report(done, total, text):
        raise KeyboardInterrupt

    assert search(chain, FakeMeter(), report=report).rows == {}


def test_clear_answer_stops_the_rounds():
    meter = FakeMeter()
    search(chain, meter)

    assert len([names for names in meter.timed if names == ("Chain",)]) <= 25


def test_progress_never_goes_backwards():
    steps = []
    search(chain, FakeMeter(), report=lambda done, total, text: steps.append((done, total)))

    assert [done for done, _ in steps] == list(range(1, len(steps) + 1))
    assert all(done <= total for done, total in steps)


# ---- what cannot be grouped ----


def test_program_that_cannot_be_captured_stays_nested():
    found = search(decides, FakeMeter())

    assert [row.candidate for row in found.rows[8]] == [AS_WRITTEN]
    assert "whatever the values" in found.refused["every grouping"]


def test_program_that_works_in_place_is_planned():
    found = search(doubles_in_place, FakeMeter())

    assert chosen(found) == PlanCandidate(COMBINED, (), *PAIR)
    assert "[mul_ Sine]" in found.refused


def test_error_of_the_program_is_its_own():
    def broken(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        search(broken, FakeMeter())


def test_failing_backend_is_a_reason(monkeypatch):
    def made(program, candidate, args):
        if candidate.how == COMBINED:
            raise RuntimeError("no compiler\nat all")
        return build_candidate(program, candidate, args)

    monkeypatch.setattr(sys.modules[PlanSearch.__module__], "build_candidate", made)
    found = search(chain, FakeMeter())

    assert found.refused["combined (eager, save everything)"] == "RuntimeError: no compiler at all"
    assert chosen(found).how == HYBRID


def test_forgotten_interrupt_stops_at_the_next_step():
    seen = []

    def report(done, total, text):
        seen.append(text)
        if len(seen) == 3:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    found = search(chain, FakeMeter(), report=report)

    assert found.stopped
    assert len(seen) == 3
