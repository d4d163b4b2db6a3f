"""The benchmark of planted faults: every fault is there, no reference has it, the scorer counts."""

import gc
import inspect
import io
import json
import sys

import pytest
import torch
from rich.console import Console

from benchmarks.faults.case import Case, find, normal, planted
from benchmarks.faults.evidence import tensors, wrong_gradient
from benchmarks.faults.score import Result, counts, main, report, run_apart, together

# Starting the compiler takes seconds.
COMPILED = {"baked-value", "wrong-under-compile"}
# What these give at one call is chance, or depends on the calls before.
UNSTEADY = {
    "depends-on-calls",
    "nondeterministic",
    "random-in-backward",
    "random-under-checkpoint",
    "replay-from-seed",
    "unwritten-memory",
}

CASES = planted()


def each(cases):
    """One parameter per case; those that need the compiler are slow."""
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.fault in COMPILED else [])
        for case in cases
    ]


@pytest.fixture(autouse=True, scope="module")
def quiet_memory():
    """Collecting garbage is fast when what was imported is left alone."""
    gc.collect()
    gc.freeze()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    gc.unfreeze()


@pytest.fixture
def usual_stack():
    """Python's own limit of recursion, whatever other tests have made of it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("usual_stack")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", each(CASES))
def test_planted_fault_shows_itself(case):
    assert case.evidence(case.call, case) is True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", each(CASES))
def test_reference_is_free_of_fault(case):
    assert case.evidence(case.reference, case) is False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [case for case in CASES if case.fault not in UNSTEADY])
def test_gradients_are_wrong_only_where_declared(case):
    assert wrong_gradient(case.call, case) is case.visible


def test_names_of_cases_are_unique():
    names = [case.name for case in CASES]

    assert len(set(names)) == len(names)


def test_benchmark_is_large_and_varied():
    assert len(CASES) >= 210
    assert len({case.fault for case in CASES}) >= 48


def test_every_case_is_fully_described():
    poor = [case.name for case in CASES if not (case.fault and case.where.endswith("."))]

    assert poor == []


def test_inputs_are_small_and_repeatable():
    odd = []
    for case in CASES:
        first, second = tensors(case.inputs()), tensors(case.inputs())
        plain = all(value.is_contiguous() and value.numel() <= 4096 for value in first)
        if not plain or not all(map(torch.equal, first, second)):
            odd.append(case.name)

    assert odd == []


def test_every_target_is_found_by_name():
    lost = [
        case.name
        for case in CASES
        if getattr(inspect.getmodule(case.target), case.target.__name__) is not case.target
    ]

    assert lost == []


def test_unknown_case_is_named():
    with pytest.raises(LookupError, match="no case is named 'Nothing'"):
        find("Nothing")


# ---- the scorer ----

LIMITS = {"seconds": 30.0, "gigabytes": 4.0}


@pytest.mark.parametrize(
    ("name", "verdict"), [("Softsign", "found"), ("ScaleKernel", "clean"), ("LinearAll", "clean")]
)
def test_gradcheck_sees_only_plain_faults(name, verdict):
    result = run_apart("gradcheck-slow", "planted", find(name), **LIMITS)

    assert result.verdict == verdict


def quits(*_):
    """End the process."""
    raise SystemExit(3)


def loops(*_):
    """Never end."""
    while True:
        pass


def hoards(*_):
    """Ask for more memory than there is."""
    torch.zeros(2**40)


@pytest.mark.parametrize(
    ("call", "text"), [(quits, "exited with 1"), (loops, "ran out of time"), (hoards, "memory")]
)
def test_hostile_case_does_not_stop_scorer(call, text):
    case = Case("hostile", call, lambda: (normal(2),))

    result = run_apart("gradcheck-slow", "planted", case, seconds=3.0, gigabytes=2.0)

    assert result.verdict == "found"
    assert text in result.text


@pytest.mark.parametrize(
    ("group", "planted_as", "found", "counted"),
    [
        ("planted", "wrong", [["wrong", "x"]], True),
        ("planted", "wrong", [["wasteful", "x"]], False),
        ("planted", "wrong", [["wasteful", "leak"]], True),
        ("planted", "wasteful", [["fragile", "x"]], True),
        ("sound", "wrong", [["wasteful", "x"]], True),
        ("control", "wrong", [["fragile", "x"]], False),
        ("control", "wrong", [["wrong", "x"]], True),
        ("planted", "wrong", [], True),
    ],
)
def test_finding_must_match_its_severity(group, planted_as, found, counted):
    case = Case("one", torch.sin, tuple, fault="leak", severity=planted_as)

    assert counts(group, case, ("found", "", found)) is counted


def test_clean_answer_never_counts():
    case = Case("one", torch.sin, tuple, fault="leak")

    assert counts("planted", case, ("clean", "", [])) is False


def test_tools_together_find_what_one_finds():
    facts = ("planted", "A", "leak", "wrong", False)
    results = [
        Result("one", *facts, "clean", 0.1, 0.1),
        Result("two", *facts, "found", 0.1, 0.1),
        Result("three", *facts, "absent", 0.1, 0.1),
    ]

    assert [result.tool for result in together(results, ["one", "two", "three"])] == ["two"]
    assert [result.verdict for result in together(results, ["one", "three"])] == ["clean"]


def test_report_counts_detections_and_alarms():
    console = Console(width=200, file=io.StringIO())
    report(
        [
            Result("one", "planted", "A", "leak", "wrong", False, "found", 1.0, 0.5),
            Result("one", "planted", "B", "leak", "wrong", True, "clean", 3.0, 0.5),
            Result("one", "sound", "C", "", "wrong", False, "clean", 2.0, 0.5),
        ],
        console,
    )
    text = console.file.getvalue()

    assert "1/2 50%" in text
    assert "0/1 0%" in text
    assert "2.00" in text
    assert "0.50" in text


@pytest.mark.slow
def test_scorer_writes_every_result(tmp_path, capsys):
    file = tmp_path / "results.json"

    code = main(
        ["--tools", "gradcheck-fast", "--only", "Softsign", "--only", "leak", "--json", str(file)]
    )

    rows = json.loads(file.read_text())
    assert code == 0
    assert {row["fault"] for row in rows} == {"wrong-value", "leak"}
    printed = capsys.readouterr().out
    assert "Detected, per class" in printed

    main(["--show", str(file)])

    assert capsys.readouterr().out == printed


def test_parts_cover_every_case(tmp_path):
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for number, file in enumerate(files, 1):
        chosen = ["--tools", "gradcheck-fast", "--groups", "planted", "--only", "leak"]
        main([*chosen, "--part", f"{number}/2", "--json", str(file)])
    names = [row["case"] for file in files for row in json.loads(file.read_text())]

    assert sorted(names) == sorted(case.name for case in planted() if case.fault == "leak")


@pytest.mark.parametrize("part", ["3/2", "0/2", "half"])
def test_impossible_part_is_refused(part, capsys):
    with pytest.raises(SystemExit):
        main(["--part", part])

    assert f"not '{part}'" in capsys.readouterr().err


def test_unknown_tool_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--tools", "gradchek"])

    assert stop.value.code == 2
    assert "unknown: gradchek" in capsys.readouterr().err
