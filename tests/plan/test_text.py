"""Tables and reasons read well: gold text, and numbers in their units."""

from dataclasses import replace

import pytest

from pullback.graph.cost import bytes_text
from pullback.plan.measurements import AS_WRITTEN
from pullback.plan.text import count_text, explain, seconds_text, table
from tests.plan.fakes import made_up


def test_table_reads_as_its_gold(gold):
    gold("table.txt", table(made_up()) + "\n")


def test_explanation_reads_as_its_gold(gold):
    gold("explain.txt", explain(made_up()) + "\n")


def test_unmeasured_plan_says_so():
    small = replace(made_up().sized[0], rows=(), chosen=AS_WRITTEN)
    evidence = made_up(sized=(small,))

    assert table(evidence).endswith("nothing was measured")
    assert "nothing was measured, so the program runs as written" in explain(evidence)


def test_long_label_is_cut_in_the_table():
    small = made_up().sized[0]
    rows = tuple(replace(row, label="[Sine Growth] " * 20) for row in small.rows)

    text = table(made_up(sized=(replace(small, rows=rows),)))

    assert max(map(len, text.splitlines())) < 180
    assert " ...  eager" in text


def test_many_refusals_are_counted():
    refused = {f"[{n}]": "it draws" for n in range(9)}

    assert "not possible: [0], [1], [2] and 6 more: it draws" in explain(made_up(refused=refused))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(2.5, "2.5 s"), (0.0412, "41.2 ms"), (4.12e-5, "41.2 us"), (5e-9, "5 ns"), (1500, "1500 s")],
)
def test_seconds_have_their_unit(seconds, expected):
    assert seconds_text(seconds) == expected


UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def test_seconds_keep_three_figures_at_every_size():
    edges = [10.0**n * near for n in range(-9, 4) for near in (0.9994, 0.9996, 1, 1.0004, 1.0006)]
    between = [10 ** (n / 97) for n in range(-9 * 97, 4 * 97)]
    for seconds in edges + between:
        number, unit = seconds_text(seconds).split()

        assert float(number) * UNITS[unit] == pytest.approx(seconds, rel=5.1e-3), seconds
        assert float(number) < 1000 or unit == "s", seconds


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1000, "1000 B"), (8000, "7.81 KiB"), (3 * 2**30, "3 GiB"), (None, "?")],
)
def test_bytes_have_their_unit(count, expected):
    assert bytes_text(count) == expected


def test_thousands_stand_apart():
    assert count_text(1234567) == "1 234 567"
